//! Reading which pages devices have written.

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
        self.read_dirty_in(level, self.root, span, test, clear, gather, &mut dirty);
        if clear {
            self.sync.fence();
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
            // Clean entries are passed many at a time.
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

    /// The entries of the leaf that the entry `index` is of; that one alone where it is of none.
    fn run_of(&self, level: u32, entries: &[AtomicU64], index: usize) -> Range<usize> {
        let run_log2 = match self.decode(level, &entries[index]) {
            Entry::Leaf(leaf) => leaf.run_log2,
            _ => 0,
        };
        let start = index >> run_log2 << run_log2;
        start..start + (1 << run_log2)
    }

    /// Tells of a leaf that is dirty: its entries are `slots`, and `va` is its first. Clears them if
    /// `clear`, and then a walker may remember any part of the leaf as dirty.
    #[expect(clippy::too_many_arguments, reason = "what a level of the recursion hands on")]
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
                // A walker may set the bit at any moment; what it sets after this is new.
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
