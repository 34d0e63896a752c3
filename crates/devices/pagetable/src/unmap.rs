//! Unmapping: first all checks, then all changes.
//!
//! A slot whose whole range is unmapped is cleared, whether it is a page, a block, or a table,
//! which is then detached with all tables below it. The entries below are neither cleared nor
//! cleaned; their tables are freed once no walker can reach them. So unmapping a 2 MiB block beside
//! 2 MiB of pages clears two adjacent entries, in one cache line. Nothing is allocated.

use longshore_mem::{AddrRange, Granule, Iova};

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{DirtyTest, Entry, Format};
use crate::gather::TlbGather;
use crate::geometry::Span;
use crate::simd;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Check, PageTable, Touched};
use crate::table_memory::{TableAddr, TableMemory};

/// The receiver of the ranges of dirty pages.
pub(crate) type DirtySink<'a> = &'a mut dyn FnMut(AddrRange<Iova>);

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Unmaps `len_bytes` from `iova`. Walkers may use the old entries until `gather` is
    /// [finished](Self::finish).
    ///
    /// A walker may use the old and the new entries together if `iova` is mapped again before
    /// `gather` is finished. If the format needs break-before-make (Arm), this is only allowed for
    /// pages of the same size; it is not checked here.
    ///
    /// # Errors
    /// [`Error::Hole`], [`Error::PartialBlock`], [`Error::Misaligned`], [`Error::OutOfRange`].
    /// Nothing has changed then. With [`Check::Trusted`], holes may go unnoticed.
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn unmap(&self, iova: Iova, len_bytes: u64, gather: &mut TlbGather) -> Result<(), Error> {
        self.unmap_dirty(iova, len_bytes, gather, |_| {})
    }

    /// Unmaps `count` pages of `page` bytes each, whatever the sizes of the leaves that map them.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap), and [`Error::PageSize`] if the format has no pages of that size.
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn unmap_pages(
        &self,
        iova: Iova,
        page: Granule,
        count: u64,
        gather: &mut TlbGather,
    ) -> Result<(), Error> {
        self.unmap(iova, self.pages_len(iova, page, count)?, gather)
    }

    /// Unmaps as [`unmap`](Self::unmap) does, and calls `dirty` with each page or block that was
    /// written since it was mapped or since its dirty bit was cleared. If dirty pages are tracked,
    /// every leaf is cleared individually, so that no write is missed.
    ///
    /// If `dirty` panics, a part of the range is unmapped and `gather` covers all of it. Finish the
    /// gather before you use the memory for something else.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap).
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn unmap_dirty(
        &self,
        iova: Iova,
        len_bytes: u64,
        gather: &mut TlbGather,
        mut dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let span = self.span(iova, len_bytes)?;
        self.claim(gather);
        let (level, table) = self.descend_to_unmap(span)?;
        let every_leaf = self.check == Check::Checked;
        // Before anything is cleared: if `dirty` panics, the gather must still cover the range.
        let last = Iova::new(iova.raw() + (len_bytes - 1));
        if let Some(slot) = self.lone_page(level, table, span) {
            if every_leaf && slot.load(Ordering::Relaxed) & self.format.present_mask() == 0 {
                return Err(Error::Hole { at: iova });
            }
            gather.touch(iova, last);
            slot.store(0, Ordering::Relaxed);
            self.sync.clean(core::slice::from_ref(slot));
            gather.add_leaf_levels(1);
        } else if level == 0 {
            self.verify_pages(table, span, every_leaf)?;
            gather.touch(iova, last);
            self.clear_pages(table, span, gather, &mut dirty);
        } else {
            self.verify(level, table, span, every_leaf)?;
            gather.touch(iova, last);
            self.clear(level, table, span, gather, &mut dirty);
        }
        self.sync.fence();
        Ok(())
    }

    /// Returns the slot for `span` if it is a single page and no further entry needs a check.
    #[inline]
    fn lone_page(&self, level: u32, table: TableAddr, span: Span) -> Option<&AtomicU64> {
        if level != 0 || self.format.geometry().runs(0) > 1 || self.format.dirty_test().is_some() {
            return None;
        }
        match self.pages(table, span) {
            [slot] => Some(slot),
            _ => None,
        }
    }

    /// Returns the lowest table that contains `span`, unless `span` is exactly one of its slots:
    /// then the table of that slot.
    #[inline]
    fn descend_to_unmap(&self, span: Span) -> Result<(u32, TableAddr), Error> {
        let geometry = self.format.geometry();
        if geometry.is_in_pages_table(span)
            && let Some(table) = self.pages_table_512(span.first)
        {
            return Ok((0, table));
        }
        let (mut step, mut table) = (geometry.root_step(), self.root);
        let live = self.live();
        while step.level > 0 && span.first >> step.shift == span.last >> step.shift {
            if span.last - span.first == (1 << step.shift) - 1 {
                break;
            }
            match self.decode(step.level, live.slot_in_use(table, step.index(span.first))) {
                Entry::Table(child) => {
                    table = child;
                    step = geometry.below(step);
                }
                Entry::Leaf(leaf) => {
                    let at = self.leaf_start(step.level, leaf.run_log2, span.first);
                    return Err(Error::PartialBlock { at });
                }
                Entry::Absent | Entry::Reserved => {
                    return Err(Error::Hole { at: self.iova(span.first) });
                }
            }
        }
        Ok((step.level, table))
    }

    /// Checks that `span` can be unmapped: no leaf extends beyond its ends, and, if `every_leaf`,
    /// it has no hole.
    pub(crate) fn verify(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        every_leaf: bool,
    ) -> Result<(), Error> {
        if level == 0 {
            return self.verify_pages(table, span, every_leaf);
        }
        let geometry = self.format.geometry();
        let entries = self.entries(level, table);
        for part in geometry.parts(level, span) {
            if part.whole && !every_leaf {
                continue;
            }
            match self.decode(level, &entries[part.index]) {
                Entry::Table(child) => {
                    self.prefetch_pages(level, entries.get(part.index + 1));
                    self.verify(level - 1, child, part.span, every_leaf)?;
                }
                Entry::Leaf(_) if part.whole => {}
                Entry::Leaf(leaf) => {
                    let at = self.leaf_start(level, leaf.run_log2, part.span.first);
                    return Err(Error::PartialBlock { at });
                }
                Entry::Absent | Entry::Reserved => {
                    return Err(Error::Hole { at: self.iova(part.span.first) });
                }
            }
        }
        self.verify_ends(level, entries, span)
    }

    /// As [`verify`](Self::verify), for a table of pages.
    #[inline]
    fn verify_pages(&self, table: TableAddr, span: Span, every_leaf: bool) -> Result<(), Error> {
        if every_leaf {
            let slots = self.pages(table, span);
            if let Some(at) = simd::find_equal(self.token, slots, self.format.present_mask(), 0) {
                let va = span.first + ((at as u64) << self.format.geometry().granule_log2());
                return Err(Error::Hole { at: self.iova(va) });
            }
        }
        self.verify_ends(0, self.memory.entries(table), span)
    }

    /// Checks that no contiguous run extends beyond the ends of `span`.
    #[inline]
    fn verify_ends(&self, level: u32, entries: &[AtomicU64], span: Span) -> Result<(), Error> {
        let geometry = self.format.geometry();
        if geometry.runs(level) <= 1 {
            return Ok(());
        }
        let (first, last) = (geometry.index(level, span.first), geometry.index(level, span.last));
        let run_mask = |index: usize| match self.decode(level, &entries[index]) {
            Entry::Leaf(leaf) => (leaf.run_log2, (1 << leaf.run_log2) - 1),
            _ => (0, 0),
        };
        let (run_log2, mask) = run_mask(first);
        if first & mask != 0 {
            return Err(Error::PartialBlock { at: self.leaf_start(level, run_log2, span.first) });
        }
        let (run_log2, mask) = run_mask(last);
        if !last & mask != 0 {
            return Err(Error::PartialBlock { at: self.leaf_start(level, run_log2, span.last) });
        }
        Ok(())
    }

    fn clear(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) {
        if level == 0 {
            return self.clear_pages(table, span, gather, dirty);
        }
        let geometry = self.format.geometry();
        let entries = self.entries(level, table);
        let tracking = self.format.dirty_test();
        let mut touched = Touched::default();
        for part in geometry.parts(level, span) {
            let slot = &entries[part.index];
            match self.decode(level, slot) {
                Entry::Table(child) if !part.whole => {
                    self.clean(entries, &mut touched);
                    self.clear(level - 1, child, part.span, gather, dirty);
                    continue;
                }
                Entry::Table(child) => {
                    if tracking.is_some() {
                        self.clear(level - 1, child, part.span, gather, dirty);
                    }
                    let before = slot.swap(0, Ordering::AcqRel);
                    if self.format.decode(level, before) == Entry::Table(child) {
                        self.detach(gather, level - 1, child);
                    }
                }
                Entry::Absent => {}
                Entry::Leaf(_) | Entry::Reserved => match tracking {
                    Some(test) => {
                        self.take_leaves(level, entries, part.span, test, gather, dirty);
                    }
                    None => {
                        slot.store(0, Ordering::Relaxed);
                        gather.add_leaf_levels(1 << level);
                    }
                },
            }
            touched.extend(part.index..part.index + 1);
        }
        self.clean(entries, &mut touched);
    }

    /// As [`clear`](Self::clear), for a table of pages.
    #[inline]
    fn clear_pages(
        &self,
        table: TableAddr,
        span: Span,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) {
        let slots = self.pages(table, span);
        match self.format.dirty_test() {
            Some(test) => {
                self.take_leaves(0, self.entries(0, table), span, test, gather, dirty);
            }
            None => simd::clear(self.token, slots),
        }
        self.sync.clean(slots);
        gather.add_leaf_levels(1);
    }

    /// Clears every leaf of a table in `span` by an atomic exchange, so that no dirty bit that a
    /// walker sets is lost, and reports the dirty ones.
    #[inline(never)]
    fn take_leaves(
        &self,
        level: u32,
        entries: &[AtomicU64],
        span: Span,
        test: DirtyTest,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) {
        let mut parts = self.format.geometry().parts(level, span);
        while let Some(part) = parts.next() {
            let Entry::Leaf(leaf) = self.decode(level, &entries[part.index]) else { continue };
            let run = 1 << leaf.run_log2;
            let mut was_dirty = false;
            let start = part.index >> leaf.run_log2 << leaf.run_log2;
            for slot in &entries[start..start + run] {
                was_dirty |= test.matches(slot.swap(0, Ordering::AcqRel));
            }
            gather.add_leaf_levels(1 << level);
            if was_dirty {
                self.tell_dirty(level, leaf.run_log2, part.span.first, gather, dirty);
            }
            // Skips the rest of the run.
            if run > 1 {
                parts.nth(run - 2);
            }
        }
    }

    /// Reports that the leaf that contains `va` was dirty.
    pub(crate) fn tell_dirty(
        &self,
        level: u32,
        run_log2: u32,
        va: u64,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) {
        let len_bytes = 1 << (self.format.geometry().shift(level) + run_log2);
        gather.add_dirty();
        if let Ok(range) = AddrRange::new(self.leaf_start(level, run_log2, va), len_bytes) {
            dirty(range);
        }
    }
}
