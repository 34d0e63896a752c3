//! The lookup of the region that a bus address above 2^48 belongs to.
//!
//! ```text
//!   bus address  51 … 48   47 … 36        35 … 0
//!               ┌─────────┬──────────────┬────────┐
//!               │ 1 … 15  │              │ offset │   a window is 64 GiB; a region takes as many
//!               └─────────┴──────────────┴────────┘   adjacent ones as it needs, and an unused one
//!                 └── chunk ──┘└ in it ┘              after them, so that no extent continues into
//!                                                     another region
//! ```
//!
//! The start of a region in its first window is congruent, modulo the largest leaf, to the IOVA at which
//! it will be mapped. So a mapping has large leaves wherever it begins: it needs page tables for small
//! leaves only at its two ends, and one table for each 512 GiB. Otherwise a client could cause a table
//! for each 2 MiB by choosing an unaligned address.
//!
//! Readers look up a window by two loads, without a lock. The entries of a region are removed only after
//! all of it was unmapped and a grace period has ended.
#![expect(unsafe_code, reason = "lends entries that are freed when no session can reach them")]

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use longshore_mem::Iova;

use crate::region::Region;

/// The first bus address of the windows.
pub(crate) const WINDOWS_START: u64 = 1 << 48;
const WINDOW_LOG2: u32 = 36;
/// The size of the largest leaf, 1 GiB.
const LEAF_LOG2: u32 = 30;
const CHUNK_LOG2: u32 = 8;
const CHUNK: usize = 1 << CHUNK_LOG2;
/// The number of windows between 2^48 and 2^52.
const WINDOWS: usize = (((1u64 << 52) - WINDOWS_START) >> WINDOW_LOG2) as usize;

/// A region that is attached.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) region: Arc<Region>,
    /// The bus address of its first byte.
    pub(crate) bus: u64,
    first: usize,
    count: usize,
}

type Chunk = [AtomicPtr<Attached>; CHUNK];

/// All windows.
#[derive(Debug)]
pub(crate) struct Windows {
    chunks: [AtomicPtr<Chunk>; WINDOWS / CHUNK],
    /// The window at which the search for free windows begins, after those that were assigned last.
    next: AtomicUsize,
}

impl Windows {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; WINDOWS / CHUNK],
            next: AtomicUsize::new(0),
        }
    }

    /// Returns the attached region in whose window `bus` lies.
    ///
    /// # Safety
    /// The region must stay attached while the result is used.
    pub(crate) unsafe fn get(&self, bus: u64) -> Option<&Attached> {
        let window = (bus.checked_sub(WINDOWS_START)? >> WINDOW_LOG2) as usize;
        let chunk = self.chunks.get(window >> CHUNK_LOG2)?.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or points to a chunk, which lives as long as `self`.
        let chunk = unsafe { chunk.as_ref() }?;
        let attached = chunk[window % CHUNK].load(Ordering::Acquire);
        // SAFETY: the pointer is null, or points to an attached region by the caller's promise.
        unsafe { attached.as_ref() }
    }

    /// Assigns windows to `region`, in which its start is congruent to `iova`, a multiple of 4 KiB.
    /// Returns `None` if there are not enough free windows. The caller keeps the result until it is
    /// detached. Only one thread may call this at a time.
    pub(crate) fn attach(&self, region: &Arc<Region>, iova: Iova) -> Option<Arc<Attached>> {
        let skip = iova.raw() & ((1 << LEAF_LOG2) - 1);
        let count = ((skip + (region.len() - 1)) >> WINDOW_LOG2) as usize + 2;
        let first = self.find_free(count)?;
        let bus = WINDOWS_START + ((first as u64) << WINDOW_LOG2) + skip;
        let attached = Arc::new(Attached { region: Arc::clone(region), bus, first, count });
        for window in first..first + count {
            self.slot(window).store(Arc::as_ptr(&attached).cast_mut(), Ordering::Release);
        }
        self.next.store(first + count, Ordering::Relaxed);
        Some(attached)
    }

    /// Frees the windows of a region. No part of the region may be mapped. Only one thread may call this
    /// at a time.
    pub(crate) fn detach(&self, attached: &Attached) {
        for window in attached.first..attached.first + attached.count {
            self.slot(window).store(ptr::null_mut(), Ordering::Release);
        }
    }

    fn find_free(&self, count: usize) -> Option<usize> {
        let next = self.next.load(Ordering::Relaxed);
        self.find_free_in(next..WINDOWS, count).or_else(|| self.find_free_in(0..WINDOWS, count))
    }

    fn find_free_in(&self, windows: Range<usize>, count: usize) -> Option<usize> {
        let mut run = 0;
        for window in windows {
            run = if self.is_free(window) { run + 1 } else { 0 };
            if run == count {
                return Some(window + 1 - count);
            }
        }
        None
    }

    fn is_free(&self, window: usize) -> bool {
        let chunk = self.chunks[window >> CHUNK_LOG2].load(Ordering::Acquire);
        // SAFETY: as in `get`.
        let chunk = unsafe { chunk.as_ref() };
        chunk.is_none_or(|chunk| chunk[window % CHUNK].load(Ordering::Relaxed).is_null())
    }

    /// Returns the slot of a window, and allocates its chunk if it is missing. Only one thread may call
    /// this at a time.
    fn slot(&self, window: usize) -> &AtomicPtr<Attached> {
        let link = &self.chunks[window >> CHUNK_LOG2];
        if link.load(Ordering::Acquire).is_null() {
            let chunk: Box<Chunk> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; CHUNK]);
            link.store(Box::into_raw(chunk), Ordering::Release);
        }
        // SAFETY: the pointer is not null, and a chunk lives as long as `self`.
        let chunk = unsafe { &*link.load(Ordering::Acquire) };
        &chunk[window % CHUNK]
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        for link in &mut self.chunks {
            let chunk = *link.get_mut();
            if !chunk.is_null() {
                // SAFETY: `slot` made the pointer from a box.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}
