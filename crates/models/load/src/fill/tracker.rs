//! The progress of a fill, shared by its threads: the bytes done, the first failure, and whether to
//! stop.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::piece::{FileRange, Route};
use crate::error::{Error, Result};
use crate::object::ReadControl;
use crate::progress::{CancelToken, Progress};
use crate::report::BytesByRoute;

/// The progress of one fill.
pub(crate) struct Tracker<'a> {
    cancel: &'a CancelToken,
    began: Instant,
    total_bytes: u64,
    done_bytes: AtomicU64,
    /// The bytes that were received from other machines. Reads that have not ended are part of it.
    received_bytes: AtomicU64,
    route_bytes: [AtomicU64; 6],
    populate_nanos: AtomicU64,
    /// The time of the threads that prefault pages, summed over all of them.
    prefaulting_threads_nanos: AtomicU64,
    stopped: AtomicBool,
    follow: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    failure: Option<Error>,
    workers: usize,
    followers: usize,
    /// The number of threads that prefault pages.
    prefaulting: usize,
    closed: bool,
    returned: Vec<FileRange>,
    /// The complete ranges of the buffer, from start to end, merged. They are kept only for followers.
    complete: BTreeMap<u64, u64>,
}

/// A read from another machine, whose bytes count before it ends.
pub(super) struct RemoteRead<'a, 'b> {
    tracker: &'a Tracker<'b>,
    len_bytes: u64,
    received_bytes: AtomicU64,
}

/// A guard for a working thread of the fill. Dropping it ends the work.
pub(crate) struct WorkerGuard<'a, 'b>(&'a Tracker<'b>);

/// A guard for a thread that follows the fill. Dropping it ends the work.
pub(super) struct Follower<'a, 'b>(&'a Tracker<'b>);

/// A guard for a thread that prefaults pages. Dropping it ends the prefaulting.
pub(super) struct Prefaulting<'a, 'b>(&'a Tracker<'b>);

/// A guard that stops the fill if its thread panics, so that no scope waits for ever.
pub(crate) struct StopOnPanic<'a, 'b>(&'a Tracker<'b>);

impl<'a> Tracker<'a> {
    /// Tracks the progress of `total_bytes`. With `follow`, complete ranges are kept for followers.
    pub(super) fn new(total_bytes: u64, cancel: &'a CancelToken, follow: bool) -> Self {
        Self {
            cancel,
            began: Instant::now(),
            total_bytes,
            done_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            route_bytes: Default::default(),
            populate_nanos: AtomicU64::new(0),
            prefaulting_threads_nanos: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            follow,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn enter(&self) -> WorkerGuard<'_, 'a> {
        self.state().workers += 1;
        WorkerGuard(self)
    }

    pub(super) fn enter_follower(&self) -> Follower<'_, 'a> {
        self.state().followers += 1;
        Follower(self)
    }

    /// Permits the calling thread to prefault pages until the guard is dropped; `None` once the fill is
    /// stopped.
    pub(super) fn begin_prefault(&self) -> Option<Prefaulting<'_, 'a>> {
        let mut state = self.state();
        // Check this with the lock held: once `takes_no_more` has returned `true`, every thread sees
        // here that the fill is stopped.
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        state.prefaulting += 1;
        Some(Prefaulting(self))
    }

    /// Returns `true` if the fill is stopped and will take no more memory, even if its reads hang.
    pub(crate) fn takes_no_more(&self) -> bool {
        self.should_stop() && self.state().prefaulting == 0
    }

    /// Returns a guard for a scope whose threads would work or wait on while this thread unwinds.
    pub(crate) fn stop_on_panic(&self) -> StopOnPanic<'_, 'a> {
        StopOnPanic(self)
    }

    /// Returns `true` if something failed or the caller has cancelled the load.
    pub(crate) fn should_stop(&self) -> bool {
        if self.cancel.is_cancelled() && !self.stopped.load(Ordering::Relaxed) {
            let (done_bytes, total_bytes) = (self.done_bytes(), self.total_bytes);
            self.fail(Error::Cancelled { done_bytes, total_bytes });
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// Records a failure and stops the fill. The first failure is kept.
    pub(crate) fn fail(&self, error: Error) {
        self.stopped.store(true, Ordering::Relaxed);
        self.state().failure.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Adds bytes that were read by a route.
    pub(super) fn count(&self, route: Route, bytes: u64) {
        self.route_bytes[route as usize].fetch_add(bytes, Ordering::Relaxed);
        self.done_bytes.fetch_add(bytes, Ordering::Release);
    }

    /// Begins a read of `len_bytes` from another machine.
    pub(super) fn begin_remote_read(&self, len_bytes: usize) -> RemoteRead<'_, 'a> {
        RemoteRead { tracker: self, len_bytes: len_bytes as u64, received_bytes: AtomicU64::new(0) }
    }

    /// Records a range that cannot be read by its route, to be read from the disk.
    pub(super) fn give_back(&self, rest: FileRange) {
        self.state().returned.push(rest);
    }

    /// Adds time that was spent on prefaulting.
    pub(super) fn populated(&self, time: Duration) {
        self.populate_nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// Adds the time in which a number of threads had the task of prefaulting pages.
    pub(super) fn may_prefault(&self, threads: usize, time: Duration) {
        let nanos = nanos(time).saturating_mul(threads as u64);
        self.prefaulting_threads_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the share of the time of [`Self::may_prefault`] that was spent on prefaulting.
    pub(super) fn prefault_share(&self) -> f64 {
        let nanos = self.prefaulting_threads_nanos.load(Ordering::Relaxed).max(1);
        (self.populate_nanos.load(Ordering::Relaxed) as f64 / nanos as f64).min(1.0)
    }

    /// Records that a range of the buffer is complete.
    pub(super) fn complete(&self, start: u64, len_bytes: u64) {
        if !self.follow || len_bytes == 0 {
            return;
        }
        let mut state = self.state();
        let (mut start, mut end) = (start, start + len_bytes);
        if let Some((&before, &before_end)) = state.complete.range(..start).next_back()
            && before_end == start
        {
            state.complete.remove(&before);
            start = before;
        }
        if let Some(after_end) = state.complete.remove(&end) {
            end = after_end;
        }
        state.complete.insert(start, end);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the byte of the buffer at `at` is complete. Returns the end of the complete range, at
    /// most `end`; `None` if the byte will never be complete.
    pub(crate) fn wait_complete(&self, at: u64, end: u64) -> Option<u64> {
        let mut state = self.state();
        loop {
            let covering = state.complete.range(..=at).next_back().map(|(_, end)| *end);
            if let Some(complete_end) = covering.filter(|complete_end| *complete_end > at) {
                return Some(complete_end.min(end));
            }
            if state.closed || state.failure.is_some() {
                return None;
            }
            state = self.wait(state, Duration::from_secs(1));
        }
    }

    /// Waits until no thread of the fill is working, for at most `patience`. Returns `true` if none is.
    pub(crate) fn wait_idle(&self, patience: Duration) -> bool {
        self.wait_until(patience, |state| state.workers == 0)
    }

    /// Waits until no follower is working, for at most `patience`. Returns `true` if none is.
    pub(super) fn wait_followed(&self, patience: Duration) -> bool {
        self.wait_until(patience, |state| state.followers == 0)
    }

    fn wait_until(&self, patience: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state();
        while !is_so(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.wait(state, left);
        }
        true
    }

    pub(crate) fn take_returned(&self) -> Vec<FileRange> {
        std::mem::take(&mut self.state().returned)
    }

    /// Notifies followers that no more ranges will be completed.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Takes the failure, if there was one.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.state().failure.take()
    }

    /// Returns the failure, if there was one. A cancellation that no thread has noticed is a failure if
    /// the load is incomplete.
    pub(crate) fn outcome(&self) -> Result<()> {
        if self.done_bytes() < self.total_bytes {
            self.should_stop();
        }
        let failure = self.state().failure.take();
        match failure {
            Some(error) => Err(error),
            None if self.done_bytes() == self.total_bytes => Ok(()),
            None => Err(Error::Process {
                operation: "the fill",
                source: io::Error::other("it ended before every byte was read"),
            }),
        }
    }

    pub(crate) fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Acquire)
    }

    /// Returns the bytes that are in the buffer. Those of reads from other machines that have not ended are part
    /// of them, because such a read can take minutes.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        let others =
            [Route::Direct, Route::Staged, Route::Resident, Route::Uncached, Route::Buffered];
        let bytes = |route: Route| self.route_bytes[route as usize].load(Ordering::Relaxed);
        others.map(bytes).iter().sum::<u64>() + self.received_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            done_bytes: self.arrived_bytes(),
            total_bytes: self.total_bytes,
            elapsed: self.began.elapsed(),
        }
    }

    pub(super) fn populating(&self) -> Duration {
        Duration::from_nanos(self.populate_nanos.load(Ordering::Relaxed))
    }

    pub(crate) fn by_route(&self) -> BytesByRoute {
        let bytes = |route: Route| self.route_bytes[route as usize].load(Ordering::Relaxed);
        BytesByRoute {
            direct: bytes(Route::Direct),
            staged: bytes(Route::Staged),
            page_cache: bytes(Route::Resident),
            uncached: bytes(Route::Uncached),
            buffered: bytes(Route::Buffered),
            remote: bytes(Route::Remote),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid after each statement, so a panic elsewhere leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>, patience: Duration) -> MutexGuard<'s, State> {
        let waited = self.changed.wait_timeout(state, patience);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl ReadControl for RemoteRead<'_, '_> {
    fn should_stop(&self) -> bool {
        self.tracker.should_stop()
    }

    fn filled(&self, bytes: usize) {
        let bytes = self.len_bytes.min(bytes as u64);
        let before = self.received_bytes.fetch_max(bytes, Ordering::Relaxed);
        self.tracker.received_bytes.fetch_add(bytes.saturating_sub(before), Ordering::Relaxed);
    }
}

impl Drop for WorkerGuard<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stopped.store(true, Ordering::Relaxed);
        }
        self.0.state().workers -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Follower<'_, '_> {
    fn drop(&mut self) {
        self.0.state().followers -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Prefaulting<'_, '_> {
    fn drop(&mut self) {
        self.0.state().prefaulting -= 1;
    }
}

impl Drop for StopOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stopped.store(true, Ordering::Relaxed);
            self.0.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_prefaulting_is_that_of_all_prefaulting_threads() {
        let cancel = CancelToken::new();
        let tracker = Tracker::new(0, &cancel, false);
        assert_eq!(tracker.prefault_share(), 0.0);
        tracker.may_prefault(2, Duration::from_secs(9));
        tracker.populated(Duration::from_secs(6));
        tracker.populated(Duration::from_secs(3));
        assert_eq!(tracker.prefault_share(), 0.5);
        // The rest, which is read from the disk later, adds to both.
        tracker.may_prefault(1, Duration::from_secs(2));
        tracker.populated(Duration::from_secs(1));
        assert_eq!(tracker.prefault_share(), 0.5);
        tracker.populated(Duration::from_secs(100));
        assert_eq!(tracker.prefault_share(), 1.0);
    }
}
