//! Counters of the operations of a domain. Each thread counts its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The operations of a domain since it was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Mappings made.
    pub maps: u64,
    /// Mappings that were unmapped.
    pub unmaps: u64,
    /// Mappings whose transfer goes through a bounce buffer.
    pub bounced: u64,
    /// Bytes copied to and from bounce buffers.
    pub copied_bytes: u64,
    /// Invalidations: one for each strict unmapping that was not bounced, and for each batch.
    pub flushes: u64,
    /// Mappings that could not be unmapped. Their memory was leaked, because a device could still
    /// write to it.
    pub leaked: u64,
    /// The bytes of all bounce buffers now.
    pub pool_bytes: u64,
    /// The maximum of `pool_bytes` so far.
    pub pool_peak_bytes: u64,
    /// Chunks of bounce buffers made.
    pub pool_grows: u64,
    /// Chunks freed.
    pub pool_shrinks: u64,
}

/// An operation that is counted by its thread.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Map,
    Unmap,
    Bounce,
    Copied,
    Flush,
    Leak,
}

const EVENTS: usize = 6;

/// The counters of one handle. Only its thread writes to them, so no atomic read-modify-write is
/// needed.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    counts: [AtomicU64; EVENTS],
}

impl Tally {
    /// Adds to a counter, by the one thread that owns it.
    #[inline]
    pub(crate) fn add(&self, event: Event, amount: u64) {
        let count = &self.counts[event as usize];
        count.store(count.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    /// Adds to a counter, by any thread.
    pub(crate) fn add_shared(&self, event: Event, amount: u64) {
        self.counts[event as usize].fetch_add(amount, Ordering::Relaxed);
    }

    fn add_to(&self, sums: &mut [u64; EVENTS]) {
        for (sum, count) in sums.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
}

/// The counters of a domain.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    /// The counters of the domain itself, and of handles that were dropped.
    pub(crate) shared: Tally,
    handles: Mutex<Vec<Weak<Tally>>>,
}

impl Tallies {
    /// Returns the counters for one more handle.
    pub(crate) fn open(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.retain(|handle| handle.strong_count() != 0);
        handles.push(Arc::downgrade(&tally));
        tally
    }

    /// Adds the counters of a handle that is dropped to the shared ones.
    pub(crate) fn close(&self, tally: &Tally) {
        // `sum` waits for this lock, so that it does not count them twice.
        let _handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        for (kept, count) in self.shared.counts.iter().zip(&tally.counts) {
            kept.fetch_add(count.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Resets the counters. No handle may exist.
    pub(crate) fn forget(&self) {
        self.shared.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Returns the sum of all counters. It is exact while no thread maps or unmaps.
    pub(crate) fn sum(&self) -> Counters {
        let mut sums = [0; EVENTS];
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.add_to(&mut sums);
        handles.iter().filter_map(Weak::upgrade).for_each(|handle| handle.add_to(&mut sums));
        let [maps, unmaps, bounced, copied_bytes, flushes, leaked] = sums;
        Counters { maps, unmaps, bounced, copied_bytes, flushes, leaked, ..Counters::default() }
    }
}
