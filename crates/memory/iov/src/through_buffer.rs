//! Copies through a small private buffer, so that foreign bytes are read once and processed on the
//! way.
#![expect(unsafe_code, reason = "hands pieces of segments to the copies of `longshore-mem`")]

use longshore_mem::copy::{CopyFault, CopyKernels, copy};

/// The size of the buffer. It fits into the L1 cache, next to the bytes that are copied.
const BUFFER_BYTES: usize = 2048;

/// Copies `len_bytes` bytes, or only reads them if `to` is `None`. Calls `absorb` in order with the
/// bytes that were both read and written.
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
        // If the write failed, too, it stopped first: it had only the bytes before the failed read.
        if let Err(stop) = written.and(read) {
            return Err(CopyFault { done_bytes, ..stop });
        }
    }
    Ok(())
}
