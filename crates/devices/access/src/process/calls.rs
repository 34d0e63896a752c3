//! Calls that another process can block in the kernel. They run on threads that can be abandoned there.
//!
//! A page fault in another process's memory may wait for that process, and no signal but SIGKILL ends
//! the wait. So the calls run on threads of this module, with buffers of their own, and the accessing
//! threads wait for them:
//!
//! ```text
//!             4 of its process, or 64
//!             of its user, run already                a thread is free
//!   run ────────────────► Waiting ───────────────► Ready ─────────► Running ──► Ended ──► run returns
//!                            │                       │                 │
//!                            └── cancelled or late: removed            └── cancelled or late: abandoned
//! ```
//!
//! An abandoned call keeps its thread until it returns, and counts against the limits until then. If as
//! many calls are abandoned as a process or its user may have, the next calls fail at once.
//!
//! A forked child has none of the threads, and perhaps a locked mutex. So it starts with a new state:
//! the process ID tells them apart (except in a new PID namespace where the child has its parent's ID).
#![expect(unsafe_code, reason = "keeps one value for each process that a fork makes")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::closing::User;
use longshore_sys::process_memory::Identity;
use longshore_sys::signals;

use crate::fault::Reason;

/// The most calls to one process at a time, with those that were abandoned.
const CALLS_PER_PROCESS_MAX: usize = 4;
/// The most calls to all processes at a time, with those that were abandoned.
const CALLS_MAX: usize = 256;
/// The most calls to all processes of one user at a time, with those that were abandoned.
const CALLS_PER_USER_MAX: usize = CALLS_MAX / 4;
/// The time that a cancelled call has to return before it is abandoned. If it returns in time, the bytes
/// that it moved are reported, and nothing is written later. It takes microseconds unless the other
/// process blocks it or its thread gets no CPU.
const CANCEL_GRACE: Duration = Duration::from_millis(500);
/// The time after which a thread without calls exits.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// The maximum number of idle threads.
const IDLE_THREADS_MAX: usize = 8;
/// The stack of each thread, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// The name of the threads.
const NAME: &str = "longshore-call";

/// The function that a thread runs. It returns its buffer and the number of bytes that were moved. Its
/// argument returns `true` while the access waits for the call.
pub(super) type Work = Box<dyn FnOnce(&dyn Fn() -> bool) -> Outcome + Send>;
pub(super) type Outcome = (Vec<u8>, Result<usize, Reason>);

/// A call that has returned.
pub(super) struct Ended {
    pub(super) bytes: Vec<u8>,
    pub(super) moved: Result<usize, Reason>,
    /// `true` if it was cancelled meanwhile, so that the access must not make another call.
    pub(super) is_cancelled: bool,
}

/// The memory that a call accesses.
pub(super) struct Target {
    pub(super) callee: Callee,
    /// A number that is unique to the [`ProcessMemory`](super::ProcessMemory).
    pub(super) memory: u64,
    pub(super) range: Range<u64>,
}

/// The process that is called, and the user for whom calls to it are counted.
#[derive(Clone, Copy)]
pub(super) struct Callee {
    pub(super) process: Identity,
    pub(super) user: User,
}

/// The calls of one process, and the threads that they run on. It is never freed.
pub(super) struct Calls {
    pid: u32,
    state: Mutex<State>,
    has_ready: Condvar,
}

#[derive(Default)]
struct State {
    /// The calls that an access waits for.
    calls: HashMap<u64, Call>,
    next_id: u64,
    /// The calls that wait for others to return, in the order of their arrival.
    waiting: VecDeque<u64>,
    /// The calls that the next free threads run.
    ready: VecDeque<u64>,
    /// The counts of each process that has calls.
    processes: HashMap<Identity, Counts>,
    /// The counts of each user whose processes have calls.
    users: BTreeMap<User, Counts>,
    all: Counts,
    threads: usize,
    idle: usize,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    /// The number of ready, running and abandoned calls.
    begun: usize,
    abandoned: usize,
}

struct Call {
    target: Target,
    phase: Phase,
    cancelled_at: Option<Instant>,
    changed: Arc<Condvar>,
}

enum Phase {
    Waiting(Work),
    Ready(Work),
    Running,
    Ended(Result<Outcome, Reason>),
}

static CALLS: AtomicPtr<Calls> = AtomicPtr::new(ptr::null_mut());

impl Calls {
    /// Returns the calls of this process. A forked child has its own.
    pub(super) fn of_this_process() -> &'static Self {
        let pid = std::process::id();
        loop {
            let current = CALLS.load(Ordering::Acquire);
            // SAFETY: it is null or points to a value that is never freed.
            if let Some(calls) = unsafe { current.as_ref() }
                && calls.pid == pid
            {
                return calls;
            }
            let new = Box::into_raw(Box::new(Self::new(pid)));
            let swapped = CALLS.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_err() {
                // SAFETY: the pointer was just made from a box, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn new(pid: u32) -> Self {
        Self { pid, state: Mutex::default(), has_ready: Condvar::new() }
    }

    /// Runs `work` on another thread, and waits for it until `deadline`.
    ///
    /// # Errors
    /// [`Reason::Revoked`] if it was cancelled, [`Reason::TimedOut`] after the deadline; `work` may
    /// still be running then. [`Reason::Unavailable`] if too many abandoned calls are still running.
    pub(super) fn run(
        &'static self,
        target: Target,
        deadline: Option<Instant>,
        work: Work,
    ) -> Result<Ended, Reason> {
        let changed = Arc::new(Condvar::new());
        let mut state = self.lock();
        let id = self.enter(&mut state, target, Arc::clone(&changed), work)?;
        loop {
            let now = Instant::now();
            let until = match state.calls.get(&id) {
                None | Some(Call { phase: Phase::Ended(_), .. }) => return state.take(id),
                Some(Call { cancelled_at: None, .. }) => deadline,
                Some(Call { phase: Phase::Running, cancelled_at: Some(at), .. }) => {
                    let grace = *at + CANCEL_GRACE;
                    Some(deadline.map_or(grace, |deadline| deadline.min(grace)))
                }
                Some(_) => Some(now),
            };
            let left = until.map(|until| until.saturating_duration_since(now));
            state = match left {
                Some(Duration::ZERO) => return Err(state.give_up(id)),
                Some(left) => {
                    let waited = changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Cancels the calls that access any of `range`.
    pub(super) fn cancel(&self, memory: u64, range: &Range<u64>) {
        let now = Instant::now();
        for call in self.lock().calls.values_mut() {
            let asked = &call.target.range;
            let meets = asked.start < range.end && range.start < asked.end;
            if call.target.memory == memory && meets && call.cancelled_at.is_none() {
                call.cancelled_at = Some(now);
                call.changed.notify_one();
            }
        }
    }

    /// Begins a call, or adds it to the waiting ones.
    fn enter(
        &'static self,
        state: &mut State,
        target: Target,
        changed: Arc<Condvar>,
        work: Work,
    ) -> Result<u64, Reason> {
        let callee = target.callee;
        if state.is_stuck(callee) {
            return Err(Reason::Unavailable);
        }
        let id = state.next_id;
        state.next_id += 1;
        let phase = Phase::Waiting(work);
        state.calls.insert(id, Call { target, phase, cancelled_at: None, changed });
        if !state.has_room(callee) {
            state.waiting.push_back(id);
            return Ok(id);
        }
        state.begin(id);
        if state.ready.len() <= state.idle {
            self.has_ready.notify_one();
            return Ok(id);
        }
        let thread = thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES);
        match thread.spawn(|| self.serve()) {
            Ok(_) => state.threads += 1,
            // A thread that is not in an abandoned call takes it later.
            Err(_) if state.threads > state.all.abandoned => {}
            Err(_) => {
                state.give_up(id);
                return Err(Reason::Unavailable);
            }
        }
        Ok(id)
    }

    /// Runs calls; the main function of each thread.
    fn serve(&self) {
        // Otherwise the kernel could choose this thread for a signal, and its handler would not run for
        // a long time.
        let _ = signals::block_all();
        let mut state = self.lock();
        loop {
            if let Some((id, callee, work)) = state.start() {
                drop(state);
                let ended = catch_unwind(AssertUnwindSafe(|| work(&|| self.is_wanted(id))));
                state = self.lock();
                state.end(id, callee, ended.map_err(|_| Reason::BackingLost));
                continue;
            }
            if state.idle == IDLE_THREADS_MAX {
                break;
            }
            state.idle += 1;
            let waited = self.has_ready.wait_timeout(state, IDLE_TIME);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = after;
            state.idle -= 1;
            if timeout.timed_out() && state.ready.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }

    fn is_wanted(&self, id: u64) -> bool {
        self.lock().calls.get(&id).is_some_and(|call| call.cancelled_at.is_none())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns `true` if one more call can begin.
    fn has_room(&self, callee: Callee) -> bool {
        self.all.begun < CALLS_MAX && self.is_below(callee, |counts| counts.begun)
    }

    /// Returns `true` if only the return of an abandoned call could make room.
    fn is_stuck(&self, callee: Callee) -> bool {
        self.all.abandoned == CALLS_MAX || !self.is_below(callee, |counts| counts.abandoned)
    }

    /// Returns `true` if the selected counts of the process and of its user are below their limits.
    fn is_below(&self, callee: Callee, of: impl Fn(&Counts) -> usize) -> bool {
        self.processes.get(&callee.process).map_or(0, &of) < CALLS_PER_PROCESS_MAX
            && self.users.get(&callee.user).map_or(0, &of) < CALLS_PER_USER_MAX
    }

    /// Changes the counts of the process, of its user, and of all.
    fn count(&mut self, callee: Callee, change: impl Fn(&mut Counts)) {
        change(&mut self.all);
        change(self.processes.entry(callee.process).or_default());
        change(self.users.entry(callee.user).or_default());
        self.processes.retain(|process, counts| *process != callee.process || counts.begun > 0);
        self.users.retain(|user, counts| *user != callee.user || counts.begun > 0);
    }

    /// Lets the next free thread run a waiting call. There must be room for it.
    fn begin(&mut self, id: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Phase::Waiting(work) = std::mem::replace(&mut call.phase, Phase::Running) {
            call.phase = Phase::Ready(work);
        }
        let callee = call.target.callee;
        self.ready.push_back(id);
        self.count(callee, |counts| counts.begun += 1);
    }

    /// Takes the next call that is ready.
    fn start(&mut self) -> Option<(u64, Callee, Work)> {
        let id = self.ready.pop_front()?;
        let call = self.calls.get_mut(&id)?;
        match std::mem::replace(&mut call.phase, Phase::Running) {
            Phase::Ready(work) => Some((id, call.target.callee, work)),
            _ => None,
        }
    }

    /// Stores the outcome of a call that was started.
    fn end(&mut self, id: u64, callee: Callee, outcome: Result<Outcome, Reason>) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.phase = Phase::Ended(outcome);
            call.changed.notify_one();
        } else {
            self.count(callee, |counts| counts.abandoned -= 1);
        }
        self.make_room(callee);
    }

    /// Takes the outcome of a call.
    fn take(&mut self, id: u64) -> Result<Ended, Reason> {
        match self.calls.remove(&id) {
            Some(Call { phase: Phase::Ended(outcome), cancelled_at, .. }) => {
                let (bytes, moved) = outcome?;
                Ok(Ended { bytes, moved, is_cancelled: cancelled_at.is_some() })
            }
            _ => Err(Reason::Unavailable),
        }
    }

    /// Stops waiting for a call. Returns the reason.
    fn give_up(&mut self, id: u64) -> Reason {
        let Some(call) = self.calls.remove(&id) else { return Reason::Unavailable };
        let callee = call.target.callee;
        match call.phase {
            Phase::Waiting(_) => self.waiting.retain(|waiting| *waiting != id),
            Phase::Ready(_) => {
                self.ready.retain(|ready| *ready != id);
                self.make_room(callee);
            }
            Phase::Running => {
                self.count(callee, |counts| counts.abandoned += 1);
                self.refuse_stuck();
            }
            Phase::Ended(_) => {}
        }
        if call.cancelled_at.is_some() { Reason::Revoked } else { Reason::TimedOut }
    }

    /// Releases the place of a call that has returned or was never started, and begins the next waiting
    /// call that has room.
    fn make_room(&mut self, callee: Callee) {
        self.count(callee, |counts| counts.begun -= 1);
        let may_begin =
            |id: &u64| self.calls.get(id).is_some_and(|call| self.has_room(call.target.callee));
        if let Some(at) = self.waiting.iter().position(may_begin)
            && let Some(id) = self.waiting.remove(at)
        {
            self.begin(id);
        }
    }

    /// Fails the waiting calls that could begin only after an abandoned call returns.
    fn refuse_stuck(&mut self) {
        for id in std::mem::take(&mut self.waiting) {
            let callee = self.calls.get(&id).map(|call| call.target.callee);
            if callee.is_some_and(|callee| !self.is_stuck(callee)) {
                self.waiting.push_back(id);
            } else if let Some(call) = self.calls.get_mut(&id) {
                call.phase = Phase::Ended(Err(Reason::Unavailable));
                call.changed.notify_one();
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
