//! The system call `openat2(2)`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::retry_interrupted;

/// Opens a file by its path from the directory `at`.
///
/// # Errors
/// [`Unsupported`](io::ErrorKind::Unsupported) if the kernel (before Linux 5.6) or a seccomp filter does not
/// support the call; those of `openat2(2)`.
pub(crate) fn openat2(
    at: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    retry_interrupted(|| match rustix::fs::openat2(at, path, flags, mode, resolve) {
        Err(Errno::NOSYS) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a filter of system calls, such as RestrictSUIDSGID= of systemd, refuses openat2, or the kernel is \
             older than Linux 5.6",
        )),
        opened => Ok(opened?),
    })
}
