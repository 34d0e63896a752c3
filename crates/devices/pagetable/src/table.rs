//! The tables of one address space, and the parts that all operations on them share.

use core::ops::{ControlFlow, Range};
// Not loom's: the number of a page table takes part in no protocol.
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use longshore_mem::isa::IsaToken;
use longshore_mem::{BusAddr, Iova};

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format};
use crate::gather::{Invalidate, TlbGather};
use crate::geometry::Span;
use crate::simd;
use crate::sync::{AtomicU64, Ordering};
use crate::table_memory::{Live, TableAddr, TableMemory};
use crate::walk::{Image, Mapping, Walker};

/// The slots that unmapping checks before it changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Check {
    /// All leaves. If the range has a hole, unmapping returns [`Error::Hole`].
    #[default]
    Checked,
    /// Only the ends of the range; the caller guarantees that all of it is mapped. Subtrees whose
    /// whole range is unmapped are detached without a look at their entries.
    Trusted,
}

/// The page tables of one address space.
///
/// `F` is the format, `M` the memory for tables, and `S` the cache maintenance for the walker. The
/// crate's documentation lists the calls that may run in parallel.
///
/// Dropping it frees its tables, so no walker may use them any more.
#[derive(Debug)]
pub struct PageTable<F: Format, M: TableMemory, S: CacheSync> {
    pub(crate) format: F,
    pub(crate) memory: M,
    pub(crate) sync: S,
    pub(crate) root: TableAddr,
    pub(crate) token: IsaToken,
    pub(crate) check: Check,
    /// The number of this page table, unique in the process.
    id: usize,
}

/// The number of the next page table.
static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

/// Adjacent slots of a table that were changed and are not cleaned yet.
#[derive(Debug, Default)]
pub(crate) struct Touched(Option<Range<usize>>);

impl Touched {
    /// Adds slots that directly follow the slots added before.
    #[inline]
    pub(crate) fn extend(&mut self, slots: Range<usize>) {
        match &mut self.0 {
            Some(range) => range.end = slots.end,
            None => self.0 = Some(slots),
        }
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<Range<usize>> {
        self.0.take()
    }
}

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Returns an empty page table.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the root; [`Error::TrackingNeedsCoherence`]
    /// if `format` tracks dirty pages and the walker is not coherent.
    pub fn new(format: F, memory: M, sync: S) -> Result<Self, Error> {
        if format.dirty_test().is_some() && !S::COHERENT {
            return Err(Error::TrackingNeedsCoherence);
        }
        let level = format.geometry().root_level();
        let root = alloc_table(&format, &memory, level)?;
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let token = IsaToken::active();
        let made = Self { format, memory, sync, root, token, check: Check::Checked, id };
        // The whole table, even if fewer slots are used: hardware may translate more address bits
        // than were asked for.
        let size_log2 = made.format.geometry().table_log2(level);
        let entries = &made.memory.entries(root)[..1 << (size_log2 - 3)];
        simd::clear(made.token, entries);
        made.sync.clean(entries);
        made.sync.fence();
        Ok(made)
    }

    /// Sets which slots unmapping checks. The default is [`Check::Checked`].
    #[must_use]
    pub fn with_check(mut self, check: Check) -> Self {
        self.check = check;
        self
    }

    /// Sets the instruction set that fills and searches tables. The default is
    /// [`IsaToken::active`].
    #[must_use]
    pub fn with_isa(mut self, token: IsaToken) -> Self {
        self.token = token;
        self
    }

    /// Returns the address of the root. If the tables are in a [`Slab`](crate::table_memory::Slab),
    /// or in your own [`TableMemory`] with bus addresses, this is the address for the hardware's
    /// registers. If they are in `HostPages`, hardware cannot use it; only a
    /// [`Walker`](crate::Walker) of this process can.
    pub fn root(&self) -> TableAddr {
        self.root
    }

    /// Returns the format.
    pub fn format(&self) -> &F {
        &self.format
    }

    /// Returns the memory that tables are allocated from.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns a reader of these tables.
    #[inline]
    pub fn walker(&self) -> Walker<'_, F, Self> {
        Walker::new(&self.format, self, self.root)
    }

    /// Calls `visitor` with each leaf that maps any of `len_bytes` bytes from `iova`, in ascending
    /// order, until it breaks.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is empty or not inside the input range of the format.
    pub fn walk<B>(
        &self,
        iova: Iova,
        len_bytes: u64,
        visitor: impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, Error> {
        self.walker().walk(iova, len_bytes, visitor)
    }

    /// Calls `invalidate` once for all changes in `gather`, and then frees the tables that were
    /// detached. Does nothing if `gather` is empty.
    ///
    /// # Errors
    /// The error of `invalidate`. The tables are then leaked, because a walker may still use them.
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn finish<I: Invalidate>(
        &self,
        mut gather: TlbGather,
        invalidate: &I,
    ) -> Result<(), I::Error> {
        if gather.is_empty() {
            return Ok(());
        }
        self.claim(&mut gather);
        invalidate.flush(&gather)?;
        let mut next = gather.detached;
        while let Some(table) = next {
            let meta = self.memory.meta(table);
            next = meta.next();
            self.free_subtree(meta.level(), table);
        }
        Ok(())
    }

    /// Marks `gather` as belonging to this page table.
    pub(crate) fn claim(&self, gather: &mut TlbGather) {
        let owner = *gather.owner.get_or_insert(self.id);
        assert!(owner == self.id, "a gather takes the changes of one page table only");
    }

    /// Adds a detached table of `level` to `gather`.
    pub(crate) fn detach(&self, gather: &mut TlbGather, level: u32, table: TableAddr) {
        let meta = self.memory.meta(table);
        meta.note(level, 0);
        meta.set_next(gather.detached.replace(table));
        gather.add_leaf_levels((2 << level) - 1);
    }

    /// Returns the slots of a table of `level` that this call has reached on its way down, or
    /// allocated.
    #[inline]
    pub(crate) fn entries(&self, level: u32, table: TableAddr) -> &[AtomicU64] {
        &self.memory.entries(table)[..self.format.geometry().slots(level)]
    }

    /// Returns the fastest access to the tables.
    #[inline]
    pub(crate) fn live(&self) -> Live<'_, M> {
        Live::new(&self.memory)
    }

    /// Returns the slots of a table of level 0 that translate `span`.
    #[inline]
    pub(crate) fn pages(&self, table: TableAddr, span: Span) -> &[AtomicU64] {
        let geometry = self.format.geometry();
        let first = geometry.index(0, span.first);
        let count = ((span.last - span.first) >> geometry.granule_log2()) as usize + 1;
        &self.memory.entries(table)[first..first + count]
    }

    /// Prefetches the table of pages that `next` leads to, if it leads to one: it is searched next.
    #[inline]
    pub(crate) fn prefetch_pages(&self, level: u32, next: Option<&AtomicU64>) {
        if level == 1
            && let Some(next) = next
            && let Entry::Table(child) = self.decode(level, next)
        {
            simd::prefetch(self.entries(0, child));
        }
    }

    #[inline]
    pub(crate) fn decode(&self, level: u32, slot: &AtomicU64) -> Entry {
        self.format.decode(level, slot.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn iova(&self, va: u64) -> Iova {
        self.format.geometry().iova(va)
    }

    /// Returns the span of `len_bytes` from `iova`, or an error if it is empty, not aligned to the
    /// granule, or out of range.
    #[inline]
    pub(crate) fn span(&self, iova: Iova, len_bytes: u64) -> Result<Span, Error> {
        let geometry = self.format.geometry();
        let page_log2 = geometry.granule_log2();
        let below = (1 << page_log2) - 1;
        for value in [iova.raw(), len_bytes] {
            if value & below != 0 {
                return Err(Error::Misaligned { value, page_log2 });
            }
        }
        if len_bytes == 0 {
            return Err(Error::Misaligned { value: 0, page_log2 });
        }
        geometry.span(iova, len_bytes).ok_or(Error::OutOfRange { iova, len_bytes })
    }

    /// Cleans the slots that were changed.
    #[inline]
    pub(crate) fn clean(&self, entries: &[AtomicU64], touched: &mut Touched) {
        if let Some(slots) = touched.take() {
            self.sync.clean(&entries[slots]);
        }
    }

    pub(crate) fn alloc_table(&self, level: u32) -> Result<TableAddr, Error> {
        alloc_table(&self.format, &self.memory, level)
    }

    pub(crate) fn free_table(&self, level: u32, table: TableAddr) {
        self.memory.free(table, self.format.geometry().table_log2(level));
    }

    /// Frees a table that no walker can use, and all tables below it.
    pub(crate) fn free_subtree(&self, level: u32, table: TableAddr) {
        if level > 0 {
            self.free_children(level, self.entries(level, table));
        }
        self.free_table(level, table);
    }

    /// Frees the tables that `slots` lead to.
    pub(crate) fn free_children(&self, level: u32, slots: &[AtomicU64]) {
        for slot in slots {
            if let Entry::Table(child) = self.decode(level, slot) {
                self.free_subtree(level - 1, child);
            }
        }
    }

    /// Returns the first address of the leaf of 2^`run_log2` entries of `level` that contains `va`.
    pub(crate) fn leaf_start(&self, level: u32, run_log2: u32, va: u64) -> Iova {
        self.iova(va & (u64::MAX << (self.format.geometry().shift(level) + run_log2)))
    }

    /// Returns the bus address that the slot for `va` maps to, in a leaf of 2^`run_log2` entries of
    /// `level` with the address `bus`.
    pub(crate) fn bus_of_slot(&self, level: u32, bus: BusAddr, run_log2: u32, va: u64) -> u64 {
        let shift = self.format.geometry().shift(level);
        let below = (1u64 << (shift + run_log2)) - 1;
        (bus.raw() & !below) | (va & below & (u64::MAX << shift))
    }
}

pub(crate) fn alloc_table<F: Format>(
    format: &F,
    memory: &impl TableMemory,
    level: u32,
) -> Result<TableAddr, Error> {
    let geometry = format.geometry();
    let size_log2 = geometry.table_log2(level);
    let table = memory.alloc(size_log2).ok_or(Error::OutOfMemory)?;
    if table.raw() >> geometry.output_bits() == 0 {
        return Ok(table);
    }
    // No entry of this format can hold the address of the table.
    memory.free(table, size_log2);
    Err(Error::OutOfMemory)
}

impl<F: Format, M: TableMemory, S: CacheSync> Image for PageTable<F, M, S> {
    #[inline]
    fn entry(&self, table: TableAddr, index: usize) -> Option<u64> {
        // The address and the index are arbitrary, and must not wrap around to another table.
        let offset_bytes = (index as u64).checked_mul(8)?;
        table.raw().checked_add(offset_bytes).filter(|address| address.is_multiple_of(8))?;
        Some(self.live().slot(table, index)?.load(Ordering::Acquire))
    }
}

impl<F: Format, M: TableMemory, S: CacheSync> Drop for PageTable<F, M, S> {
    fn drop(&mut self) {
        self.free_subtree(self.format.geometry().root_level(), self.root);
    }
}
