//! The tables of one address space, and what all operations on them share.

use core::ops::{ControlFlow, Range};
// Not the model checker's: a number is no part of any protocol.
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

/// How much unmapping looks at before it changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Check {
    /// Every leaf: a range with a hole in it is refused.
    #[default]
    Checked,
    /// Only the range's ends: the caller knows that all of it is mapped. Subtrees that the range
    /// covers are taken out unseen.
    Trusted,
}

/// The page tables of one address space.
///
/// `F` is the format, `M` where tables come from, `S` how changes reach the walker. The crate's
/// documentation says which calls may run at once.
///
/// Dropped, it gives its tables back to the memory: no walker may use them then.
#[derive(Debug)]
pub struct PageTable<F: Format, M: TableMemory, S: CacheSync> {
    pub(crate) format: F,
    pub(crate) memory: M,
    pub(crate) sync: S,
    pub(crate) root: TableAddr,
    pub(crate) token: IsaToken,
    pub(crate) check: Check,
    /// Which of all page tables of the process this is.
    id: usize,
}

/// The number of the next page table.
static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

/// Adjacent slots of a table that were changed, and not yet cleaned.
#[derive(Debug, Default)]
pub(crate) struct Touched(Option<Range<usize>>);

impl Touched {
    /// Adds slots that follow the last ones.
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
    /// An empty page table.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where there is none for the root;
    /// [`Error::TrackingNeedsCoherence`] where `format` tracks dirty pages and the walker is not
    /// coherent.
    pub fn new(format: F, memory: M, sync: S) -> Result<Self, Error> {
        if format.dirty_test().is_some() && !S::COHERENT {
            return Err(Error::TrackingNeedsCoherence);
        }
        let level = format.geometry().root_level();
        let root = alloc_table(&format, &memory, level)?;
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let token = IsaToken::active();
        let made = Self { format, memory, sync, root, token, check: Check::Checked, id };
        // All of it, also where fewer slots are used: hardware may translate more bits than were
        // asked for.
        let size_log2 = made.format.geometry().table_log2(level);
        let entries = &made.memory.entries(root)[..1 << (size_log2 - 3)];
        simd::clear(made.token, entries);
        made.sync.clean(entries);
        made.sync.fence();
        Ok(made)
    }

    /// The same with how much unmapping looks at.
    #[must_use]
    pub fn with_check(mut self, check: Check) -> Self {
        self.check = check;
        self
    }

    /// The same with an instruction set: `LONGSHORE_ISA` and the machine choose otherwise.
    #[must_use]
    pub fn with_isa(mut self, token: IsaToken) -> Self {
        self.token = token;
        self
    }

    /// Returns the address of the root. With tables in a [`Slab`](crate::table_memory::Slab), or in a
    /// [`TableMemory`] of your own that has bus addresses, it is the address for the hardware's
    /// registers. With tables in `HostPages` it means nothing to hardware, and is for a
    /// [`Walker`](crate::Walker) of this process.
    pub fn root(&self) -> TableAddr {
        self.root
    }

    /// The format.
    pub fn format(&self) -> &F {
        &self.format
    }

    /// Where tables come from.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// A reader of these tables.
    #[inline]
    pub fn walker(&self) -> Walker<'_, F, Self> {
        Walker::new(&self.format, self, self.root)
    }

    /// Calls `visitor` with each leaf that maps any of `len_bytes` bytes from `iova`, upwards, until
    /// it breaks.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where the range is empty or not inside what is translated.
    pub fn walk<B>(
        &self,
        iova: Iova,
        len_bytes: u64,
        visitor: impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, Error> {
        self.walker().walk(iova, len_bytes, visitor)
    }

    /// Has `invalidate` make walkers forget what `gather` gathered, once, and then frees the tables
    /// that were taken out. Does nothing where nothing was gathered.
    ///
    /// # Errors
    /// What `invalidate` says. The tables are leaked then, because a walker may still use them.
    ///
    /// # Panics
    /// Where `gather` was used with another page table.
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

    /// Notes in `gather` that it is this page table's.
    pub(crate) fn claim(&self, gather: &mut TlbGather) {
        let owner = *gather.owner.get_or_insert(self.id);
        assert!(owner == self.id, "a gather takes the changes of one page table only");
    }

    /// Hands a table of `level` that was taken out to `gather`.
    pub(crate) fn detach(&self, gather: &mut TlbGather, level: u32, table: TableAddr) {
        let meta = self.memory.meta(table);
        meta.note(level, 0);
        meta.set_next(gather.detached.replace(table));
        gather.add_leaf_levels((2 << level) - 1);
    }

    /// The slots of a table of `level` that this call has found on its way, or made.
    #[inline]
    pub(crate) fn entries(&self, level: u32, table: TableAddr) -> &[AtomicU64] {
        &self.memory.entries(table)[..self.format.geometry().slots(level)]
    }

    /// The tables as a walk finds them fastest.
    #[inline]
    pub(crate) fn live(&self) -> Live<'_, M> {
        Live::new(&self.memory)
    }

    /// The slots of a table of level 0 that stand for `span`.
    #[inline]
    pub(crate) fn pages(&self, table: TableAddr, span: Span) -> &[AtomicU64] {
        let geometry = self.format.geometry();
        let first = geometry.index(0, span.first);
        let count = ((span.last - span.first) >> geometry.granule_log2()) as usize + 1;
        &self.memory.entries(table)[first..first + count]
    }

    /// Has the table of pages that `next` leads to brought into the caches, if it leads to one: it is
    /// searched next.
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

    /// `len_bytes` from `iova`, in whole pages of the granule.
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

    /// Cleans slots that were changed.
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

    /// Frees a table that no walker can use, and all below it.
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

    /// The leaf of which the slot `index` of a table of `level` is a part: where it begins, and how
    /// many entries it has as a logarithm. `va` lies in the slot.
    pub(crate) fn leaf_start(&self, level: u32, run_log2: u32, va: u64) -> Iova {
        self.iova(va & (u64::MAX << (self.format.geometry().shift(level) + run_log2)))
    }

    /// The bus address of what the leaf entry `entry`, for the slot with `va`, maps there.
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
    // No entry can hold its address, so for this format there is no memory.
    memory.free(table, size_log2);
    Err(Error::OutOfMemory)
}

impl<F: Format, M: TableMemory, S: CacheSync> Image for PageTable<F, M, S> {
    #[inline]
    fn entry(&self, table: TableAddr, index: usize) -> Option<u64> {
        // Any address and number may be asked for, and none wraps around to another table.
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
