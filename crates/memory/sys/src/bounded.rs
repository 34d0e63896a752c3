//! Look-ups in file systems of the kernel that another user can delay.
//!
//! A user who may list a directory of `/proc` or `/sys` can hold its lock for as long as it likes: it reads
//! the directory into a page of a FUSE file that never answers, and the next process that opens the directory
//! for writing makes all later readers wait. So a thread of its own looks there, and is not waited for
//! without bound.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::signals;

/// The time within which a look-up must end.
const TIME: Duration = Duration::from_secs(2);
/// The maximum number of threads. If as many hang, no further one is started.
const THREADS_MAX: usize = 8;
const STACK_BYTES: usize = 128 << 10;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// A thread that counts until this is dropped.
struct Counted(&'static AtomicUsize);

impl Counted {
    fn new(threads: &'static AtomicUsize) -> Option<Self> {
        let counted = Self(threads);
        // Dropped at once if there are too many.
        (threads.fetch_add(1, Ordering::Relaxed) < THREADS_MAX).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the result of `look`, which runs on a thread of its own, or `None` if it takes longer than two
/// seconds, if too many threads hang, or if no thread can be started.
pub(crate) fn look<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    look_within(TIME, &THREADS, look)
}

fn look_within<T: Send + 'static>(
    time: Duration,
    threads: &'static AtomicUsize,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let counted = Counted::new(threads)?;
    let (answer, answered) = mpsc::sync_channel(1);
    let looking = move || {
        let _counted = counted;
        // Signals are for the other threads.
        let _ = signals::block_all();
        let _ = answer.send(look());
    };
    let thread = thread::Builder::new().name("longshore-look".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(looking).ok()?;
    answered.recv_timeout(time).ok()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_look_up_that_hangs_is_not_waited_for_and_their_number_is_limited() {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        let long = Duration::from_secs(60);
        assert_eq!(look_within(long, &THREADS, || 7), Some(7));
        let mut ends = Vec::new();
        for _ in 0..THREADS_MAX {
            let (end, ended) = mpsc::channel::<()>();
            let hang = move || ended.recv().is_ok();
            assert_eq!(look_within(Duration::from_millis(1), &THREADS, hang), None);
            ends.push(end);
        }
        assert_eq!(look_within(long, &THREADS, || 7), None, "too many threads hang");
        drop(ends);
        let begin = Instant::now();
        while look_within(long, &THREADS, || 7).is_none() {
            assert!(begin.elapsed() < long, "the threads do not end");
        }
    }
}
