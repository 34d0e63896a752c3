//! Tables in memory of this process.
//!
//! The first chunk, 256 MiB, is allocated by `new`. It is zeroed memory, which takes only addresses
//! until it is written. So one comparison finds any table in it, and its tables can map 128 GiB in
//! pages of 4 KiB. The second chunk has the same size, and each further one twice the size of the
//! one before, so that a few chunks suffice for any number of tables. The address of a table gives
//! its chunk: the first chunk has the addresses from 0 on, and the k-th one after it those from
//! `FIRST << (k - 1)` on.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::alloc::{alloc_zeroed, dealloc};
use std::boxed::Box;

use super::units::{UNIT_LOG2, Units};
use super::{Resident, TableAddr, TableMemory, TableMeta};

/// The size of the first chunk in bytes: a multiple of the largest table, 2 MiB.
const FIRST_LOG2: u32 = if cfg!(miri) { 21 } else { 28 };
const FIRST: u64 = 1 << FIRST_LOG2;
/// The minimum size of the first chunk if memory is scarce.
const FIRST_MIN: u64 = 1 << 21;
/// The alignment of chunks in bytes, so that the kernel can use huge pages.
const ALIGN: usize = 1 << 21;
/// The maximum number of chunks: 4 TiB of tables in all.
const CHUNKS: usize = (43 - FIRST_LOG2) as usize;

/// Tables in memory from the global allocator, allocated as needed and freed on drop.
///
/// The addresses of these tables begin at 0 and mean nothing to hardware. They are for walkers in
/// this process only, such as [`PageTable::lookup`](crate::PageTable::lookup) and
/// [`Walker`](crate::Walker). Tables for hardware need a [`Slab`](super::Slab) or your own
/// [`TableMemory`].
#[derive(Debug)]
pub struct HostPages {
    first: Chunk,
    /// The chunks from the second on.
    further: [AtomicPtr<Chunk>; CHUNKS - 1],
    units: Units,
    /// The limit, in units.
    limit_units: AtomicU64,
    /// The highest possible limit, in units.
    room_units: u64,
}

#[derive(Debug)]
struct Chunk {
    /// The allocation, which need not be aligned: for a large alignment an allocator would write
    /// the zeros itself instead of using zeroed memory from the system.
    start: NonNull<u8>,
    entries: NonNull<AtomicU64>,
    metas: NonNull<TableMeta>,
    size_bytes: u64,
}

// SAFETY: the chunk owns the entries and the metadata, and both are atomics.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    const fn empty() -> Self {
        Self {
            start: NonNull::dangling(),
            entries: NonNull::dangling(),
            metas: NonNull::dangling(),
            size_bytes: 0,
        }
    }

    /// Allocates a chunk of whole units, or returns `None` if there is no memory.
    fn new(size_bytes: u64) -> Option<Self> {
        let (entries_layout, metas_layout) = Self::layouts(size_bytes)?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(entries_layout) })?;
        // SAFETY: as above.
        let Some(metas) = NonNull::new(unsafe { alloc_zeroed(metas_layout) }) else {
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(start.as_ptr(), entries_layout) };
            return None;
        };
        // SAFETY: the allocation has `ALIGN` bytes more than the entries need.
        let entries = unsafe { start.add(start.addr().get().wrapping_neg() % ALIGN) };
        Some(Self { start, entries: entries.cast(), metas: metas.cast(), size_bytes })
    }

    fn layouts(size_bytes: u64) -> Option<(Layout, Layout)> {
        let size = usize::try_from(size_bytes).ok().filter(|size| size >> UNIT_LOG2 != 0)?;
        let entries = Layout::from_size_align(size.checked_add(ALIGN)?, 8).ok()?;
        Some((entries, Layout::array::<TableMeta>(size >> UNIT_LOG2).ok()?))
    }

    /// Returns the entries from the one with number `first` on.
    ///
    /// # Safety
    /// The chunk must have that entry.
    #[inline]
    unsafe fn entries_from(&self, first: usize) -> &[AtomicU64] {
        let len = (self.size_bytes >> 3) as usize - first;
        // SAFETY: inside the allocation.
        let start = unsafe { self.entries.add(first) };
        // SAFETY: allocated zeroed with this size, aligned to more than eight bytes, and owned until
        // drop; only ever accessed as atomics.
        unsafe { slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Returns the metadata of the table at `offset_bytes`.
    ///
    /// # Safety
    /// The table must be in the chunk.
    #[inline]
    unsafe fn meta(&self, offset_bytes: u64) -> &TableMeta {
        // SAFETY: there is one `TableMeta` for each unit.
        let meta = unsafe { self.metas.add((offset_bytes >> UNIT_LOG2) as usize) };
        // SAFETY: allocated zeroed, which is valid metadata without a link, and owned until drop;
        // all fields are atomics.
        unsafe { meta.as_ref() }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Some((entries, metas)) = Self::layouts(self.size_bytes) else { return };
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), entries) };
        // SAFETY: as above.
        unsafe { dealloc(self.metas.as_ptr().cast(), metas) };
    }
}

impl HostPages {
    /// Returns a memory without a limit.
    pub fn new() -> Self {
        Self::with_limit(u64::MAX)
    }

    /// Returns a memory with a limit of `limit_bytes`.
    pub fn with_limit(limit_bytes: u64) -> Self {
        let room = (FIRST << (CHUNKS - 1)) >> UNIT_LOG2;
        let limit = (limit_bytes >> UNIT_LOG2).min(room);
        let mut wanted = FIRST.min(limit << UNIT_LOG2);
        let mut first = Chunk::new(wanted);
        while first.is_none() && wanted > FIRST_MIN {
            wanted >>= 1;
            first = Chunk::new(wanted);
        }
        let first = first.unwrap_or_else(Chunk::empty);
        // If the first chunk could not be allocated in full, no other chunk is allocated.
        let room_units =
            if first.size_bytes == FIRST { room } else { first.size_bytes >> UNIT_LOG2 };
        Self {
            first,
            further: [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS - 1],
            units: Units::new(),
            limit_units: AtomicU64::new(limit.min(room_units)),
            room_units,
        }
    }

    /// Sets the limit in bytes. Memory that was already used for tables is kept and reused. If the
    /// limit so far was below the size of the first chunk, it cannot be raised.
    pub fn set_limit(&self, limit_bytes: u64) {
        let limit_units = (limit_bytes >> UNIT_LOG2).min(self.room_units);
        self.limit_units.store(limit_units, Ordering::Relaxed);
    }

    /// Returns the number of tables in use.
    pub fn used(&self) -> u64 {
        self.units.used()
    }

    /// Returns the chunk after the first that contains `table`, and the table's offset there.
    #[cold]
    #[inline(never)]
    fn further_place(&self, table: TableAddr) -> Option<(&Chunk, u64)> {
        let above = table.raw().checked_ilog2()?.checked_sub(FIRST_LOG2)?;
        let chunk = self.further.get(above as usize)?.load(Ordering::Acquire);
        // SAFETY: null, or a box that was leaked into here and lives until drop.
        let chunk = unsafe { chunk.as_ref() }?;
        Some((chunk, table.raw() - (FIRST << above)))
    }

    #[cold]
    #[inline(never)]
    fn further_entries(&self, table: TableAddr) -> &[AtomicU64] {
        let Some((chunk, offset)) = self.further_place(table) else { return &[] };
        // SAFETY: chunks after the first are as large as their address ranges.
        unsafe { chunk.entries_from((offset >> 3) as usize) }
    }

    #[cold]
    #[inline(never)]
    fn further_meta(&self, table: TableAddr) -> &TableMeta {
        let (chunk, offset) = self.further_place(table).expect("a table of this memory");
        // SAFETY: as above.
        unsafe { chunk.meta(offset) }
    }

    /// Allocates the chunk that contains `table`, if it is missing.
    fn ensure_chunk(&self, table: TableAddr) -> Option<()> {
        if table.raw() < self.first.size_bytes || self.further_place(table).is_some() {
            return Some(());
        }
        let above = table.raw().checked_ilog2()?.checked_sub(FIRST_LOG2)?;
        let installed_at = self.further.get(above as usize)?;
        let made = Box::into_raw(Box::new(Chunk::new(FIRST << above)?));
        let null = core::ptr::null_mut();
        let installed =
            installed_at.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire);
        if installed.is_err() {
            // SAFETY: made above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
        Some(())
    }

    const fn address(unit: u64) -> TableAddr {
        TableAddr::new(unit << UNIT_LOG2)
    }

    const fn unit(table: TableAddr) -> u64 {
        table.raw() >> UNIT_LOG2
    }
}

impl Default for HostPages {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        for chunk in &mut self.further {
            let chunk = *chunk.get_mut();
            if !chunk.is_null() {
                // SAFETY: a box that was leaked into here.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

impl TableMemory for HostPages {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        let next = |unit| Some(Self::unit(self.meta(Self::address(unit)).next()?));
        let is_there = |unit| self.ensure_chunk(Self::address(unit)).is_some();
        let limit_units = self.limit_units.load(Ordering::Relaxed);
        Some(Self::address(self.units.alloc(size_log2, limit_units, next, is_there)?))
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        self.units.free(Self::unit(table), size_log2, |unit, next| {
            self.meta(Self::address(unit)).set_next(next.map(Self::address));
        });
    }

    #[inline]
    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        if table.raw() >= self.first.size_bytes {
            return self.further_entries(table);
        }
        // SAFETY: in the first chunk.
        unsafe { self.first.entries_from((table.raw() >> 3) as usize) }
    }

    #[inline]
    fn resident(&self) -> Resident<'_> {
        // SAFETY: the chunk has all of its entries.
        Resident::new(unsafe { self.first.entries_from(0) }, TableAddr::new(0))
    }

    #[inline]
    fn meta(&self, table: TableAddr) -> &TableMeta {
        if table.raw() >= self.first.size_bytes {
            return self.further_meta(table);
        }
        // SAFETY: in the first chunk.
        unsafe { self.first.meta(table.raw()) }
    }
}
