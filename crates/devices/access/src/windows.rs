//! Which region a bus address above 2^48 belongs to.
//!
//! ```text
//!   bus address  51 … 48   47 … 36        35 … 0
//!               ┌─────────┬──────────────┬────────┐
//!               │ 1 … 15  │              │ offset │   a window is 64 GiB; a region takes as many
//!               └─────────┴──────────────┴────────┘   adjacent ones as it needs, and one unused
//!                 └── chunk ──┘└ in it ┘              behind them, so that no extent runs into
//!                                                     another region
//! ```
//!
//! A region begins in its first window where it is congruent, modulo the largest leaf, to the IOVA
//! that it will be mapped at. So a mapping has large leaves wherever it begins: page tables of small
//! ones at its two ends, and one table for each 512 GiB. Otherwise a client could cause a table for
//! each 2 MiB by an address that is odd.
//!
//! Readers look a window up by two loads, without a lock; a region's entries go only when nothing of
//! it is mapped any more, which a grace period has made sure of.
#![expect(unsafe_code, reason = "lends entries that are freed when nobody can reach them")]

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use longshore_mem::Iova;

use crate::region::Region;

/// Bus addresses from here on are windows.
pub(crate) const WINDOWS_START: u64 = 1 << 48;
const WINDOW_LOG2: u32 = 36;
/// The largest leaf, 1 GiB.
const LEAF_LOG2: u32 = 30;
const CHUNK_LOG2: u32 = 8;
const CHUNK: usize = 1 << CHUNK_LOG2;
/// Windows between 2^48 and 2^52.
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
    /// Where the search for free windows begins: behind those given last.
    next: AtomicUsize,
}

impl Windows {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; WINDOWS / CHUNK],
            next: AtomicUsize::new(0),
        }
    }

    /// Whose window `bus` lies in.
    ///
    /// # Safety
    /// The region must stay attached while what is returned is used.
    pub(crate) unsafe fn get(&self, bus: u64) -> Option<&Attached> {
        let window = (bus.checked_sub(WINDOWS_START)? >> WINDOW_LOG2) as usize;
        let chunk = self.chunks.get(window >> CHUNK_LOG2)?.load(Ordering::Acquire);
        // SAFETY: null, or a chunk, which lives as long as this.
        let chunk = unsafe { chunk.as_ref() }?;
        let attached = chunk[window % CHUNK].load(Ordering::Acquire);
        // SAFETY: null, or what is attached, by the caller's promise.
        unsafe { attached.as_ref() }
    }

    /// Gives `region` windows, in which it begins congruent to `iova`, a multiple of 4 KiB. Returns
    /// `None` where there are not enough. The caller keeps what it gets until that is detached. One
    /// caller at a time.
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

    /// Takes the windows back. Nothing of the region may be mapped. One caller at a time.
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

    /// The slot of a window, whose chunk is made if it is missing. One caller at a time.
    fn slot(&self, window: usize) -> &AtomicPtr<Attached> {
        let link = &self.chunks[window >> CHUNK_LOG2];
        if link.load(Ordering::Acquire).is_null() {
            let chunk: Box<Chunk> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; CHUNK]);
            link.store(Box::into_raw(chunk), Ordering::Release);
        }
        // SAFETY: not null, and a chunk lives as long as this.
        let chunk = unsafe { &*link.load(Ordering::Acquire) };
        &chunk[window % CHUNK]
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        for link in &mut self.chunks {
            let chunk = *link.get_mut();
            if !chunk.is_null() {
                // SAFETY: leaked into here by `slot`.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}
