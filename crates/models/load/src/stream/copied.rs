//! Copies of small tensors.
#![expect(unsafe_code, reason = "reads copies as bytes")]

/// A copy of bytes, at a multiple of 64 bytes.
pub(super) struct Copied {
    lines: Vec<Line>,
    len: usize,
}

/// 64 bytes, the alignment that the widest vector registers need.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Copied {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; 64]); bytes.len().div_ceil(64)];
        for (line, chunk) in lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..chunk.len()].copy_from_slice(chunk);
        }
        Self { lines, len: bytes.len() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: a line is 64 initialized bytes without padding, and there are lines for `len` bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
