//! Memory of the allocator, for small loads that no other process can ask for.
#![expect(unsafe_code, reason = "owns an allocation by its address")]

use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// The limit on the length of a small load in bytes. A memfd takes longer to create and to map than
/// 1 MB to read, and costs a descriptor and a mapping, of which a process has about a thousand and
/// 65,530. Measured with files of 200 bytes to 100 MB.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// The alignment of the memory in bytes, which JAX and the widest vector registers need.
const ALIGNMENT_BYTES: usize = 64;

/// The largest alignment of tensors in bytes for which memory of the allocator is used.
pub(crate) const ALIGNMENT_MAX_BYTES: u64 = 4096;

/// An allocation of a length that is fixed. A child process gets a copy of it.
pub(crate) struct Small {
    base: NonNull<u8>,
    layout: Layout,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory, which any thread may free.
unsafe impl Send for Small {}
// SAFETY: a shared `Small` only returns addresses; dereferencing them is unsafe.
unsafe impl Sync for Small {}

impl Small {
    /// Allocates `len` zero bytes, at a multiple of `alignment_bytes` and of 64 bytes.
    ///
    /// Returns `None` if the allocator has no memory for that.
    pub(crate) fn new(len: usize, alignment_bytes: usize) -> Option<Self> {
        let alignment_bytes = alignment_bytes.max(ALIGNMENT_BYTES);
        // The allocator clears aligned memory itself, but gets other memory cleared from the kernel.
        let all = len.checked_add(alignment_bytes)?;
        let layout = Layout::array::<u8>(all).ok()?;
        // SAFETY: the layout has a length.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        let skip = base.addr().get().next_multiple_of(alignment_bytes) - base.addr().get();
        // SAFETY: less than the alignment, so inside the allocation.
        let start = unsafe { base.add(skip) };
        Some(Self { base, layout, start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes were zeroed, and `self` is borrowed exclusively while the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no lease on it exists.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}
