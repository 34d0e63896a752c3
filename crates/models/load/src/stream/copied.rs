//! Copies of small tensors.
#![expect(unsafe_code, reason = "owns an allocation by its address")]

use std::ptr::NonNull;

/// A copy of bytes, at a multiple of 64 bytes.
pub(super) struct Copied {
    /// A box that this owns.
    lines: NonNull<[Line]>,
    len: usize,
}

/// 64 bytes, the alignment that the widest vector registers need.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: it owns its memory, which any thread may free.
unsafe impl Send for Copied {}
// SAFETY: a shared `Copied` only reads its memory.
unsafe impl Sync for Copied {}

impl Copied {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; 64]); bytes.len().div_ceil(64)];
        for (line, chunk) in lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..chunk.len()].copy_from_slice(chunk);
        }
        Self { lines: NonNull::from(Box::leak(lines.into_boxed_slice())), len: bytes.len() }
    }

    /// Returns the address of the bytes.
    pub(super) fn host(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.lines.cast(), self.len)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: a line is 64 initialized bytes without padding, and there are lines for `len` bytes.
        unsafe { self.host().as_ref() }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { self.host().as_mut() }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and no other code frees it.
        drop(unsafe { Box::from_raw(self.lines.as_ptr()) });
    }
}
