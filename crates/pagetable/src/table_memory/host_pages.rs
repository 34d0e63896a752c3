//! Tables in memory of this process.
//!
//! Chunks double in size, so that a few of them make any amount, and a table's address says which
//! chunk it is in: chunk k has the addresses `FIRST << k .. FIRST << (k + 1)`. These addresses mean
//! nothing to hardware; they are for walkers in this process.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::alloc::{alloc_zeroed, dealloc};
use std::boxed::Box;

use super::units::{UNIT_LOG2, Units};
use super::{TableAddr, TableMemory, TableMeta};

/// Bytes of the first chunk, and the first address: 2 MiB, the largest table there is.
const FIRST_LOG2: u32 = 21;
const FIRST: u64 = 1 << FIRST_LOG2;
/// Chunks: 2 MiB to 2 TiB, 4 TiB of tables in all.
const CHUNKS: usize = 21;

/// Tables in memory that is taken from the global allocator as it is needed, and given back when
/// this is dropped.
#[derive(Debug)]
pub struct HostPages {
    chunks: [AtomicPtr<Chunk>; CHUNKS],
    units: Units,
    /// How much may be taken, in units.
    limit_units: u64,
}

#[derive(Debug)]
struct Chunk {
    entries: NonNull<AtomicU64>,
    layout: Layout,
    metas: Box<[TableMeta]>,
}

// SAFETY: the entries are atomics which the chunk owns.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(size_bytes: usize) -> Option<Self> {
        // Aligned to the first chunk's size, so that the kernel may use huge pages.
        let layout = Layout::from_size_align(size_bytes, FIRST as usize).ok()?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let metas = (0..size_bytes >> UNIT_LOG2).map(|_| TableMeta::new()).collect();
        Some(Self { entries: start.cast(), layout, metas })
    }

    #[inline]
    fn entries(&self) -> &[AtomicU64] {
        // SAFETY: allocated zeroed with this size, aligned to more than eight bytes, and owned until
        // drop; only ever accessed as atomics.
        unsafe { slice::from_raw_parts(self.entries.as_ptr(), self.layout.size() >> 3) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.entries.as_ptr().cast(), self.layout) };
    }
}

impl HostPages {
    /// Without limit.
    pub fn new() -> Self {
        Self::with_limit(u64::MAX)
    }

    /// Of at most `limit_bytes`, rounded up to a power of two.
    pub fn with_limit(limit_bytes: u64) -> Self {
        Self {
            chunks: [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS],
            units: Units::new(),
            limit_units: (limit_bytes >> UNIT_LOG2).min(((FIRST << CHUNKS) - FIRST) >> UNIT_LOG2),
        }
    }

    /// Tables in use.
    pub fn used(&self) -> u64 {
        self.units.used()
    }

    /// Which chunk `table` is in, and its offset there.
    #[inline]
    fn place(table: TableAddr) -> Option<(usize, u64)> {
        let above = table.raw().checked_ilog2()?.checked_sub(FIRST_LOG2)?;
        Some((above as usize, table.raw() - (FIRST << above)))
    }

    #[inline]
    fn chunk(&self, index: usize) -> Option<&Chunk> {
        let chunk = self.chunks.get(index)?.load(Ordering::Acquire);
        // SAFETY: null, or a box that was leaked into here and lives until drop.
        unsafe { chunk.as_ref() }
    }

    /// The chunk, made if it is missing.
    fn ensure_chunk(&self, index: usize) -> Option<()> {
        if self.chunk(index).is_some() {
            return Some(());
        }
        let made = Box::into_raw(Box::new(Chunk::new((FIRST << index) as usize)?));
        let null = core::ptr::null_mut();
        let installed =
            self.chunks[index].compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire);
        if installed.is_err() {
            // SAFETY: made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
        Some(())
    }

    const fn address(unit: u64) -> TableAddr {
        TableAddr::new(FIRST + (unit << UNIT_LOG2))
    }

    const fn unit(table: TableAddr) -> u64 {
        (table.raw() - FIRST) >> UNIT_LOG2
    }
}

impl Default for HostPages {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
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
        let table = Self::address(self.units.alloc(size_log2, self.limit_units, next)?);
        let (chunk, _) = Self::place(table)?;
        // Where nothing lies there it cannot go on a list: it is lost, as all beyond it is.
        self.ensure_chunk(chunk)?;
        Some(table)
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        self.units.free(Self::unit(table), size_log2, |unit, next| {
            self.meta(Self::address(unit)).set_next(next.map(Self::address));
        });
    }

    #[inline]
    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        let Some((index, offset)) = Self::place(table) else { return &[] };
        let Some(chunk) = self.chunk(index) else { return &[] };
        chunk.entries().get((offset >> 3) as usize..).unwrap_or_default()
    }

    #[inline]
    fn meta(&self, table: TableAddr) -> &TableMeta {
        let place = Self::place(table).and_then(|(index, offset)| {
            self.chunk(index)?.metas.get((offset >> UNIT_LOG2) as usize)
        });
        place.expect("a table of this memory")
    }
}
