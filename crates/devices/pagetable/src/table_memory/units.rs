//! The allocator of [`Slab`](super::Slab) and [`HostPages`](super::HostPages).
//!
//! A region is divided into units of 4 KiB. New tables are taken from the unused end of the region,
//! aligned to their size. Freed tables are put on a list of their size and are never split or
//! joined, so memory is type-stable. Units that alignment skips are lost: at most one table for
//! each size, as long as sizes do not alternate.

use crate::sync::{AtomicU64, Ordering};

/// The size of a unit in bytes, as a logarithm.
pub(super) const UNIT_LOG2: u32 = 12;
/// The number of table sizes: 4 KiB to 2 MiB.
const CLASSES: usize = 10;

/// The head of a list: the number of the first unit plus one, and above it a count of changes,
/// which prevents the ABA problem: a delayed thread does not mistake a new head for the one that it
/// read.
const UNIT_BITS: u32 = 36;
const UNIT_MASK: u64 = (1 << UNIT_BITS) - 1;

/// The allocator of a region.
#[derive(Debug)]
pub(super) struct Units {
    /// The first unit that was never part of a table.
    fresh: AtomicU64,
    /// The list of free tables of each size.
    free: [AtomicU64; CLASSES],
    /// The number of tables in use.
    used: AtomicU64,
}

impl Units {
    /// Returns the allocator of an unused region.
    pub(super) fn new() -> Self {
        Self {
            fresh: AtomicU64::new(0),
            free: core::array::from_fn(|_| AtomicU64::new(0)),
            used: AtomicU64::new(0),
        }
    }

    /// Returns the number of tables in use.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the end of the units that are or were part of a table, or were skipped.
    #[cfg(feature = "std")]
    pub(super) fn taken(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed)
    }

    fn class(size_log2: u32) -> Option<usize> {
        let class = size_log2.saturating_sub(UNIT_LOG2) as usize;
        (class < CLASSES).then_some(class)
    }

    /// Allocates a table of 2^`size_log2` bytes in a region of `limit` units, and returns its first
    /// unit. `next` returns the free table that follows a free one; `is_there` makes sure that a
    /// new table has memory, and returns `false` if there is none.
    pub(super) fn alloc(
        &self,
        size_log2: u32,
        limit: u64,
        next: impl Fn(u64) -> Option<u64>,
        is_there: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let class = Self::class(size_log2)?;
        let unit = self.pop(class, next).or_else(|| self.cut(1 << class, limit, is_there))?;
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(unit)
    }

    /// Frees a table. `set_next` links a free table to the next one.
    pub(super) fn free(&self, unit: u64, size_log2: u32, set_next: impl Fn(u64, Option<u64>)) {
        let Some(class) = Self::class(size_log2) else { return };
        let list = &self.free[class];
        let mut head = list.load(Ordering::Relaxed);
        loop {
            set_next(unit, (head & UNIT_MASK).checked_sub(1));
            let new = Self::head_after(head, Some(unit));
            // Release: the next owner sees the link of the table, and everything done to it before.
            match list.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    fn pop(&self, class: usize, next: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let list = &self.free[class];
        let mut head = list.load(Ordering::Acquire);
        loop {
            let unit = (head & UNIT_MASK).checked_sub(1)?;
            // Stale if another thread took the table meanwhile; then the count differs.
            let new = Self::head_after(head, next(unit));
            match list.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(unit),
                Err(now) => head = now,
            }
        }
    }

    const fn head_after(head: u64, first: Option<u64>) -> u64 {
        let changes = (head >> UNIT_BITS).wrapping_add(1) << UNIT_BITS;
        match first {
            Some(unit) => changes | (unit + 1) & UNIT_MASK,
            None => changes,
        }
    }

    /// Takes `count` units, a power of two, from the unused end of the region.
    fn cut(&self, count: u64, limit: u64, is_there: impl Fn(u64) -> bool) -> Option<u64> {
        let mut fresh = self.fresh.load(Ordering::Relaxed);
        loop {
            let start = fresh.next_multiple_of(count);
            let end = start + count;
            if end > limit || !is_there(start) {
                return None;
            }
            match self.fresh.compare_exchange_weak(fresh, end, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(start),
                Err(now) => fresh = now,
            }
        }
    }
}
