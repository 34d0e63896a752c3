//! `ioctl(2)`, and the numbers of requests of VFIO and iommufd, which share a letter.
//!
//! The layouts of their arguments are written by hand in the modules that use them: the crates with
//! bindings would save few lines.
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl::opcode;

/// `_IO(';', number)`: `VFIO_TYPE` and `IOMMUFD_TYPE`.
pub(crate) const fn request(number: u8) -> libc::Ioctl {
    opcode::none(b';', number) as libc::Ioctl
}

/// `_IO(VFIO_TYPE, VFIO_BASE + nth)`.
pub(crate) const fn vfio_request(nth: u8) -> libc::Ioctl {
    request(100 + nth)
}

/// An ioctl whose argument is a number.
pub(crate) fn call(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    arg: libc::c_ulong,
) -> io::Result<i32> {
    // SAFETY: the requests that come here take their argument by value.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, arg) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// An ioctl whose argument is read, and perhaps written.
///
/// # Safety
/// `arg` must be valid for what the request reads and writes.
pub(crate) unsafe fn exchange(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    arg: *mut libc::c_void,
) -> io::Result<i32> {
    // SAFETY: the caller's promise.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, arg) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
