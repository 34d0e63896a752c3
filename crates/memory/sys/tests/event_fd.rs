//! Eventfds that untrusted processes share, in a process that has no AIO at first. Alone in its process,
//! because the context is that of the process, and so is the limit that keeps it from being made.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]

use std::fs;
use std::os::fd::OwnedFd;

use longshore_sys::closing::{Disposable, User};
use longshore_sys::event_fd::{self, SharedEvent};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// An eventfd that blocks, and whose counter is at its end.
fn full() -> OwnedFd {
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    event
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_process_that_had_no_aio_at_first_has_it_later() {
    let (hostile, other) = (User::from_uid(1), User::from_uid(2));
    let full_ones: Vec<_> = (0..32).map(|_| full()).collect();
    let shared = |event: &OwnedFd, user| {
        SharedEvent::new(Disposable::of_user(event.try_clone().unwrap(), user))
    };
    let hostile: Vec<_> = full_ones.iter().map(|it| shared(it, hostile)).collect();
    let event = event_fd::create().unwrap();
    let of_other = shared(&event, other);

    let before = threads();

    // Without descriptors there is no context.
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
    // That of the other user may not have ended.
    assert!((1..=5).contains(&waiting), "{waiting} threads");

    // As many signals as there are, and at once, since the kernel adds them.
    for event in &hostile {
        event.signal().unwrap();
    }
    (0..1000).for_each(|_| of_other.signal().unwrap());
    assert_eq!(event_fd::drain(&event).unwrap(), 1000);
    assert!(event_fd::prepare() && threads() - before <= waiting);
}
