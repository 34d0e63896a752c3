//! Foreign bytes by way of a few own ones: read once, looked at, and passed on.
#![expect(unsafe_code, reason = "hands pieces of segments to the copies of `longshore-mem`")]

use longshore_mem::copy::{CopyFault, CopyKernels, copy};

/// Fits into the first cache beside what is copied.
const BUFFER_BYTES: usize = 2048;

/// Copies `len_bytes` bytes, or reads them only where `to` is none, and has `absorb` look at each
/// of them once: at the bytes that were both read and written, in order.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn copy_through_buffer<T: CopyKernels>(
    token: T,
    from: *const u8,
    to: Option<*mut u8>,
    len_bytes: usize,
    mut absorb: impl FnMut(&[u8]),
) -> Result<(), CopyFault> {
    let mut buffer = [0; BUFFER_BYTES];
    let mut done_bytes = 0;
    while done_bytes < len_bytes {
        let piece = &mut buffer[..BUFFER_BYTES.min(len_bytes - done_bytes)];
        // SAFETY: within the range.
        let from = unsafe { from.add(done_bytes) };
        // SAFETY: the caller's promise; the buffer is our own.
        let read = unsafe { copy(token, from, piece.as_mut_ptr(), piece.len()) };
        let piece = match &read {
            Ok(()) => &*piece,
            Err(stop) => &piece[..stop.done_bytes],
        };
        let written = match to {
            None => Ok(()),
            Some(to) => {
                // SAFETY: within the range.
                let to = unsafe { to.add(done_bytes) };
                // SAFETY: the caller's promise; the buffer is our own.
                unsafe { copy(token, piece.as_ptr(), to, piece.len()) }
            }
        };
        let piece = match &written {
            Ok(()) => piece,
            Err(stop) => &piece[..stop.done_bytes],
        };
        absorb(piece);
        done_bytes += piece.len();
        // What stopped first is the target, if it did: it got less than was read.
        if let Err(stop) = written.and(read) {
            return Err(CopyFault { done_bytes, ..stop });
        }
    }
    Ok(())
}
