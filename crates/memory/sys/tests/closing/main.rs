//! Files whose last close waits for an epoll of an untrusted process. These tests have their own
//! program, because they count its threads.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use held_epoll::HeldEpoll;
use longshore_sys::closing::{self, Disposable, User};
use longshore_sys::event_fd::{self, SharedEvent};
use longshore_sys::{descriptors, unix_socket};

mod held_epoll;

const PATIENCE: Duration = Duration::from_secs(60);

/// Locked by each test, because tests count the threads of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Fails the test if `work` takes too long.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(PATIENCE).expect("it waits for ever")
}

fn is_busy_until_freed(user: User, held: HeldEpoll) {
    assert!(closing::is_busy(user), "a close waits for the lock");
    drop(held);
    let begin = Instant::now();
    while closing::is_busy(user) {
        assert!(begin.elapsed() < PATIENCE, "the close ends with the lock");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_eventfd_that_a_held_epoll_lists_is_closed_without_waiting() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let user = User::from_uid(4_000_000_031);
    let event = [event_fd::create().unwrap()];
    let Some(held) = HeldEpoll::of(&event) else { return };
    let [event] = event.map(|event| SharedEvent::new(Disposable::of_user(event, user)));
    in_time(move || drop(event));
    is_busy_until_freed(user, held);
}

#[test]
fn a_received_eventfd_that_a_held_epoll_lists_is_closed_without_waiting() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let user = User::from_uid(4_000_000_032);
    let event = [event_fd::create().unwrap()];
    let Some(held) = HeldEpoll::of(&event) else { return };
    let (ours, theirs) = UnixStream::pair().unwrap();
    unix_socket::send(&theirs, b"x", &[event[0].as_fd()]).unwrap();
    // After this, the descriptor in the queue is the last one.
    drop(event);
    in_time(move || {
        let mut received = Vec::new();
        unix_socket::receive(&ours, user, &mut [0], &mut received, None).unwrap();
        assert_eq!(received.len(), 1);
    });
    is_busy_until_freed(user, held);
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn many_eventfds_of_a_user_are_closed_by_few_threads() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const COUNT: usize = 2048;
    if descriptors::raise_limit().unwrap() < 2 * COUNT as u64 {
        return println!("SKIPPED: this process may have too few descriptors");
    }
    let user = User::from_uid(4_000_000_033);
    let events: Vec<OwnedFd> = (0..COUNT).map(|_| event_fd::create().unwrap()).collect();
    // Each closing thread blocks, and so can be counted.
    let Some(held) = HeldEpoll::of(&events) else { return };
    let events = events.into_iter().map(|event| SharedEvent::new(Disposable::of_user(event, user)));
    let events = events.collect();
    let before = threads();
    in_time(move || SharedEvent::close_all(events));
    assert!(closing::may_receive(user), "the next descriptors are received at once");
    let begin = Instant::now();
    // A thread may start only after its descriptors were sent.
    while descriptors::open_count().unwrap() > COUNT as u64 / 2 || threads() <= before {
        assert!(begin.elapsed() < PATIENCE, "threads close the descriptors");
        thread::sleep(Duration::from_millis(1));
    }
    // Each closes 253 descriptors, so there are nine. The kernel and the test runner may start a few
    // others.
    let started = threads().saturating_sub(before);
    assert!(started <= 64, "{started} threads for 2,048 descriptors");
    is_busy_until_freed(user, held);
}
