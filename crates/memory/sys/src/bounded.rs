//! Look-ups in file systems of the kernel that another user can delay.
//!
//! A user who may list a directory of `/proc` or `/sys` can hold its lock for as long as it likes: it reads
//! the directory into a page of a FUSE file that never answers, and the next process that opens the directory
//! for writing makes all later readers wait. So a thread of its own looks there, and is not waited for
//! without bound.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::signals;

/// The time within which a look-up must end.
const TIME: Duration = Duration::from_secs(2);
/// The maximum number of threads. If as many hang, no further one is started.
const THREADS_MAX: usize = 8;
const STACK_BYTES: usize = 128 << 10;

static THREADS: Threads = Threads::new();

/// The threads that look something up.
#[derive(Debug)]
struct Threads {
    counts: Mutex<Counts>,
    /// Notified when a thread ends.
    ended: Condvar,
}

#[derive(Debug)]
struct Counts {
    running: usize,
    /// The number of running threads whose callers have given up.
    hung: usize,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Running,
    /// Its caller has given up.
    Hung,
    Ended,
}

/// A thread that counts until this is dropped.
struct Counted {
    threads: &'static Threads,
    state: Arc<Mutex<State>>,
}

impl Threads {
    const fn new() -> Self {
        Self { counts: Mutex::new(Counts { running: 0, hung: 0 }), ended: Condvar::new() }
    }

    /// Waits until fewer than the maximum run. Returns `None` at once if as many hang or the deadline has
    /// passed, and if none has ended by the deadline.
    fn begin(&'static self, deadline: Instant) -> Option<Counted> {
        if deadline <= Instant::now() {
            return None;
        }
        let mut counts = lock(&self.counts);
        while counts.running >= THREADS_MAX {
            let left = deadline.saturating_duration_since(Instant::now());
            if counts.hung >= THREADS_MAX || left.is_zero() {
                return None;
            }
            let waited = self.ended.wait_timeout(counts, left);
            counts = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        counts.running += 1;
        Some(Counted { threads: self, state: Arc::default() })
    }
}

impl Counted {
    /// Counts the thread as hung, unless it has ended.
    fn give_up(threads: &Threads, state: &Mutex<State>) {
        let mut state = lock(state);
        if *state == State::Running {
            *state = State::Hung;
            lock(&threads.counts).hung += 1;
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let mut counts = lock(&self.threads.counts);
        counts.running -= 1;
        counts.hung -= usize::from(*state == State::Hung);
        *state = State::Ended;
        self.threads.ended.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A look-up that did not end in time.
#[derive(Debug)]
pub(crate) struct Hung(Arc<Mutex<State>>);

impl Hung {
    /// Returns `true` if it has ended since.
    pub(crate) fn has_ended(&self) -> bool {
        *lock(&self.0) == State::Ended
    }
}

/// A look-up that a thread of its own does.
pub(crate) struct Looking<T> {
    threads: &'static Threads,
    state: Arc<Mutex<State>>,
    answered: Receiver<T>,
    deadline: Instant,
}

impl<T> Looking<T> {
    /// Waits for the result until two seconds after the beginning.
    ///
    /// # Errors
    /// [`Hung`] if it has not arrived.
    pub(crate) fn wait(self) -> Result<T, Hung> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.answered.recv_timeout(left).map_err(|_| {
            Counted::give_up(self.threads, &self.state);
            Hung(self.state)
        })
    }
}

/// Returns the time at which a look-up that begins now must end.
pub(crate) fn deadline() -> Instant {
    Instant::now() + TIME
}

/// Returns the result of `look`, which runs on a thread of its own, or `None` if it takes longer than two
/// seconds, if too many threads hang, or if no thread can be started. At most eight look-ups run at a time;
/// others wait within their two seconds.
pub(crate) fn look<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    begin(look)?.wait().ok()
}

/// Begins a look-up like [`look()`], for which the caller waits later. Returns `None`, and drops `look`, if it
/// cannot begin.
pub(crate) fn begin<T: Send + 'static>(
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<Looking<T>> {
    begin_until(deadline(), look)
}

/// Begins a look-up like [`begin()`], which must end by this deadline. After the deadline, no thread is
/// started.
pub(crate) fn begin_until<T: Send + 'static>(
    deadline: Instant,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<Looking<T>> {
    begin_in(&THREADS, deadline, look)
}

fn begin_in<T: Send + 'static>(
    threads: &'static Threads,
    deadline: Instant,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<Looking<T>> {
    let counted = threads.begin(deadline)?;
    let state = Arc::clone(&counted.state);
    let (answer, answered) = mpsc::sync_channel(1);
    let looking = move || {
        let counted = counted;
        // Signals are for the other threads.
        let _ = signals::block_all();
        let found = look();
        // Before the answer, so that the caller's next look-up finds the place free.
        drop(counted);
        let _ = answer.send(found);
    };
    let thread = thread::Builder::new().name("longshore-look".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(looking).ok()?;
    Some(Looking { threads, state, answered, deadline })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn look_within<T: Send + 'static>(
        time: Duration,
        threads: &'static Threads,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        begin_in(threads, Instant::now() + time, look)?.wait().ok()
    }

    #[test]
    fn no_look_up_begins_after_its_deadline() {
        static THREADS: Threads = Threads::new();
        assert!(begin_in(&THREADS, Instant::now(), || 7).is_none());
        assert_eq!(lock(&THREADS.counts).running, 0);
    }

    #[test]
    fn a_look_up_that_hangs_is_not_waited_for_and_their_number_is_limited() {
        static THREADS: Threads = Threads::new();
        let long = Duration::from_secs(60);
        assert_eq!(look_within(long, &THREADS, || 7), Some(7));
        let mut ends = Vec::new();
        for _ in 0..THREADS_MAX {
            let (end, ended) = mpsc::channel::<()>();
            let hang = move || ended.recv().is_ok();
            assert_eq!(look_within(Duration::from_millis(1), &THREADS, hang), None);
            ends.push(end);
        }
        let begin = Instant::now();
        assert_eq!(look_within(long, &THREADS, || 7), None, "too many threads hang");
        assert!(begin.elapsed() < long / 2, "it does not wait for those");
        drop(ends);
        while look_within(long, &THREADS, || 7).is_none() {
            assert!(begin.elapsed() < long, "the threads do not end");
        }
    }

    #[test]
    fn more_look_ups_than_threads_wait_for_each_other() {
        static THREADS: Threads = Threads::new();
        let look = || {
            thread::sleep(Duration::from_millis(20));
            7
        };
        thread::scope(|scope| {
            let long = Duration::from_secs(60);
            let all: Vec<_> = (0..5 * THREADS_MAX)
                .map(|_| scope.spawn(move || look_within(long, &THREADS, look)))
                .collect();
            assert!(all.into_iter().all(|one| one.join().unwrap() == Some(7)));
        });
        let counts = lock(&THREADS.counts);
        assert_eq!((counts.running, counts.hung), (0, 0));
    }
}
