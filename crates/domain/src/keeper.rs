//! The thread that frees bounce buffers which no transfer uses.
//!
//! There is one for all domains of the process, while any of their pools has a chunk that is to be
//! freed some day. It looks at each domain twice in the time after which that is, and at least twice a
//! second for what the kernel says of memory: where others wait for it, all that is idle is freed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::memory_pressure::MemoryPressure;

use crate::domain::Inner;

/// The domains. Held while they are looked at, so never by whoever maps: the keeper waits for those.
static DOMAINS: Mutex<Vec<Arc<Inner>>> = Mutex::new(Vec::new());

static SIGNAL: Mutex<Signal> = Mutex::new(Signal { has_grown: false, is_running: false });
static GROWN: Condvar = Condvar::new();

struct Signal {
    /// Whether a pool has grown since the domains were looked at.
    has_grown: bool,
    is_running: bool,
}

/// Has the keeper look after a domain.
pub(crate) fn add(inner: &Arc<Inner>) {
    lock(&DOMAINS).push(Arc::clone(inner));
}

/// Has it forget the domain. When this returns, it does not use it any more.
pub(crate) fn remove(inner: &Arc<Inner>) {
    lock(&DOMAINS).retain(|kept| !Arc::ptr_eq(kept, inner));
}

/// Says that a pool has grown. Where there can be no thread, chunks are freed on request alone.
pub(crate) fn wake() {
    let mut signal = lock(&SIGNAL);
    signal.has_grown = true;
    if !signal.is_running {
        let started = thread::Builder::new().name("longshore-pools".to_owned()).spawn(keep);
        signal.is_running = started.is_ok();
    }
    drop(signal);
    GROWN.notify_one();
}

fn keep() {
    let mut pressure = Pressure::new(MemoryPressure::of_this_process());
    loop {
        let next = look(&mut pressure);
        let mut signal = lock(&SIGNAL);
        if !signal.has_grown {
            let Some(next) = next else {
                signal.is_running = false;
                return;
            };
            let woken = GROWN.wait_timeout(signal, next);
            signal = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        signal.has_grown = false;
    }
}

/// Frees what has been idle for long enough. When to look again; `None` where there is nothing left.
fn look(pressure: &mut Pressure) -> Option<Duration> {
    let is_short = pressure.is_high();
    let domains = lock(&DOMAINS);
    let after = |inner: &Arc<Inner>| {
        let idle = inner.idle()?;
        // What cannot be unmapped is leaked, and counts as held.
        let _ = inner.shrink(if is_short { Duration::ZERO } else { idle });
        (inner.pools.held_bytes() != 0).then(|| (idle / 2).clamp(SHORTEST, LONGEST))
    };
    domains.iter().filter_map(after).min()
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(500);

/// Whether memory is short.
struct Pressure {
    stalls: MemoryPressure,
    asked: Instant,
}

impl Pressure {
    fn new(stalls: MemoryPressure) -> Self {
        Self { stalls, asked: Instant::now() }
    }

    /// Whether tasks have waited for memory for a tenth of the time since this was last asked.
    fn is_high(&mut self) -> bool {
        let since = self.asked.elapsed();
        self.asked += since;
        self.stalls.stalled() * 10 > since
    }
}

fn lock<T>(of: &'static Mutex<T>) -> MutexGuard<'static, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use longshore_heap::Heap;

    use super::*;
    use crate::backend::Soft;
    use crate::{Bounce, Direction, Domain};

    #[test]
    #[cfg_attr(miri, ignore = "opens files")]
    fn where_memory_is_short_what_is_idle_is_freed_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pressure");
        let write = |total: u64| fs::write(&path, format!("some avg10=0.00 total={total}\n"));
        write(0).unwrap();
        let mut pressure = Pressure::new(MemoryPressure::of_files([path.as_path()]));
        let hour = Some(Duration::from_secs(3600));
        let builder = Domain::builder(Soft::new().unwrap()).bounce(Bounce::Always);
        let domain = builder.free_after(hour).build();
        let map = |fill: u8| {
            let mut buffer = Heap::Memfd.allocate(4096).unwrap();
            buffer.write().unwrap().fill(fill);
            domain.map(buffer, Direction::Bidirectional).unwrap()
        };
        drop(map(1));
        assert_ne!(domain.counters().pool_bytes, 0);
        assert_eq!(look(&mut pressure), Some(LONGEST), "it looks for pressure twice a second");
        assert_ne!(domain.counters().pool_bytes, 0, "it is not idle for an hour");

        // What is in use is not idle.
        let used = map(2);
        write(u64::MAX / 2).unwrap();
        look(&mut pressure);
        assert_ne!(domain.counters().pool_bytes, 0);
        assert_eq!(used.unmap().unwrap().read().unwrap()[0], 2);

        write(u64::MAX - 5).unwrap();
        look(&mut pressure);
        assert_eq!((domain.counters().pool_bytes, domain.counters().pool_shrinks), (0, 1));
    }
}
