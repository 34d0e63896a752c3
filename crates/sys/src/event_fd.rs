//! `eventfd(2)`: a counter that one side adds to and the other polls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Makes one that counts nothing yet, is closed on exec and never blocks.
///
/// # Errors
/// Descriptors or memory exhausted.
pub fn create() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds one. A counter that is at its end already says all that one more would, so that is no error.
///
/// # Errors
/// Those of `write(2)`.
pub fn signal(event: impl AsFd) -> io::Result<()> {
    crate::retry_interrupted(|| match rustix::io::write(&event, &1_u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    })
}

/// Sets the counter to zero; what it was.
///
/// # Errors
/// Those of `read(2)`, other than that it counts nothing.
pub fn drain(event: impl AsFd) -> io::Result<u64> {
    let mut count = [0; 8];
    crate::retry_interrupted(|| match rustix::io::read(&event, &mut count) {
        Ok(8) => Ok(u64::from_ne_bytes(count)),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    })
}

/// Whether a descriptor that another process sent is an eventfd, as `/proc/self/fd` names it.
///
/// # Errors
/// Where `/proc` is not there.
pub fn is_one(descriptor: impl AsFd) -> io::Result<bool> {
    let link = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
    let name = rustix::fs::readlink(link, Vec::new())?;
    Ok(name.to_bytes() == b"anon_inode:[eventfd]")
}

/// Lets it never block whoever signals it, at whichever end.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn never_block(event: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&event)?;
    Ok(rustix::fs::fcntl_setfl(&event, flags | OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_drained_once() {
        let event = create().unwrap();
        assert_eq!(drain(&event).unwrap(), 0);
        signal(&event).unwrap();
        signal(&event).unwrap();
        assert_eq!(drain(&event).unwrap(), 2);
        assert_eq!(drain(&event).unwrap(), 0);
    }

    #[test]
    fn a_counter_at_its_end_blocks_nobody() {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        never_block(&event).unwrap();
        signal(&event).unwrap();
        assert_eq!(drain(&event).unwrap(), u64::MAX - 1);
    }

    #[test]
    fn another_descriptor_is_none() {
        assert!(is_one(create().unwrap()).unwrap());
        let memfd = crate::memfd::create("event-test", crate::memfd::Backing::Shmem).unwrap();
        assert!(!is_one(memfd).unwrap());
    }
}
