//! How many descriptors this process may have (`RLIMIT_NOFILE`).

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::packet_socket;

/// How many descriptors must be free before a message is received: as many as it can have, and those that
/// other threads may open between the moment at which room is looked for and that at which the message is
/// received.
pub const ROOM_FOR_MESSAGE: u64 = packet_socket::DESCRIPTORS_MAX as u64 + 16;

/// Returns how many descriptors this process may have.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns whether an error says that no descriptor is left, in this process or on the machine.
pub fn is_exhausted(error: &io::Error) -> bool {
    let errors = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    errors.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Returns how many descriptors this process has open, or one more.
///
/// # Errors
/// Those of `open(2)`, if `/proc` is not mounted or no descriptor is left to read it.
pub fn open_count() -> io::Result<u64> {
    const DIRECTORY: &str = "/proc/self/fd";
    // Before Linux 6.2 the directory has no size.
    match rustix::fs::stat(DIRECTORY)?.st_size {
        size if size > 0 => Ok(size as u64),
        _ => Ok(std::fs::read_dir(DIRECTORY)?.count() as u64),
    }
}

/// Returns `true` if there is room for all descriptors that a message can have. The kernel would close
/// the others on the thread that receives the message, which may block.
pub fn has_room_for_message() -> bool {
    open_count().is_ok_and(|open| open + ROOM_FOR_MESSAGE <= limit())
}

/// Raises the limit as far as it goes without a privilege, and returns it.
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
