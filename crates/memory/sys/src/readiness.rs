//! `poll(2)` on any number of descriptors.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// A descriptor and what to wait for; that its other end is gone is always waited for.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// Wait until there is something to read.
    pub read: bool,
    /// Wait until something can be written.
    pub write: bool,
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Something can be read, also the end.
    pub read: bool,
    /// Something can be written.
    pub write: bool,
    /// The other end is gone, or the descriptor is in error. There may still be something to read.
    pub gone: bool,
}

/// Waits until one of `watches` is ready or `deadline` is there. What each is ready for, in their
/// order; a signal ends the wait, too, with none ready.
///
/// # Errors
/// Those of `poll(2)`.
pub fn wait(watches: &[Watch<'_>], deadline: Option<Instant>) -> io::Result<Vec<Ready>> {
    let mut polled: Vec<PollFd<'_>> = watches
        .iter()
        .map(|watch| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, watch.read);
            flags.set(PollFlags::OUT, watch.write);
            PollFd::from_borrowed_fd(watch.fd, flags)
        })
        .collect();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    match rustix::event::poll(&mut polled, left.map(timespec).as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ready = polled.iter().map(|polled| {
        let flags = polled.revents();
        Ready {
            read: flags.contains(PollFlags::IN),
            write: flags.contains(PollFlags::OUT),
            gone: flags.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL),
        }
    });
    Ok(ready.collect())
}

fn timespec(left: Duration) -> Timespec {
    let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: left.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{event_fd, packet_socket};

    #[test]
    fn each_descriptor_says_what_it_is_ready_for() {
        let (ours, theirs) = packet_socket::pair().unwrap();
        let event = event_fd::create().unwrap();
        let watches = [
            Watch { fd: theirs.as_fd(), read: true, write: false },
            Watch { fd: theirs.as_fd(), read: false, write: true },
            Watch { fd: event.as_fd(), read: true, write: false },
        ];
        let nothing = Ready::default();
        let writable = Ready { write: true, ..nothing };
        assert_eq!(wait(&watches, None).unwrap(), [nothing, writable, nothing]);
        event_fd::signal(&event).unwrap();
        let readable = Ready { read: true, ..nothing };
        assert_eq!(wait(&watches[2..], None).unwrap(), [readable]);
        assert_eq!(wait(&watches[..1], Some(Instant::now())).unwrap(), [nothing]);
        drop(ours);
        assert!(wait(&watches[..1], None).unwrap()[0].gone);
    }
}
