//! Reading and clearing dirty bits.

use core::ops::Range;

use longshore_mem::{AddrRange, Iova};

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{DirtyTest, Entry, Format};
use crate::gather::TlbGather;
use crate::geometry::Span;
use crate::simd;
use crate::sync::{AtomicU64, Ordering};
use crate::table::PageTable;
use crate::table_memory::{TableAddr, TableMemory};
use crate::unmap::DirtySink;

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Calls `dirty` with each page or block that maps any of `len_bytes` from `iova` and was
    /// written since it was mapped or since its dirty bit was cleared. If `clear`, the dirty bits
    /// found are cleared.
    ///
    /// A walker that has a page cached as dirty does not set its cleared bit again until `gather` is
    /// [finished](Self::finish). Writes until then are not reported again, so copy the pages after
    /// that.
    ///
    /// # Errors
    /// [`Error::NoDirtyTracking`], [`Error::Misaligned`], [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If `gather` was used with another page table.
    pub fn read_dirty(
        &self,
        iova: Iova,
        len_bytes: u64,
        clear: bool,
        gather: &mut TlbGather,
        mut dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let test = self.format.dirty_test().ok_or(Error::NoDirtyTracking)?;
        let span = self.span(iova, len_bytes)?;
        self.claim(gather);
        let level = self.format.geometry().root_level();
        self.read_dirty_in(level, self.root, span, test, clear, gather, &mut dirty);
        if clear {
            self.sync.fence();
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the arguments of the recursion")]
    fn read_dirty_in(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        test: DirtyTest,
        clear: bool,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) {
        let geometry = self.format.geometry();
        let entries = self.entries(level, table);
        let shift = geometry.shift(level);
        let (first, first_va) = (geometry.index(level, span.first), span.first >> shift << shift);
        let va = |index: usize| {
            first_va.wrapping_add((index as u64).wrapping_sub(first as u64) << shift)
        };
        if level == 0 {
            let mut from = self.run_of(0, entries, first).start;
            let end = self.run_of(0, entries, geometry.index(0, span.last)).end;
            // Clean entries are skipped, many at a time.
            while from < end
                && let Some(at) =
                    simd::find_equal(self.token, &entries[from..end], test.mask, test.value)
            {
                let run = self.run_of(0, entries, from + at);
                from = run.end;
                let va = va(run.start);
                self.note_dirty(0, &entries[run], va, test, clear, gather, dirty);
            }
            return;
        }
        let mut next = 0;
        for part in geometry.parts(level, span) {
            match self.decode(level, &entries[part.index]) {
                Entry::Table(child) => {
                    self.prefetch_pages(level, entries.get(part.index + 1));
                    self.read_dirty_in(level - 1, child, part.span, test, clear, gather, dirty);
                }
                Entry::Leaf(_) if part.index >= next => {
                    let run = self.run_of(level, entries, part.index);
                    next = run.end;
                    let (va, slots) = (va(run.start), &entries[run]);
                    if slots.iter().any(|slot| test.matches(slot.load(Ordering::Acquire))) {
                        self.note_dirty(level, slots, va, test, clear, gather, dirty);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the entries of the leaf that contains the entry `index`, or only that entry if it is
    /// not a leaf.
    fn run_of(&self, level: u32, entries: &[AtomicU64], index: usize) -> Range<usize> {
        let run_log2 = match self.decode(level, &entries[index]) {
            Entry::Leaf(leaf) => leaf.run_log2,
            _ => 0,
        };
        let start = index >> run_log2 << run_log2;
        start..start + (1 << run_log2)
    }

    /// Reports a dirty leaf, whose entries are `slots` and whose first address is `va`. If `clear`,
    /// clears its dirty bits and adds the leaf to the gather, because a walker may have any part of
    /// it cached as dirty.
    #[expect(clippy::too_many_arguments, reason = "the arguments of the recursion")]
    fn note_dirty(
        &self,
        level: u32,
        slots: &[AtomicU64],
        va: u64,
        test: DirtyTest,
        clear: bool,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) {
        let len_bytes = (slots.len() as u64) << self.format.geometry().shift(level);
        if clear {
            for slot in slots {
                // A walker may set the bit at any moment; a bit that it sets after this is for a
                // new write.
                let cleaned =
                    |entry| test.matches(entry).then(|| self.format.with_dirty(entry, false));
                let _ = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, cleaned);
            }
            gather.add_leaf_levels(1 << level);
            gather.touch(self.iova(va), self.iova(va + (len_bytes - 1)));
        }
        self.tell_dirty(level, slots.len().ilog2(), va, gather, dirty);
    }
}
