//! Making pages of blocks.

use core::ops::ControlFlow;

use longshore_mem::{BusAddr, Iova};

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format, LeafEntry};
use crate::gather::TlbGather;
use crate::geometry::Span;
use crate::map::Target;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{PageTable, Touched};
use crate::table_memory::{TableAddr, TableMemory};

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Makes pages of the granule of every block and contiguous run that maps any of `len_bytes`
    /// from `iova`, also where it reaches beyond the range. What is mapped stays the same. Holes are
    /// passed.
    ///
    /// Pages made of a dirty block are dirty; pages made of a contiguous run that can be written
    /// count as dirty too, because a walker may mark any entry for a write anywhere in the run.
    ///
    /// # Errors
    /// [`Error::BreakBeforeMake`] where there is something to split and the format needs that;
    /// [`Error::OutOfMemory`] (blocks at lower addresses may be split then);
    /// [`Error::Misaligned`], [`Error::OutOfRange`].
    ///
    /// # Panics
    /// Where `gather` was used with another page table.
    pub fn split(&self, iova: Iova, len_bytes: u64, gather: &mut TlbGather) -> Result<(), Error> {
        let span = self.span(iova, len_bytes)?;
        self.claim(gather);
        let page_log2 = self.format.geometry().granule_log2();
        let mut found = None;
        let _ = self.walk(iova, len_bytes, |mapping| {
            if mapping.page_log2 == page_log2 {
                return ControlFlow::Continue(());
            }
            if found.is_none() {
                found = Some((mapping.iova, mapping.last()));
            }
            if let Some((_, last)) = &mut found {
                *last = mapping.last();
            }
            ControlFlow::<()>::Continue(())
        })?;
        let Some((first, last)) = found else { return Ok(()) };
        if self.format.needs_break_before_make() {
            return Err(Error::BreakBeforeMake { at: first });
        }
        let mut linked = None;
        let level = self.format.geometry().root_level();
        let done = self.split_in(level, self.root, span, gather, &mut linked);
        self.sync.fence();
        self.settle(linked);
        gather.touch(first, last);
        done
    }

    fn split_in(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        gather: &mut TlbGather,
        linked: &mut Option<TableAddr>,
    ) -> Result<(), Error> {
        let geometry = self.format.geometry();
        let entries = self.entries(level, table);
        let table_va = span.first >> geometry.shift(level) << geometry.shift(level);
        let first = geometry.index(level, span.first);
        let mut next = 0;
        for part in geometry.parts(level, span) {
            match self.decode(level, &entries[part.index]) {
                Entry::Table(child) => {
                    self.split_in(level - 1, child, part.span, gather, linked)?;
                }
                Entry::Leaf(leaf) if part.index >= next && (level > 0 || leaf.run_log2 > 0) => {
                    let start = part.index >> leaf.run_log2 << leaf.run_log2;
                    next = start + (1 << leaf.run_log2);
                    let va = |index: usize| {
                        let offset = (index as u64).wrapping_sub(first as u64);
                        table_va.wrapping_add(offset << geometry.shift(level))
                    };
                    let slots = || (start..next).zip(&entries[start..next]);
                    let mut touched = Touched::default();
                    touched.extend(start..next);
                    // A run becomes entries by themselves first, which takes no memory: where that
                    // runs out later, no run is left that is not whole.
                    if leaf.run_log2 > 0 {
                        for (index, slot) in slots() {
                            self.leave_run(level, slot, leaf, va(index));
                        }
                    }
                    let mut done = Ok(());
                    if level > 0 {
                        done = slots().try_for_each(|(index, slot)| {
                            self.split_slot(level, slot, leaf, va(index), linked)
                        });
                    }
                    self.clean(entries, &mut touched);
                    gather.add_leaf_levels(1 << level);
                    done?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes the entry in `slot`, which is a part of the run `leaf` and stands for `va`, a leaf by
    /// itself.
    fn leave_run(&self, level: u32, slot: &AtomicU64, leaf: LeafEntry, va: u64) {
        let bus = self.bus_of_slot(level, leaf.bus, leaf.run_log2, va);
        let alone = |before| {
            let mut attributes = self.format.attributes_of(before);
            let writable = self.format.prot(before).contains(crate::Prot::WRITE);
            if self.format.dirty_test().is_some() && writable {
                attributes = self.format.with_dirty(attributes, true);
            }
            Some(self.format.leaf(level, 0, BusAddr::new(bus), attributes))
        };
        // A walker may mark the entry dirty at any moment: it is asked again then.
        let _ = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, alone);
    }

    /// Replaces the entry in `slot`, which was (a part of) `leaf` and stands for `va`, by a table of
    /// pages.
    fn split_slot(
        &self,
        level: u32,
        slot: &AtomicU64,
        leaf: LeafEntry,
        va: u64,
        linked: &mut Option<TableAddr>,
    ) -> Result<(), Error> {
        let geometry = self.format.geometry();
        let bus = self.bus_of_slot(level, leaf.bus, leaf.run_log2, va);
        loop {
            let before = slot.load(Ordering::Acquire);
            let attributes = self.format.attributes_of(before);
            let target = Target {
                delta: bus.wrapping_sub(va),
                attributes,
                page_log2_max: geometry.granule_log2(),
            };
            let span = Span { first: va, last: va | ((1 << geometry.shift(level)) - 1) };
            let built = self.build(level - 1, span, &target)?;
            self.memory.meta(built).set_settled(false);
            self.sync.fence();
            let entry = self.format.table(level, built);
            if slot.compare_exchange(before, entry, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.memory.meta(built).set_next(linked.replace(built));
                return Ok(());
            }
            // A walker has marked the block dirty meanwhile, and so the pages must be.
            self.free_subtree(level - 1, built);
        }
    }
}
