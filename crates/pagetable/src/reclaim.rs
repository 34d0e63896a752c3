//! Taking out tables that hold nothing any more.

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
    /// Takes out every table that lies whole in `len_bytes` from `iova` and maps nothing. Unmapping
    /// takes out only tables that its own range covers, so pages unmapped bit by bit leave empty
    /// ones, and a block cannot take their place before.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::OutOfRange`].
    ///
    /// # Panics
    /// Where `gather` was used with another page table.
    pub fn reclaim(&self, iova: Iova, len_bytes: u64, gather: &mut TlbGather) -> Result<(), Error> {
        let span = self.span(iova, len_bytes)?;
        self.claim(gather);
        let level = self.format.geometry().root_level();
        if self.reclaim_in(level, self.root, span, gather) {
            self.sync.fence();
            gather.touch(self.iova(span.first), self.iova(span.last));
        }
        Ok(())
    }

    /// Whether anything was taken out.
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
        let entries = self.entries(level, table);
        if level == 0 {
            let present = self.format.present_mask();
            return simd::find_different(self.path, entries, present, 0).is_none();
        }
        entries.iter().all(|slot| match self.decode(level, slot) {
            Entry::Absent => true,
            Entry::Table(child) => self.maps_nothing(level - 1, child),
            Entry::Leaf(_) | Entry::Reserved => false,
        })
    }
}
