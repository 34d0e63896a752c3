//! Memory for mappings, with unused bytes on both sides.
#![allow(unreachable_pub, reason = "read by test programs of several kinds")]
#![allow(unsafe_code, reason = "memory that a device writes to while the test reads it")]

use std::alloc::{Layout, alloc, dealloc};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use longshore_mem::{DmaMemory, FileOffset};

pub const PAGE: u64 = 4096;

/// The place of memory that may have been freed.
#[derive(Clone, Debug)]
pub struct Place {
    pub start: NonNull<u8>,
    pub len: usize,
    alive: Weak<()>,
}

impl Place {
    pub fn is_alive(&self) -> bool {
        self.alive.strong_count() != 0
    }

    /// Returns the current bytes.
    pub fn bytes(&self) -> Vec<u8> {
        assert!(self.is_alive(), "the memory is freed");
        let mut bytes = vec![0; self.len];
        // SAFETY: it is alive, and no code writes to it while this thread reads.
        unsafe { self.start.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), self.len) };
        bytes
    }

    pub fn fill(&self, bytes: &[u8]) {
        assert!(self.is_alive() && bytes.len() == self.len);
        // SAFETY: as above.
        unsafe { self.start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), self.len) };
    }
}

/// A page, `len` bytes that begin `skip` bytes after its end, and bytes up to the end of another page.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    /// The offset of the bytes.
    pub first: usize,
    len: usize,
    alive: Arc<()>,
}

// SAFETY: the memory is on the heap.
unsafe impl Send for Memory {}
// SAFETY: a shared reference only gives access to the address.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(skip: usize, len: usize) -> Self {
        let page = PAGE as usize;
        let all = (skip + len).next_multiple_of(page) + 2 * page;
        let layout = Layout::from_size_align(all, page).unwrap();
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc(layout) }).unwrap();
        // SAFETY: it has as many bytes.
        unsafe { start.write_bytes(0, all) };
        Self { start, layout, first: page + skip, len, alive: Arc::default() }
    }

    pub fn place(&self) -> Place {
        let Self { start, layout, alive, .. } = self;
        Place { start: *start, len: layout.size(), alive: Arc::downgrade(alive) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: nothing moves or frees it while the value lives, and there are no references to it.
unsafe impl DmaMemory for Memory {
    fn host(&self) -> NonNull<[u8]> {
        // SAFETY: within the allocation.
        let start = unsafe { self.start.add(self.first) };
        let start = NonNull::with_exposed_provenance(start.expose_provenance());
        NonNull::slice_from_raw_parts(start, self.len)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}
