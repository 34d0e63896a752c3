//! `poll(2)` on any number of descriptors.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// A descriptor, and the conditions to wait for. A closed other end always ends the wait.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// `true` to wait until data can be read.
    pub read: bool,
    /// `true` to wait until data can be written.
    pub write: bool,
}

/// The readiness of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// `true` if data or the end of the stream can be read.
    pub read: bool,
    /// `true` if data can be written.
    pub write: bool,
    /// `true` if the other end is closed, or the descriptor is in error. There may still be data to
    /// read.
    pub gone: bool,
}

/// Waits until one of `watches` is ready or `deadline` has passed. Returns the readiness of each, in
/// their order. A signal ends the wait, too, and then none is ready.
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
    fn the_readiness_of_each_descriptor_is_returned() {
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
