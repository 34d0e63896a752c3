//! `ioctl(2)`, and the request numbers of VFIO and iommufd, which share a type letter.
//!
//! The modules that use them define the layouts of the arguments by hand, because crates with bindings
//! would save only a few lines.
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl::opcode;

/// Returns the request `_IO(';', number)`; the letter is both `VFIO_TYPE` and `IOMMUFD_TYPE`.
pub(crate) const fn request(number: u8) -> libc::Ioctl {
    opcode::none(b';', number) as libc::Ioctl
}

/// Returns the request `_IO(VFIO_TYPE, VFIO_BASE + nth)`.
pub(crate) const fn vfio_request(nth: u8) -> libc::Ioctl {
    request(100 + nth)
}

/// Makes an ioctl whose argument is a number.
pub(crate) fn call(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    arg: libc::c_ulong,
) -> io::Result<i32> {
    // SAFETY: all requests in this crate that use this function take their argument by value.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, arg) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Makes an ioctl whose argument is read, and possibly written.
///
/// # Safety
/// `arg` must be valid for all reads and writes of the request.
pub(crate) unsafe fn exchange(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    arg: *mut libc::c_void,
) -> io::Result<i32> {
    // SAFETY: the caller's promise.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, arg) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
