//! Splitting blocks into pages, in two passes like mapping: first all tables of pages are built where
//! no walker can see them, and then they replace the blocks.

use longshore_mem::{BusAddr, Iova};

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format, LeafEntry};
use crate::gather::TlbGather;
use crate::geometry::Span;
use crate::map::{Pending, Target};
use crate::prot::Prot;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{PageTable, Touched};
use crate::table_memory::{TableAddr, TableMemory};

/// A block or contiguous run to split.
struct Large<'a> {
    level: u32,
    leaf: LeafEntry,
    /// Its entries.
    slots: &'a [AtomicU64],
    /// The first va.
    va: u64,
}

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Splits every block and contiguous run that maps any of `len_bytes` from `iova` into pages of
    /// the granule. Blocks that extend beyond the range are split completely, and the range of this
    /// call includes them (see [Threads](crate#threads)). Mappings stay as they are, and holes are
    /// skipped.
    ///
    /// Pages of a dirty block are dirty. If a contiguous run is writable, all of its pages become
    /// dirty, because a walker may set the dirty bit in any entry of a run for a write anywhere in
    /// it.
    ///
    /// # Errors
    /// [`Error::BreakBeforeMake`] if there is something to split and the format needs
    /// break-before-make; [`Error::OutOfMemory`], [`Error::Misaligned`], [`Error::OutOfRange`].
    /// Nothing has changed then.
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn split(&self, iova: Iova, len_bytes: u64, gather: &mut TlbGather) -> Result<(), Error> {
        let span = self.span(iova, len_bytes)?;
        self.claim(gather);
        let (level, root) = (self.format.geometry().root_level(), self.root);
        let mut pending = Pending::default();
        let built = self.each_large(level, root, span, &mut |large| {
            if self.format.needs_break_before_make() {
                return Err(Error::BreakBeforeMake { at: self.iova(large.va) });
            }
            self.build_pages(large, &mut pending)
        });
        if built.is_err() {
            self.discard(pending.first);
            return built;
        }
        if pending.first.is_some() {
            self.sync.fence();
        }
        let mut any = false;
        let done = self.each_large(level, root, span, &mut |large| {
            any = true;
            self.split_leaf(large, gather, &mut pending);
            Ok(())
        });
        // Tables for leaves that another thread has split or unmapped meanwhile.
        self.discard(pending.first);
        if any {
            self.sync.fence();
            self.settle(pending.linked);
        }
        done
    }

    /// Calls `visit` with each block and each contiguous run that maps any of `span`, in ascending
    /// order.
    fn each_large(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        visit: &mut impl FnMut(&Large<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let geometry = self.format.geometry();
        let entries = self.entries(level, table);
        // Slots before this one belong to a run that was already visited.
        let mut next = 0;
        for part in geometry.parts(level, span) {
            match self.decode(level, &entries[part.index]) {
                Entry::Table(child) => self.each_large(level - 1, child, part.span, visit)?,
                Entry::Leaf(leaf) if part.index >= next && (level > 0 || leaf.run_log2 > 0) => {
                    let start = part.index >> leaf.run_log2 << leaf.run_log2;
                    next = start + (1 << leaf.run_log2);
                    let size_log2 = geometry.shift(level) + leaf.run_log2;
                    let va = part.span.first >> size_log2 << size_log2;
                    visit(&Large { level, leaf, slots: &entries[start..next], va })?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Builds a table of pages for each entry of a block or a run of blocks.
    fn build_pages(&self, large: &Large<'_>, pending: &mut Pending) -> Result<(), Error> {
        let &Large { level, leaf, slots, .. } = large;
        if level == 0 {
            return Ok(());
        }
        let geometry = self.format.geometry();
        for (slot, va) in slots.iter().zip(self.vas(large)) {
            let entry = slot.load(Ordering::Acquire);
            let bus = self.bus_of_slot(level, leaf.bus, leaf.run_log2, va);
            let target = Target {
                delta: bus.wrapping_sub(va),
                attributes: self.attributes_alone(leaf, entry),
                page_log2_max: geometry.granule_log2(),
            };
            let span = Span { first: va, last: va | ((1 << geometry.shift(level)) - 1) };
            let built = self.build(level - 1, span, &target)?;
            self.push_pending(pending, level - 1, va, built);
        }
        Ok(())
    }

    /// Replaces the entries of a leaf. Entries of a run of pages become single pages, which needs
    /// no memory; other entries lead to the tables in `pending` afterwards.
    fn split_leaf(&self, large: &Large<'_>, gather: &mut TlbGather, pending: &mut Pending) {
        let &Large { level, leaf, slots, va: first_va } = large;
        for (slot, va) in slots.iter().zip(self.vas(large)) {
            let built = self.take_pending_for(pending, level, va);
            // A walker may set the dirty bit at any moment, and then the pages must be dirty too.
            // An entry that another thread has split or unmapped meanwhile stays as it is.
            let replaced = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
                let bus = self.bus_of_slot(level, leaf.bus, leaf.run_log2, va);
                match self.format.decode(level, before) {
                    Entry::Leaf(now)
                        if now.run_log2 == leaf.run_log2
                            && self.bus_of_slot(level, now.bus, now.run_log2, va) == bus => {}
                    _ => return None,
                }
                let attributes = self.attributes_alone(leaf, before);
                let Some(built) = built else {
                    let alone = || self.format.leaf(0, 0, BusAddr::new(bus), attributes);
                    return (level == 0).then(alone);
                };
                if self.format.dirty_test().is_some_and(|test| test.matches(before)) {
                    self.make_dirty(level - 1, built);
                }
                Some(self.format.table(level, built))
            });
            match (built, replaced) {
                (Some(built), Ok(_)) => {
                    self.memory.meta(built).set_next(pending.linked.replace(built));
                }
                (Some(built), Err(_)) => self.free_subtree(level - 1, built),
                (None, _) => {}
            }
        }
        let mut touched = Touched::default();
        touched.extend(0..slots.len());
        self.clean(slots, &mut touched);
        gather.add_leaf_levels(1 << level);
        let len_bytes = (slots.len() as u64) << self.format.geometry().shift(level);
        gather.touch(self.iova(first_va), self.iova(first_va + (len_bytes - 1)));
    }

    /// Takes the table that was built for the entry with `va`, of a table of `level`, off the list.
    fn take_pending_for(&self, pending: &mut Pending, level: u32, va: u64) -> Option<TableAddr> {
        while let Some(next) = pending.first {
            let meta = self.memory.meta(next);
            if meta.first_va() > va {
                break;
            }
            pending.first = meta.next();
            if meta.first_va() == va && meta.level() + 1 == level {
                return Some(next);
            }
            // Its block was split or unmapped by another thread meanwhile.
            self.free_subtree(meta.level(), next);
        }
        None
    }

    /// Returns the va of each entry of a leaf.
    fn vas(&self, large: &Large<'_>) -> impl Iterator<Item = u64> + use<F, M, S> {
        let (va, shift) = (large.va, self.format.geometry().shift(large.level));
        (0..large.slots.len() as u64).map(move |nth| va + (nth << shift))
    }

    /// Returns the attributes of the pages that replace `entry`, which belongs to `leaf`.
    fn attributes_alone(&self, leaf: LeafEntry, entry: u64) -> u64 {
        let attributes = self.format.attributes_of(entry);
        let is_run = leaf.run_log2 > 0 && self.format.prot(entry).contains(Prot::WRITE);
        if is_run && self.format.dirty_test().is_some() {
            return self.format.with_dirty(attributes, true);
        }
        attributes
    }

    /// Sets the dirty bit of every page in a table that no walker can see yet.
    fn make_dirty(&self, level: u32, table: TableAddr) {
        for slot in self.entries(level, table) {
            let entry = slot.load(Ordering::Relaxed);
            match self.format.decode(level, entry) {
                Entry::Table(child) => self.make_dirty(level - 1, child),
                Entry::Leaf(_) => {
                    slot.store(self.format.with_dirty(entry, true), Ordering::Relaxed);
                }
                Entry::Absent | Entry::Reserved => {}
            }
        }
    }
}
