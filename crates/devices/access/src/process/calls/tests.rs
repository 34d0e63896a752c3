//! Tests with calls whose duration the test controls.

use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{ScopedJoinHandle, ThreadId};

use super::*;

/// The timeout of each wait in a test.
const LONG: Duration = Duration::from_secs(60);

fn new() -> &'static Calls {
    Box::leak(Box::new(Calls::new(std::process::id())))
}

/// Returns a target in a process whose user has no other process.
fn of(process: u64, memory: u64) -> Target {
    of_user(u32::try_from(process).unwrap(), process, memory)
}

fn of_user(uid: u32, process: u64, memory: u64) -> Target {
    let callee = Callee { process: Identity::for_tests(process), user: User::from_uid(uid) };
    Target { callee, memory, range: 0..10 }
}

fn long() -> Option<Instant> {
    Some(Instant::now() + LONG)
}

/// Work that sends a message when it begins, and ends when `end` is dropped.
struct Stuck {
    work: Option<Work>,
    begun: Receiver<ThreadId>,
    end: Option<Sender<()>>,
}

impl Stuck {
    fn new() -> Self {
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let work = Box::new(move |is_wanted: &dyn Fn() -> bool| {
            begin.send(thread::current().id()).unwrap();
            let _ = ended.recv();
            (vec![u8::from(is_wanted())], Ok(1))
        });
        Self { work: Some(work), begun, end: Some(end) }
    }

    fn run<'s>(
        &mut self,
        scope: &'s thread::Scope<'s, '_>,
        calls: &'static Calls,
        target: Target,
    ) -> ScopedJoinHandle<'s, Result<Ended, Reason>> {
        let work = self.work.take().unwrap();
        scope.spawn(move || calls.run(target, long(), work))
    }

    fn wait_until_begun(&self) -> ThreadId {
        self.begun.recv_timeout(LONG).unwrap()
    }
}

/// Runs a call and abandons it.
fn abandon(calls: &'static Calls, target: Target) -> Stuck {
    let mut stuck = Stuck::new();
    let memory = target.memory;
    thread::scope(|scope| {
        let run = stuck.run(scope, calls, target);
        stuck.wait_until_begun();
        calls.cancel(memory, &(0..1));
        assert_eq!(run.join().unwrap().err(), Some(Reason::Revoked));
    });
    stuck
}

fn quick(calls: &'static Calls, target: Target) -> Result<ThreadId, Reason> {
    let (tell, told) = mpsc::channel();
    let work = move |is_wanted: &dyn Fn() -> bool| {
        assert!(is_wanted());
        tell.send(thread::current().id()).unwrap();
        (vec![3; 4], Ok(4))
    };
    let ended = calls.run(target, long(), Box::new(work))?;
    assert_eq!((ended.bytes, ended.moved, ended.is_cancelled), (vec![3; 4], Ok(4), false));
    Ok(told.recv().unwrap())
}

fn until(calls: &Calls, is_so: impl Fn(&State) -> bool) {
    let end = Instant::now() + LONG;
    while !is_so(&calls.lock()) {
        assert!(Instant::now() < end, "it takes too long");
        thread::sleep(Duration::from_millis(1));
    }
}

fn nothing_is_left(calls: &Calls) {
    until(calls, |state| state.all.begun == 0);
    let state = calls.lock();
    assert!(state.calls.is_empty() && state.processes.is_empty() && state.users.is_empty());
    assert!(state.waiting.is_empty() && state.ready.is_empty());
    assert_eq!(state.all.abandoned, 0);
}

#[test]
fn calls_one_after_the_other_run_on_one_other_thread() {
    let calls = new();
    let threads: HashSet<_> = (0..100).map(|_| quick(calls, of(1, 1)).unwrap()).collect();
    // A thread may exit after it had no call for a long time.
    assert!(threads.len() < 10 && calls.lock().threads <= 1);
    assert!(!threads.contains(&thread::current().id()));
    nothing_is_left(calls);
    until(calls, |state| state.threads == 0);
    quick(calls, of(1, 1)).unwrap();
}

#[test]
fn a_cancelled_call_that_does_not_return_is_abandoned_until_it_does() {
    let calls = new();
    let mut stuck = abandon(calls, of(1, 1));
    let all = calls.lock().all;
    assert_eq!((all.abandoned, all.begun), (1, 1));
    quick(calls, of(1, 1)).unwrap();
    stuck.end = None;
    nothing_is_left(calls);
}

#[test]
fn a_cancelled_call_that_returns_in_time_reports_its_bytes() {
    let calls = new();
    let mut stuck = Stuck::new();
    thread::scope(|scope| {
        let run = stuck.run(scope, calls, of(1, 1));
        stuck.wait_until_begun();
        // Calls in other memory, and in another range.
        calls.cancel(2, &(0..10));
        calls.cancel(1, &(10..20));
        assert!(calls.is_wanted(0));
        let cancel = || {
            calls.cancel(1, &(9..10));
            // So that the call is not abandoned on a slow machine.
            let mut state = calls.lock();
            let call = state.calls.values_mut().next().unwrap();
            call.cancelled_at = Some(Instant::now() + LONG);
        };
        cancel();
        stuck.end = None;
        let ended = run.join().unwrap().unwrap();
        assert_eq!((ended.bytes, ended.moved, ended.is_cancelled), (vec![0], Ok(1), true));
    });
    nothing_is_left(calls);
}

#[test]
fn calls_beyond_those_of_a_process_wait_in_turn() {
    let calls = new();
    let mut stuck: Vec<_> = (0..CALLS_PER_PROCESS_MAX).map(|_| Stuck::new()).collect();
    let (mut next, mut cancelled) = (Stuck::new(), Stuck::new());
    thread::scope(|scope| {
        let running: Vec<_> =
            stuck.iter_mut().map(|stuck| stuck.run(scope, calls, of(1, 1))).collect();
        for stuck in &stuck {
            stuck.wait_until_begun();
        }
        let cancelled = cancelled.run(scope, calls, of(1, 2));
        until(calls, |state| state.waiting.len() == 1);
        let waiting = next.run(scope, calls, of(1, 3));
        until(calls, |state| state.waiting.len() == 2);
        // Calls to another process do not wait.
        quick(calls, of(2, 4)).unwrap();
        calls.cancel(2, &(0..1));
        assert_eq!(cancelled.join().unwrap().err(), Some(Reason::Revoked));
        assert_eq!(calls.lock().all.abandoned, 0, "it never began");
        assert_eq!(calls.lock().all.begun, CALLS_PER_PROCESS_MAX);
        stuck[2].end = None;
        next.wait_until_begun();
        next.end = None;
        assert_eq!(waiting.join().unwrap().unwrap().moved, Ok(1));
        stuck.iter_mut().for_each(|stuck| stuck.end = None);
        running.into_iter().for_each(|run| drop(run.join().unwrap().unwrap()));
    });
    assert!(cancelled.begun.try_recv().is_err());
    nothing_is_left(calls);
}

#[test]
fn calls_to_a_process_fail_while_all_its_calls_are_abandoned() {
    let calls = new();
    let mut stuck: Vec<_> = (1..CALLS_PER_PROCESS_MAX).map(|_| abandon(calls, of(1, 1))).collect();
    quick(calls, of(1, 2)).unwrap();
    let (mut last, mut waiting) = (Stuck::new(), Stuck::new());
    thread::scope(|scope| {
        let last_run = last.run(scope, calls, of(1, 3));
        last.wait_until_begun();
        let waiting = waiting.run(scope, calls, of(1, 4));
        until(calls, |state| state.waiting.len() == 1);
        calls.cancel(3, &(0..1));
        assert_eq!(last_run.join().unwrap().err(), Some(Reason::Revoked));
        assert_eq!(waiting.join().unwrap().err(), Some(Reason::Unavailable));
    });
    assert_eq!(quick(calls, of(1, 2)), Err(Reason::Unavailable));
    assert_eq!(calls.lock().threads, CALLS_PER_PROCESS_MAX);
    quick(calls, of(2, 2)).unwrap();
    stuck[0].end = None;
    until(calls, |state| state.all.abandoned < CALLS_PER_PROCESS_MAX);
    quick(calls, of(1, 2)).unwrap();
    drop((stuck, last));
    nothing_is_left(calls);
}

#[test]
fn each_user_has_a_limit_of_calls() {
    let calls = new();
    let target = |at: usize| of_user(1, (at / CALLS_PER_PROCESS_MAX) as u64, 1);
    let mut stuck: Vec<_> = (0..CALLS_PER_USER_MAX).map(|_| Stuck::new()).collect();
    thread::scope(|scope| {
        let run = |(at, stuck): (usize, &mut Stuck)| stuck.run(scope, calls, target(at));
        let runs: Vec<_> = stuck.iter_mut().enumerate().map(run).collect();
        for stuck in &stuck {
            stuck.wait_until_begun();
        }
        quick(calls, of_user(2, 2000, 2)).unwrap();
        calls.cancel(1, &(0..1));
        for run in runs {
            assert_eq!(run.join().unwrap().err(), Some(Reason::Revoked));
        }
    });
    assert_eq!(quick(calls, of_user(1, 1000, 2)), Err(Reason::Unavailable));
    quick(calls, of_user(2, 2000, 2)).unwrap();
    assert_eq!(calls.lock().all.abandoned, CALLS_MAX / 4);
    drop(stuck);
    nothing_is_left(calls);
    quick(calls, of_user(1, 1000, 2)).unwrap();
}

#[test]
fn all_processes_together_have_a_limit() {
    let calls = new();
    let target = |at: usize| of((at / CALLS_PER_PROCESS_MAX) as u64, 1);
    let mut stuck: Vec<_> = (0..CALLS_MAX).map(|_| Stuck::new()).collect();
    let mut waiting = Stuck::new();
    thread::scope(|scope| {
        let runs: Vec<_> = stuck
            .iter_mut()
            .enumerate()
            .map(|(at, stuck)| stuck.run(scope, calls, target(at)))
            .collect();
        for stuck in &stuck {
            stuck.wait_until_begun();
        }
        let waiting = waiting.run(scope, calls, of(9999, 2));
        until(calls, |state| state.waiting.len() == 1);
        assert_eq!(calls.lock().threads, CALLS_MAX);
        calls.cancel(1, &(0..1));
        for run in runs {
            assert_eq!(run.join().unwrap().err(), Some(Reason::Revoked));
        }
        assert_eq!(waiting.join().unwrap().err(), Some(Reason::Unavailable));
    });
    assert_eq!(quick(calls, of(9999, 2)), Err(Reason::Unavailable));
    assert_eq!(calls.lock().threads, CALLS_MAX);
    stuck.pop();
    until(calls, |state| state.all.abandoned < CALLS_MAX);
    quick(calls, of(9999, 2)).unwrap();
    drop(stuck);
    nothing_is_left(calls);
    until(calls, |state| state.threads <= IDLE_THREADS_MAX);
}

#[test]
fn a_call_is_abandoned_when_its_time_is_over() {
    let calls = new();
    let mut stuck = Stuck::new();
    let work = stuck.work.take().unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(calls.run(of(1, 1), Some(soon), work).err(), Some(Reason::TimedOut));
    assert!(soon <= Instant::now());
    stuck.end = None;
    nothing_is_left(calls);
    // Without a deadline.
    let ended = calls.run(of(1, 1), None, Box::new(|_| (Vec::new(), Err(Reason::Permission))));
    assert_eq!(ended.unwrap().moved, Err(Reason::Permission));
}

#[test]
fn a_call_that_panics_leaves_no_caller_waiting() {
    let calls = new();
    let work = |_: &dyn Fn() -> bool| -> Outcome { std::panic::resume_unwind(Box::new("")) };
    let ended = calls.run(of(1, 1), None, Box::new(work));
    assert_eq!(ended.err(), Some(Reason::BackingLost));
    quick(calls, of(1, 1)).unwrap();
    nothing_is_left(calls);
}

#[test]
fn a_forked_child_starts_with_a_state_of_its_own() {
    let ours: *const Calls = Calls::of_this_process();
    assert_eq!(ours, ptr::from_ref(Calls::of_this_process()));
    let of_parent = Box::into_raw(Box::new(Calls::new(0)));
    CALLS.store(of_parent, Ordering::Release);
    // SAFETY: the value was just made, and is leaked.
    let lock_that_was_taken = unsafe { &*of_parent }.lock();
    let new: *const Calls = Calls::of_this_process();
    assert!(new != ours && new != of_parent.cast_const());
    quick(Calls::of_this_process(), of(1, 1)).unwrap();
    drop(lock_that_was_taken);
}
