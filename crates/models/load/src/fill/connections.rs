//! The number of connections to other machines.

use std::time::{Duration, Instant};

use crate::plan::Plan;

/// The number of connections at the beginning.
const FIRST: usize = 16;
/// The most connections that are opened without being asked for.
const MAX: usize = 128;
/// The time over which the throughput is measured.
const WINDOW: Duration = Duration::from_millis(500);
/// More connections are worth their cost if they raise the throughput by at least this factor.
const WORTH: f64 = 1.15;

/// Doubles the number of connections while that raises the throughput.
#[derive(Debug)]
pub(crate) struct Connections {
    count: usize,
    grows: bool,
    window: Option<(Instant, u64)>,
    /// The throughput before the last growth, in bytes per second.
    before: f64,
}

impl Connections {
    /// Makes the connections of a load with `workers` threads for files of this machine. `fixed` is the number
    /// that the caller chose.
    pub(crate) fn new(plan: &Plan, workers: usize, fixed: Option<usize>) -> Self {
        let is_remote = plan.files().iter().any(|file| file.source().object().is_some());
        Self::of(is_remote, workers, fixed)
    }

    fn of(is_remote: bool, workers: usize, fixed: Option<usize>) -> Self {
        let count = match (is_remote, fixed) {
            (false, _) => workers,
            (true, Some(fixed)) => fixed,
            (true, None) => workers.max(FIRST),
        };
        let grows = is_remote && fixed.is_none();
        Self { count, grows, window: None, before: 0.0 }
    }

    /// Returns the number of threads, of which each has a connection.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of threads to add after `done_bytes` have arrived.
    pub(crate) fn more(&mut self, now: Instant, done_bytes: u64) -> usize {
        if !self.grows {
            return 0;
        }
        // The first bytes show the latency, and not the throughput.
        let (began, bytes) = match self.window {
            Some(window) => window,
            None if done_bytes > 0 => *self.window.insert((now, done_bytes)),
            None => return 0,
        };
        let passed = now.saturating_duration_since(began);
        if passed < WINDOW {
            return 0;
        }
        let rate = done_bytes.saturating_sub(bytes) as f64 / passed.as_secs_f64();
        self.window = Some((now, done_bytes));
        if rate < self.before * WORTH || self.count >= MAX {
            self.grows = false;
            return 0;
        }
        self.before = rate;
        let more = self.count.min(MAX - self.count);
        self.count += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of connections that are opened if `rate` gives the throughput of a number of them, in
    /// bytes per second.
    fn grown(rate: impl Fn(usize) -> f64) -> usize {
        let mut connections = Connections::of(true, 2, None);
        let (mut now, mut done) = (Instant::now(), 1.0);
        for _ in 0..200 {
            connections.more(now, done as u64);
            now += Duration::from_millis(50);
            done += rate(connections.count()) / 20.0;
        }
        connections.count()
    }

    #[test]
    fn connections_grow_while_the_throughput_does() {
        assert_eq!(grown(|count| count as f64 * 90e6), MAX);
        // The server or the processors limit it.
        assert_eq!(grown(|_| 1e9), 2 * FIRST);
        assert_eq!(grown(|count| count.min(32) as f64 * 1e8), 64);
    }

    #[test]
    fn a_chosen_number_and_that_of_local_files_stay() {
        for (is_remote, fixed, expected) in
            [(true, Some(3), 3), (false, Some(3), 2), (false, None, 2)]
        {
            let mut connections = Connections::of(is_remote, 2, fixed);
            let began = Instant::now();
            for second in 1..10 {
                assert_eq!(connections.more(began + Duration::from_secs(second), second << 40), 0);
            }
            assert_eq!(connections.count(), expected);
        }
    }
}
