//! The memory that tables are allocated from.
//!
//! * [`Slab`]: an existing region, such as memory shared with the walker.
//! * [`HostPages`]: memory of this process, allocated as needed (feature `std`).
//! * [`SimulatedDram`]: for tests; its walker sees only cleaned lines (feature `std`).
#![cfg_attr(
    not(loom),
    expect(
        unsafe_code,
        reason = "lends memory for tables as atomics, and takes one of them by its offset"
    )
)]

#[cfg(all(feature = "std", not(loom)))]
mod host_pages;
#[cfg(all(feature = "std", not(loom)))]
mod simulated;
#[cfg(not(loom))]
mod slab;
#[cfg(not(loom))]
mod units;

use core::fmt;

#[cfg(all(feature = "std", not(loom)))]
pub use host_pages::HostPages;
#[cfg(all(feature = "std", not(loom)))]
pub use simulated::SimulatedDram;
#[cfg(not(loom))]
pub use slab::{Slab, SlabError};

use crate::sync::{AtomicU64, Ordering};

/// The address of a table as the walker uses it, and as an entry that leads to the table holds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableAddr(u64);

impl TableAddr {
    /// Returns the address with the value `raw`.
    #[inline]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the address as a number.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for TableAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableAddr({:#x})", self.0)
    }
}

/// Memory for tables.
///
/// It is *type-stable*: as long as the memory lives, a table stays a table of its size, in use or
/// free, and is never anything else. So a walker that reads a table which was freed meanwhile reads
/// entries, even if they are stale.
///
/// Several threads may call all functions in parallel.
pub trait TableMemory {
    /// Allocates a table of 2^`size_log2` bytes, aligned to its size, with arbitrary content.
    /// Returns `None` if there is no memory.
    fn alloc(&self, size_log2: u32) -> Option<TableAddr>;

    /// Frees a table of 2^`size_log2` bytes that [`alloc`](Self::alloc) returned.
    fn free(&self, table: TableAddr, size_log2: u32);

    /// Returns the entries of `table`, and possibly those after it. The slice is empty if there is
    /// no memory at that address, which may come from a stale entry.
    fn entries(&self, table: TableAddr) -> &[AtomicU64];

    /// Returns a contiguous range of tables, preferably with most of them. A walk finds these
    /// tables faster than by [`entries`](Self::entries), which must return the same entries for
    /// them.
    #[inline]
    fn resident(&self) -> Resident<'_> {
        Resident::NONE
    }

    /// Returns the metadata of `table`.
    ///
    /// # Panics
    /// If `table` is not from this memory.
    fn meta(&self, table: TableAddr) -> &TableMeta;
}

impl<M: TableMemory + ?Sized> TableMemory for &M {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        (**self).alloc(size_log2)
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        (**self).free(table, size_log2);
    }

    #[inline]
    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        (**self).entries(table)
    }

    #[inline]
    fn resident(&self) -> Resident<'_> {
        (**self).resident()
    }

    #[inline]
    fn meta(&self, table: TableAddr) -> &TableMeta {
        (**self).meta(table)
    }
}

/// A contiguous range of tables.
#[derive(Clone, Copy, Debug)]
pub struct Resident<'a> {
    entries: &'a [AtomicU64],
    start: u64,
}

impl<'a> Resident<'a> {
    /// No tables.
    pub const NONE: Self = Self { entries: &[], start: 0 };

    /// Returns the tables in `entries`, which a walker finds from `start` on.
    #[inline]
    pub const fn new(entries: &'a [AtomicU64], start: TableAddr) -> Self {
        Self { entries, start: start.raw() }
    }

    /// Returns the entry `offset_bytes` after the start of `table`, or `None` if it is outside this
    /// range or its address is not a multiple of 8.
    #[inline]
    pub fn entry_at(&self, table: TableAddr, offset_bytes: u64) -> Option<&'a AtomicU64> {
        // In this order, because the address of a table is known last on a walk.
        let at = table.raw().wrapping_add(offset_bytes.wrapping_sub(self.start));
        if at & 7 != 0 || at >= size_of_val(self.entries) as u64 {
            return None;
        }
        #[cfg(loom)]
        {
            self.entries.get((at >> 3) as usize)
        }
        #[cfg(not(loom))]
        {
            // SAFETY: inside the slice.
            let entry = unsafe { self.entries.as_ptr().byte_add(at as usize) };
            // SAFETY: a whole entry of the slice, which is borrowed.
            Some(unsafe { &*entry })
        }
    }
}

/// The tables of a borrowed memory, for fast access.
#[derive(Debug)]
pub(crate) struct Live<'a, M> {
    resident: Resident<'a>,
    memory: &'a M,
}

impl<M> Clone for Live<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Live<'_, M> {}

impl<'a, M: TableMemory> Live<'a, M> {
    #[inline]
    pub(crate) fn new(memory: &'a M) -> Self {
        Self { resident: memory.resident(), memory }
    }

    /// Returns the entry with number `index` of `table`, or `None` if there is no memory.
    #[inline]
    pub(crate) fn slot(&self, table: TableAddr, index: usize) -> Option<&'a AtomicU64> {
        let offset_bytes = (index as u64) << 3;
        match self.resident.entry_at(table, offset_bytes) {
            None => slot_elsewhere(self.memory, table, offset_bytes),
            found => found,
        }
    }

    /// Returns the entry `offset_bytes` after the start of `table`, or zero (absent) if there is no
    /// memory.
    #[inline]
    pub(crate) fn load_at(&self, table: TableAddr, offset_bytes: u64) -> u64 {
        // Loaded in both branches, so that the load instruction itself adds up the address.
        match self.resident.entry_at(table, offset_bytes) {
            Some(slot) => slot.load(Ordering::Acquire),
            None => load_elsewhere(self.memory, table, offset_bytes),
        }
    }

    /// Returns one entry of a table that is in use.
    #[inline]
    pub(crate) fn slot_in_use(&self, table: TableAddr, index: usize) -> &'a AtomicU64 {
        self.slot(table, index).expect("a table has its entries")
    }
}

#[cold]
#[inline(never)]
fn slot_elsewhere<M: TableMemory>(
    memory: &M,
    table: TableAddr,
    offset_bytes: u64,
) -> Option<&AtomicU64> {
    memory.entries(table).get((offset_bytes >> 3) as usize)
}

#[cold]
#[inline(never)]
fn load_elsewhere<M: TableMemory>(memory: &M, table: TableAddr, offset_bytes: u64) -> u64 {
    slot_elsewhere(memory, table, offset_bytes).map_or(0, |slot| slot.load(Ordering::Acquire))
}

/// The metadata of a table, with a link, so that lists of tables need no memory of their own.
///
/// It belongs to the owner of the table: the memory if the table is free, and the page table if it
/// is in use.
///
/// All-zero bytes are metadata without a link, so zeroed memory for many tables need not be
/// initialised.
#[derive(Debug)]
pub struct TableMeta {
    /// The next table's address plus one, or zero if there is none.
    next: AtomicU64,
    level: AtomicU64,
    first_va: AtomicU64,
    /// Nonzero if the walker is known to see the entry that leads to the table.
    settled: AtomicU64,
}

impl TableMeta {
    /// Returns metadata without a link.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            level: AtomicU64::new(0),
            first_va: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// Returns metadata without a link.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            level: AtomicU64::new(0),
            first_va: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// Returns the next table of the list that this table is on.
    #[inline]
    pub fn next(&self) -> Option<TableAddr> {
        self.next.load(Ordering::Relaxed).checked_sub(1).map(TableAddr)
    }

    /// Sets the next table of the list.
    #[inline]
    pub fn set_next(&self, next: Option<TableAddr>) {
        // A table is aligned, so its address is not the highest one, and the sum does not wrap.
        let next = next.map_or(0, |table| table.raw().wrapping_add(1));
        self.next.store(next, Ordering::Relaxed);
    }

    /// Returns the level of the table. Only valid while the table is on a list of a page table.
    #[inline]
    pub(crate) fn level(&self) -> u32 {
        self.level.load(Ordering::Relaxed) as u32
    }

    /// Returns the first va of the table. Only valid while the table is on a list of a page table.
    #[inline]
    pub(crate) fn first_va(&self) -> u64 {
        self.first_va.load(Ordering::Relaxed)
    }

    /// Returns `true` if the walker is known to see the entry that leads to the table.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(crate) fn set_settled(&self, settled: bool) {
        self.settled.store(u64::from(settled), Ordering::Release);
    }

    #[inline]
    pub(crate) fn note(&self, level: u32, first_va: u64) {
        self.level.store(u64::from(level), Ordering::Relaxed);
        self.first_va.store(first_va, Ordering::Relaxed);
    }
}

impl Default for TableMeta {
    fn default() -> Self {
        Self::new()
    }
}
