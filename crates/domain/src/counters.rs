//! What was done, counted where it is done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a domain has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Mappings made.
    pub maps: u64,
    /// Mappings taken back.
    pub unmaps: u64,
    /// Of the mappings made, those whose transfer goes through a bounce buffer.
    pub bounced: u64,
    /// Bytes copied to and from bounce buffers.
    pub copied_bytes: u64,
    /// Invalidations: one for each strict unmapping that was not bounced, and for each batch.
    pub flushes: u64,
    /// Mappings that could not be unmapped, whose memory was leaked rather than freed under a device.
    pub leaked: u64,
    /// Bytes that bounce buffers have now, and the most they had.
    pub pool_bytes: u64,
    /// The most that `pool_bytes` was.
    pub pool_peak_bytes: u64,
    /// Chunks of bounce buffers made.
    pub pool_grows: u64,
    /// Chunks freed.
    pub pool_shrinks: u64,
}

/// What is counted by whoever maps.
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

/// What one door has done. Only its thread counts, so no instruction locks a line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    counts: [AtomicU64; EVENTS],
}

impl Tally {
    /// By the one thread that counts here.
    #[inline]
    pub(crate) fn add(&self, event: Event, amount: u64) {
        let count = &self.counts[event as usize];
        count.store(count.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    /// By any thread.
    pub(crate) fn add_shared(&self, event: Event, amount: u64) {
        self.counts[event as usize].fetch_add(amount, Ordering::Relaxed);
    }

    fn add_to(&self, sums: &mut [u64; EVENTS]) {
        for (sum, count) in sums.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
}

/// The tallies of a domain.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    /// Of the domain's own door, and of doors that are gone.
    pub(crate) shared: Tally,
    doors: Mutex<Vec<Weak<Tally>>>,
}

impl Tallies {
    /// One more door's.
    pub(crate) fn open(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.retain(|door| door.strong_count() != 0);
        doors.push(Arc::downgrade(&tally));
        tally
    }

    /// What a door has counted is kept when it is gone.
    pub(crate) fn close(&self, tally: &Tally) {
        // Not summed up meanwhile: else it would be counted twice.
        let _doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        for (kept, count) in self.shared.counts.iter().zip(&tally.counts) {
            kept.fetch_add(count.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// From here on as if nothing had been done. No door may be open.
    pub(crate) fn forget(&self) {
        self.shared.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// All together. Exact while nobody maps or unmaps.
    pub(crate) fn sum(&self) -> Counters {
        let mut sums = [0; EVENTS];
        let doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.add_to(&mut sums);
        doors.iter().filter_map(Weak::upgrade).for_each(|door| door.add_to(&mut sums));
        let [maps, unmaps, bounced, copied_bytes, flushes, leaked] = sums;
        Counters { maps, unmaps, bounced, copied_bytes, flushes, leaked, ..Counters::default() }
    }
}
