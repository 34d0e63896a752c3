//! Detaching tables that map nothing any more.

use longshore_mem::Iova;

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format};
use crate::gather::TlbGather;
use crate::geometry::Span;
use crate::simd;
use crate::sync::Ordering;
use crate::table::{PageTable, Touched};
use crate::table_memory::{TableAddr, TableMemory};

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Detaches every table that maps nothing and whose whole range is within `len_bytes` from
    /// `iova`. Unmapping detaches only tables whose whole range one call unmaps. So pages that are
    /// unmapped in several calls leave an empty table behind, and no block can take its place until
    /// it is detached.
    ///
    /// [`finish`](PageTable::finish) frees the tables.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn reclaim(&self, iova: Iova, len_bytes: u64, gather: &mut TlbGather) -> Result<(), Error> {
        let span = self.span(iova, len_bytes)?;
        self.reclaim_span(span, gather);
        Ok(())
    }

    /// Detaches every table that maps nothing, in the whole input range. If nothing is mapped, only
    /// the root stays. [`finish`](PageTable::finish) frees the tables.
    ///
    /// The range of this call is the whole input range: no other call that changes tables may run
    /// in parallel.
    ///
    /// # Cost
    ///
    /// The cost grows with the number of tables, not with the size of the range. A table of pages
    /// is read up to its first leaf, or completely if it has none; a table of a higher level is
    /// read completely. Each table is read at most once for each level above it. For each detached
    /// subtree one entry is cleared; cleared entries that are adjacent are cleaned together. There
    /// is one fence if anything was detached, and otherwise none. Nothing is allocated. The gather
    /// covers the addresses from the first to the last detached subtree, so
    /// [`finish`](PageTable::finish) invalidates once.
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn reclaim_all(&self, gather: &mut TlbGather) {
        self.reclaim_span(self.format.geometry().all(), gather);
    }

    fn reclaim_span(&self, span: Span, gather: &mut TlbGather) {
        self.claim(gather);
        let level = self.format.geometry().root_level();
        if self.reclaim_in(level, self.root, span, gather) {
            self.sync.fence();
        }
    }

    /// Detaches the tables on the way to `iova` that map nothing, from the lowest upwards. Called
    /// after an unmapping, for the first and the last address of the range, it leaves no empty
    /// table behind. The cost does not depend on the number of tables.
    ///
    /// The range of this call is that of every table that it may detach: all addresses that share
    /// the root's entry with `iova`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn reclaim_at(&self, iova: Iova, gather: &mut TlbGather) -> Result<(), Error> {
        let geometry = self.format.geometry();
        let span = geometry.span(iova, 1).ok_or(Error::OutOfRange { iova, len_bytes: 1 })?;
        self.claim(gather);
        if self.reclaim_on_path(geometry.root_level(), self.root, span.first, gather) {
            self.sync.fence();
        }
        Ok(())
    }

    /// Detaches empty tables below `table` on the way to `va`, and returns `true` if there were
    /// any.
    fn reclaim_on_path(
        &self,
        level: u32,
        table: TableAddr,
        va: u64,
        gather: &mut TlbGather,
    ) -> bool {
        if level == 0 {
            return false;
        }
        let geometry = self.format.geometry();
        let slot = &self.entries(level, table)[geometry.index(level, va)];
        let Entry::Table(child) = self.decode(level, slot) else { return false };
        let any = self.reclaim_on_path(level - 1, child, va, gather);
        if !self.holds_nothing(level - 1, child) {
            return any;
        }
        slot.swap(0, Ordering::AcqRel);
        self.sync.clean(core::slice::from_ref(slot));
        self.detach(gather, level - 1, child);
        let below = (1 << geometry.shift(level)) - 1;
        gather.touch(self.iova(va & !below), self.iova(va | below));
        true
    }

    /// Returns `true` if all entries of a table are absent, including entries for tables.
    fn holds_nothing(&self, level: u32, table: TableAddr) -> bool {
        let entries = self.entries(level, table);
        if level == 0 {
            let present = self.format.present_mask();
            return simd::find_different(self.token, entries, present, 0).is_none();
        }
        entries.iter().all(|slot| self.decode(level, slot) == Entry::Absent)
    }

    /// Returns `true` if anything was detached.
    fn reclaim_in(&self, level: u32, table: TableAddr, span: Span, gather: &mut TlbGather) -> bool {
        if level == 0 {
            return false;
        }
        let entries = self.entries(level, table);
        let mut touched = Touched::default();
        let mut any = false;
        for part in self.format.geometry().parts(level, span) {
            let slot = &entries[part.index];
            let Entry::Table(child) = self.decode(level, slot) else {
                self.clean(entries, &mut touched);
                continue;
            };
            if part.whole && self.maps_nothing(level - 1, child) {
                slot.swap(0, Ordering::AcqRel);
                self.detach(gather, level - 1, child);
                gather.touch(self.iova(part.span.first), self.iova(part.span.last));
                touched.extend(part.index..part.index + 1);
                any = true;
            } else {
                self.clean(entries, &mut touched);
                any |= self.reclaim_in(level - 1, child, part.span, gather);
            }
        }
        self.clean(entries, &mut touched);
        any
    }

    fn maps_nothing(&self, level: u32, table: TableAddr) -> bool {
        if level == 0 {
            return self.holds_nothing(0, table);
        }
        self.entries(level, table).iter().all(|slot| match self.decode(level, slot) {
            Entry::Absent => true,
            Entry::Table(child) => self.maps_nothing(level - 1, child),
            Entry::Leaf(_) | Entry::Reserved => false,
        })
    }
}
