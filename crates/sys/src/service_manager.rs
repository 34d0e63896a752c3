//! What a service manager hands to a process that it starts: listening sockets, by the variables
//! `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES` (`sd_listen_fds(3)`).
#![expect(unsafe_code, reason = "takes over descriptors that were there when the process began")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;
/// More than any manager hands over.
const COUNT_MAX: i32 = 64;

/// The descriptors that were handed to this process and their names, once: a second call finds none.
/// They are closed on exec from here on.
///
/// It must be called before the process opens files of its own; where it was started by hand, or the
/// variables are for another process, there are none.
///
/// # Errors
/// `InvalidInput` where the variables make no sense; `EBADF` where a descriptor is not there.
pub fn take_descriptors() -> io::Result<Vec<(String, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let read = |name| std::env::var(name).ok();
    let for_us = read("LISTEN_PID").and_then(|pid| pid.parse().ok()) == Some(std::process::id());
    if !for_us || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let nonsense = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let count: i32 = read("LISTEN_FDS")
        .and_then(|count| count.parse().ok())
        .filter(|count| (0..=COUNT_MAX).contains(count))
        .ok_or_else(|| nonsense("LISTEN_FDS is no number of descriptors"))?;
    let names = read("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut taken = Vec::new();
    for fd in FIRST..FIRST + count {
        // SAFETY: only asked about.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is open, as was just seen; the variables say that it was opened for
        // this very process to own, and they are followed once only.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        taken.push((names.next().unwrap_or_default().to_owned(), owned));
    }
    Ok(taken)
}
