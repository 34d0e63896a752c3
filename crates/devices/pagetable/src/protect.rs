//! Changing the permissions and attributes of mapped pages.

use core::ops::ControlFlow;

use longshore_mem::{AddrRange, BusAddr, Iova};

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format};
use crate::gather::TlbGather;
use crate::geometry::Span;
use crate::prot::Prot;
use crate::sync::Ordering;
use crate::table::{PageTable, Touched};
use crate::table_memory::{TableAddr, TableMemory};
use crate::unmap::DirtySink;

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Sets the permissions and attributes of `len_bytes` from `iova`, all of which must be mapped.
    /// Walkers may use the old ones until `gather` is [finished](Self::finish).
    ///
    /// # Errors
    /// [`Error::Hole`], [`Error::PartialBlock`], [`Error::Prot`], [`Error::Misaligned`],
    /// [`Error::OutOfRange`]; [`Error::BreakBeforeMake`] if the format needs break-before-make to
    /// change a contiguous run or the memory type. Nothing has changed then.
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn set_prot(
        &self,
        iova: Iova,
        len_bytes: u64,
        prot: Prot,
        gather: &mut TlbGather,
    ) -> Result<(), Error> {
        self.set_prot_dirty(iova, len_bytes, prot, gather, |_| {})
    }

    /// As [`set_prot`](Self::set_prot), and calls `dirty` with each page or block that was dirty
    /// and whose new entry has no dirty bit.
    ///
    /// # Errors
    /// As [`set_prot`](Self::set_prot).
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn set_prot_dirty(
        &self,
        iova: Iova,
        len_bytes: u64,
        prot: Prot,
        gather: &mut TlbGather,
        mut dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let span = self.span(iova, len_bytes)?;
        self.claim(gather);
        let attributes = self.format.attributes(prot).ok_or(Error::Prot { prot })?;
        let level = self.format.geometry().root_level();
        self.verify(level, self.root, span, true)?;
        let fixed = self.format.fixed_while_live();
        let no_runs = self.format.needs_break_before_make();
        if (no_runs || fixed != Prot::NONE)
            && let ControlFlow::Break(at) = self.walk(iova, len_bytes, |mapping| {
                let run = no_runs && self.is_run(mapping.page_log2);
                if run || mapping.prot.differs_in(prot, fixed) {
                    ControlFlow::Break(mapping.iova)
                } else {
                    ControlFlow::Continue(())
                }
            })?
        {
            return Err(Error::BreakBeforeMake { at });
        }
        // Before anything changes: if `dirty` panics, the gather must still cover the range.
        gather.touch(self.iova(span.first), self.iova(span.last));
        self.set_attributes(level, self.root, span, attributes, gather, &mut dirty);
        self.sync.fence();
        Ok(())
    }

    /// Returns `true` if pages of this size are contiguous runs.
    fn is_run(&self, page_log2: u32) -> bool {
        let geometry = self.format.geometry();
        (0..geometry.levels()).all(|level| geometry.shift(level) != page_log2)
    }

    fn set_attributes(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        attributes: u64,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) {
        let entries = self.entries(level, table);
        let tracking = self.format.dirty_test();
        let mut touched = Touched::default();
        for part in self.format.geometry().parts(level, span) {
            let slot = &entries[part.index];
            let leaf = match self.decode(level, slot) {
                Entry::Leaf(leaf) => leaf,
                Entry::Table(child) => {
                    self.clean(entries, &mut touched);
                    self.set_attributes(level - 1, child, part.span, attributes, gather, dirty);
                    continue;
                }
                _ => continue,
            };
            let bus = if F::RUNS_REPEAT {
                leaf.bus
            } else {
                let va = part.span.first;
                BusAddr::new(self.bus_of_slot(level, leaf.bus, leaf.run_log2, va))
            };
            let clean = self.format.leaf(level, leaf.run_log2, bus, attributes);
            let changed = |before| match tracking {
                Some(test) if test.matches(before) => self.format.with_dirty(clean, true),
                _ => clean,
            };
            let update = |before| {
                // A walker may have set the dirty bit; if the leaf differs, another call has
                // changed it.
                let is_same = self.format.decode(level, before) == Entry::Leaf(leaf);
                is_same.then(|| changed(before))
            };
            let Ok(before) = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, update) else {
                continue;
            };
            gather.add_leaf_levels(1 << level);
            if tracking.is_some_and(|test| test.matches(before) && !test.matches(changed(before))) {
                self.tell_dirty(level, leaf.run_log2, part.span.first, gather, dirty);
            }
            touched.extend(part.index..part.index + 1);
        }
        self.clean(entries, &mut touched);
    }
}
