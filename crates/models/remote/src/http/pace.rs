//! The usual speed of the connections to a server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longshore_load::ReadControl;

/// The number of parts of which the speed is remembered.
const PARTS: usize = 32;
/// The number of parts from which their speed is known.
const PARTS_MIN: usize = 8;
/// The length from which a part counts. A shorter one shows the latency of the server.
const PART_BYTES: u64 = 1 << 20;
/// A part is slow if it takes this many times the median.
const SLOW: u32 = 4;
/// The shortest time after which a part is slow.
const LIMIT_MIN: Duration = Duration::from_secs(1);

/// The times that the latest parts took, in ns per MiB.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    times: [u64; PARTS],
    count: usize,
}

impl Pace {
    /// Notes that a part of `len_bytes` took this time.
    pub(super) fn note(&self, len_bytes: u64, took: Duration) {
        if len_bytes < PART_BYTES {
            return;
        }
        let nanos = took.as_nanos() * u128::from(PART_BYTES) / u128::from(len_bytes);
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = recent.count % PARTS;
        recent.times[at] = nanos.try_into().unwrap_or(u64::MAX);
        recent.count += 1;
    }

    /// Returns the time after which a part of `len_bytes` is slow; `None` if the usual time is not known.
    pub(super) fn limit(&self, len_bytes: u64) -> Option<Duration> {
        let mut times = {
            let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = recent.count.min(PARTS);
            recent.times[..known].to_vec()
        };
        if times.len() < PARTS_MIN {
            return None;
        }
        times.sort_unstable();
        let median = u128::from(times[times.len() / 2]);
        let nanos = median * u128::from(len_bytes) / u128::from(PART_BYTES);
        let usual = Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX));
        Some((usual.saturating_mul(SLOW)).max(LIMIT_MIN))
    }
}

/// Ends a part that is slow. The usual time can become known while the part is received.
pub(super) struct Watched<'a> {
    control: &'a dyn ReadControl,
    pace: Arc<Pace>,
    began: Instant,
    len_bytes: u64,
    /// The factor by which this part may take longer than others.
    patience: u32,
    is_slow: AtomicBool,
}

impl<'a> Watched<'a> {
    /// Watches a part of `len_bytes` that was requested at `began`.
    pub(super) fn new(
        control: &'a dyn ReadControl,
        pace: Arc<Pace>,
        began: Instant,
        len_bytes: u64,
        patience: u32,
    ) -> Self {
        Self { control, pace, began, len_bytes, patience, is_slow: AtomicBool::new(false) }
    }

    /// Returns `true` if the part was ended because it was slow.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Notes the time of the part, which is complete.
    pub(super) fn complete(&self) {
        self.pace.note(self.len_bytes, self.began.elapsed());
    }
}

impl ReadControl for Watched<'_> {
    fn should_stop(&self) -> bool {
        if self.control.should_stop() {
            return true;
        }
        let elapsed = self.began.elapsed();
        let limit = || self.pace.limit(self.len_bytes)?.checked_mul(self.patience);
        let is_slow = elapsed >= LIMIT_MIN && limit().is_some_and(|limit| elapsed >= limit);
        if is_slow {
            self.is_slow.store(true, Ordering::Relaxed);
        }
        is_slow
    }

    fn filled(&self, bytes: usize) {
        self.control.filled(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_slow_after_four_times_the_median() {
        let pace = Pace::default();
        let (short, part) = (PART_BYTES - 1, 8 * PART_BYTES);
        for number in 0..PARTS_MIN {
            assert_eq!(pace.limit(part), None);
            pace.note(short, Duration::from_secs(100));
            // One of them hangs.
            pace.note(part, Duration::from_secs(if number == 3 { 100 } else { 2 }));
        }
        assert_eq!(pace.limit(part), Some(Duration::from_secs(8)));
        assert_eq!(pace.limit(PART_BYTES / 8), Some(LIMIT_MIN));
        for _ in 0..PARTS {
            pace.note(u64::MAX, Duration::MAX);
        }
        assert!(pace.limit(u64::MAX).is_some());
    }
}
