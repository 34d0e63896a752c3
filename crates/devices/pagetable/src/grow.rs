//! A level on top.

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::Format;
use crate::simd;
use crate::sync::Ordering;
use crate::table::{PageTable, alloc_table};
use crate::table_memory::{TableAddr, TableMemory};

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Puts a level on top, so that more addresses are translated, and says where the new root is.
    /// What is mapped stays the same.
    ///
    /// The old root is the table for the lowest addresses from now on. A walker that still begins
    /// there, as one of the old number of levels, finds the same; tell it of the new root and the new
    /// number of levels (AMD: the device table entry's page table root and mode, written at once)
    /// before anything is mapped that only the new root leads to.
    ///
    /// # Errors
    /// [`Error::CannotGrow`] where the format has no further level: those whose addresses are
    /// sign-extended have none, nor those whose root's size depends on the number of levels.
    /// [`Error::OutOfMemory`].
    pub fn grow(&mut self) -> Result<TableAddr, Error> {
        let format = self.format.with_level_on_top().ok_or(Error::CannotGrow)?;
        let geometry = format.geometry();
        let level = geometry.root_level();
        let root = alloc_table(&format, &self.memory, level)?;
        let entries = &self.memory.entries(root)[..1 << (geometry.table_log2(level) - 3)];
        simd::clear(self.token, entries);
        entries[0].store(format.table(level, self.root), Ordering::Relaxed);
        self.sync.clean(entries);
        self.sync.fence();
        self.memory.meta(self.root).set_settled(true);
        self.format = format;
        self.root = root;
        Ok(root)
    }
}
