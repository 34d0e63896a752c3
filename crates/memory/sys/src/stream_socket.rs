//! Stream sockets that receive into memory of a buffer.
#![expect(unsafe_code, reason = "receives into volatile memory")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use longshore_mem::VolatileSliceMut;

/// Receives bytes into `memory` with one system call, which may receive fewer. Returns the number of bytes;
/// 0 if the peer sends no more.
///
/// # Errors
/// Those of `recv(2)`; `WouldBlock` after the timeout of the socket.
pub fn receive(socket: impl AsFd, memory: &mut VolatileSliceMut<'_>) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the view is valid and writable for its length, and is borrowed for the call.
    let received = unsafe { libc::recv(fd, memory.as_mut_ptr().cast(), memory.len(), 0) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}
