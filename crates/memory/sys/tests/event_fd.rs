//! Eventfds that untrusted processes share, in a process in which AIO is not available at first. The
//! only test of its program, because the AIO context belongs to the process, and so does the limit that
//! prevents it from being made.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]

use std::fs;
use std::os::fd::OwnedFd;

use longshore_sys::closing::{Disposable, User};
use longshore_sys::event_fd::{self, SharedEvent};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns a blocking eventfd with a full counter.
fn full() -> OwnedFd {
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    event
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn aio_is_used_as_soon_as_it_is_available() {
    let (hostile, other) = (User::from_uid(1), User::from_uid(2));
    let full_ones: Vec<_> = (0..32).map(|_| full()).collect();
    let shared = |event: &OwnedFd, user| {
        SharedEvent::new(Disposable::of_user(event.try_clone().unwrap(), user))
    };
    let hostile: Vec<_> = full_ones.iter().map(|it| shared(it, hostile)).collect();
    let event = event_fd::create().unwrap();
    let of_other = shared(&event, other);

    let before = threads();

    // Without descriptors no AIO context can be made.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    assert!(!event_fd::prepare());
    for event in &hostile {
        event.signal().unwrap();
    }
    of_other.signal().unwrap();
    setrlimit(Resource::Nofile, limit).unwrap();
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&minute)).unwrap();
    assert_eq!(event_fd::drain(&event).unwrap(), 1);
    let waiting = threads() - before;
    // The thread of the other user may not have ended.
    assert!((1..=5).contains(&waiting), "{waiting} threads");

    // Now all signals arrive at once, because the kernel adds them.
    for event in &hostile {
        event.signal().unwrap();
    }
    (0..1000).for_each(|_| of_other.signal().unwrap());
    assert_eq!(event_fd::drain(&event).unwrap(), 1000);
    assert!(event_fd::prepare() && threads() - before <= waiting);
}
