//! Reading which pages devices have written.

use core::ops::RangeInclusive;

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
    /// Tells `dirty` of each page or block that maps any of `len_bytes` from `iova` and was written
    /// since it was mapped or its dirty bit was cleared; `clear` clears the bits found.
    ///
    /// After clearing, a walker that remembers a page as dirty does not set its bit again before
    /// `gather` is [finished](Self::finish): what is written until then counts as read now.
    ///
    /// # Errors
    /// [`Error::NoDirtyTracking`], [`Error::Misaligned`], [`Error::OutOfRange`].
    ///
    /// # Panics
    /// Where `gather` was used with another page table.
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
        let found = self.read_dirty_in(level, self.root, span, test, clear, gather, &mut dirty);
        if found && clear {
            self.sync.fence();
            gather.touch(self.iova(span.first), self.iova(span.last));
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "what a level of the recursion hands on")]
    fn read_dirty_in(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        test: DirtyTest,
        clear: bool,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) -> bool {
        let geometry = self.format.geometry();
        let entries = self.entries(level, table);
        let (first, last) = (geometry.index(level, span.first), geometry.index(level, span.last));
        let table_va = span.first & (u64::MAX << geometry.shift(level));
        let va = |index: usize| table_va + (((index - first) as u64) << geometry.shift(level));
        let mut any = false;
        if level == 0 {
            // Clean entries are passed many at a time.
            let mut from = first;
            while from <= last
                && let Some(at) =
                    simd::find_equal(self.path, &entries[from..=last], test.mask, test.value)
            {
                let index = from + at;
                let run = self.note_dirty(0, entries, index, va(index), test, clear, gather, dirty);
                from = run.end() + 1;
                any = true;
            }
            return any;
        }
        let mut next = first;
        for part in geometry.parts(level, span) {
            match self.decode(level, &entries[part.index]) {
                Entry::Table(child) => {
                    self.prefetch_pages(level, entries.get(part.index + 1));
                    any |=
                        self.read_dirty_in(level - 1, child, part.span, test, clear, gather, dirty);
                }
                Entry::Leaf(_)
                    if part.index >= next
                        && test.matches(entries[part.index].load(Ordering::Acquire)) =>
                {
                    let va = va(part.index);
                    let run =
                        self.note_dirty(level, entries, part.index, va, test, clear, gather, dirty);
                    next = run.end() + 1;
                    any = true;
                }
                _ => {}
            }
        }
        any
    }

    /// Tells of the leaf of which the entry `index` is dirty, and clears all of its entries if
    /// `clear`. Which entries they are.
    #[expect(clippy::too_many_arguments, reason = "what a level of the recursion hands on")]
    fn note_dirty(
        &self,
        level: u32,
        entries: &[AtomicU64],
        index: usize,
        va: u64,
        test: DirtyTest,
        clear: bool,
        gather: &mut TlbGather,
        dirty: DirtySink<'_>,
    ) -> RangeInclusive<usize> {
        let run_log2 = match self.decode(level, &entries[index]) {
            Entry::Leaf(leaf) => leaf.run_log2,
            _ => 0,
        };
        let start = index >> run_log2 << run_log2;
        let run = start..=start + (1 << run_log2) - 1;
        if clear {
            for slot in &entries[run.clone()] {
                // A walker may set the bit at any moment; what it sets after this is new.
                let cleaned =
                    |entry| test.matches(entry).then(|| self.format.with_dirty(entry, false));
                let _ = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, cleaned);
            }
            gather.add_leaf_levels(1 << level);
        }
        self.tell_dirty(level, run_log2, va, gather, dirty);
        run
    }
}
