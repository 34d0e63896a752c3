//! Where tables come from.
//!
//! * [`Slab`]: a region that exists already, such as memory shared with whoever walks the tables.
//! * [`HostPages`]: memory of this process, taken as it is needed (feature `std`).
//! * [`SimulatedDram`]: for tests; a walker of it sees only what was cleaned (feature `std`).
#![cfg_attr(
    not(loom),
    expect(
        unsafe_code,
        reason = "takes memory for tables, lends it as atomics and picks one of many"
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

/// The address of a table as a walker uses it: what an entry that leads to the table holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableAddr(u64);

impl TableAddr {
    /// The address with the value `raw`.
    #[inline]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The address as a number.
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
/// It is *type-stable*: what was a table of some size once is never anything but a table of that
/// size, or free, as long as the memory lives. So a walker that reads a table which was freed
/// meanwhile reads entries, if stale ones, and nothing else.
///
/// All of it may be called by several threads at once.
pub trait TableMemory {
    /// A table of 2^`size_log2` bytes, aligned to its size, of arbitrary content; `None` where there
    /// is no memory.
    fn alloc(&self, size_log2: u32) -> Option<TableAddr>;

    /// Takes back a table of 2^`size_log2` bytes that [`alloc`](Self::alloc) gave.
    fn free(&self, table: TableAddr, size_log2: u32);

    /// The entries of `table`, and possibly what lies behind them. Empty where there is no memory at
    /// that address: a stale entry may have said so.
    fn entries(&self, table: TableAddr) -> &[AtomicU64];

    /// Tables that lie one behind another, all of them or most: a walk finds these faster than by
    /// [`entries`](Self::entries), and must find the same.
    #[inline]
    fn resident(&self) -> Resident<'_> {
        Resident::NONE
    }

    /// What is noted beside `table`.
    ///
    /// # Panics
    /// Where `table` is not of this memory.
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

/// Tables that lie one behind another.
#[derive(Clone, Copy, Debug)]
pub struct Resident<'a> {
    entries: &'a [AtomicU64],
    start: u64,
}

impl<'a> Resident<'a> {
    /// No tables.
    pub const NONE: Self = Self { entries: &[], start: 0 };

    /// `entries`, which a walker finds from `start` on.
    #[inline]
    pub const fn new(entries: &'a [AtomicU64], start: TableAddr) -> Self {
        Self { entries, start: start.raw() }
    }

    /// The entry that begins `offset_bytes` behind the start of `table`, if it is one of these.
    #[inline]
    pub fn entry_at(&self, table: TableAddr, offset_bytes: u64) -> Option<&'a AtomicU64> {
        // In this order: the address of a table is known last on a walk.
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
            // SAFETY: inside of the slice.
            let entry = unsafe { self.entries.as_ptr().byte_add(at as usize) };
            // SAFETY: a whole entry of the slice, which is borrowed.
            Some(unsafe { &*entry })
        }
    }
}

/// Tables of a memory as they are while it is borrowed.
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

    /// The entry with number `index` of `table`; `None` where there is no memory.
    #[inline]
    pub(crate) fn slot(&self, table: TableAddr, index: usize) -> Option<&'a AtomicU64> {
        let offset_bytes = (index as u64) << 3;
        match self.resident.entry_at(table, offset_bytes) {
            None => slot_elsewhere(self.memory, table, offset_bytes),
            found => found,
        }
    }

    /// The entry that begins `offset_bytes` behind the start of `table`; zero, which is absent, where
    /// there is no memory.
    #[inline]
    pub(crate) fn load_at(&self, table: TableAddr, offset_bytes: u64) -> u64 {
        // Loaded in either branch, so that the load itself adds the address up.
        match self.resident.entry_at(table, offset_bytes) {
            Some(slot) => slot.load(Ordering::Acquire),
            None => load_elsewhere(self.memory, table, offset_bytes),
        }
    }

    /// One entry of a table that is in use.
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

/// What is noted beside a table: a link, so that lists of tables need no memory of their own.
///
/// It belongs to whoever owns the table: to the memory while the table is free, to the page table
/// while it is used.
///
/// Of zeros it has no link, so that memory for many of them need not be touched beforehand.
#[derive(Debug)]
pub struct TableMeta {
    /// The next table's address, plus one; zero for none.
    next: AtomicU64,
    level: AtomicU64,
    first_va: AtomicU64,
    /// Whether the entry that leads to the table is known to be where the walker looks.
    settled: AtomicU64,
}

impl TableMeta {
    /// With no link.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            level: AtomicU64::new(0),
            first_va: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// With no link.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            level: AtomicU64::new(0),
            first_va: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// The next table of the list that this one is on.
    #[inline]
    pub fn next(&self) -> Option<TableAddr> {
        self.next.load(Ordering::Relaxed).checked_sub(1).map(TableAddr)
    }

    /// Links to `next`.
    #[inline]
    pub fn set_next(&self, next: Option<TableAddr>) {
        // A table is aligned, so its address is not the last there is.
        let next = next.map_or(0, |table| table.raw().wrapping_add(1));
        self.next.store(next, Ordering::Relaxed);
    }

    /// The level of the table, while it is on a list of a page table.
    #[inline]
    pub(crate) fn level(&self) -> u32 {
        self.level.load(Ordering::Relaxed) as u32
    }

    /// The first va that the table is for, while it is on a list of a page table.
    #[inline]
    pub(crate) fn first_va(&self) -> u64 {
        self.first_va.load(Ordering::Relaxed)
    }

    /// Whether the entry that leads to the table is known to be where the walker looks.
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
