//! The limit on this process's descriptors (`RLIMIT_NOFILE`).

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::packet_socket;

/// The number of descriptors that must be free before a message is received: as many as a message can
/// have, and those that other threads may open between the check and the receive.
pub const ROOM_FOR_MESSAGE: u64 = packet_socket::DESCRIPTORS_MAX as u64 + 16;

/// Returns the number of descriptors that this process may have.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns `true` if an error means that no descriptor is free, in this process or on the machine.
pub fn is_exhausted(error: &io::Error) -> bool {
    let errors = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    errors.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Returns the number of open descriptors of this process, or one more.
///
/// # Errors
/// Those of `open(2)`, if `/proc` is not mounted or no descriptor is free to read it.
pub fn open_count() -> io::Result<u64> {
    const DIRECTORY: &str = "/proc/self/fd";
    // Before Linux 6.2 the directory has no size.
    match rustix::fs::stat(DIRECTORY)?.st_size {
        size if size > 0 => Ok(size as u64),
        _ => Ok(std::fs::read_dir(DIRECTORY)?.count() as u64),
    }
}

/// Returns `true` if there is room for all descriptors that a message can have. Otherwise the kernel
/// would close some of them on the receiving thread, which may block.
pub fn has_room_for_message() -> bool {
    open_count().is_ok_and(|open| open + ROOM_FOR_MESSAGE <= limit())
}

/// Raises the limit as far as possible without privileges, and returns it.
///
/// # Errors
/// Those of `setrlimit(2)`.
pub fn raise_limit() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_descriptors_are_counted() {
        let events: Vec<_> = (0..100).map(|_| crate::event_fd::create().unwrap()).collect();
        let count = open_count().unwrap();
        assert!(count >= events.len() as u64 && count <= limit(), "{count}");
    }
}
