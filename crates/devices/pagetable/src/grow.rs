//! Adding a level on top of live tables.

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::Format;
use crate::simd;
use crate::sync::Ordering;
use crate::table::{PageTable, alloc_table};
use crate::table_memory::{TableAddr, TableMemory};

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Adds a level on top, so that more addresses are translated, and returns the address of the
    /// new root. Existing mappings stay as they are.
    ///
    /// The old root becomes the table for the lowest addresses. A walker that still starts there,
    /// with the old number of levels, gets the same translations. Give it the new root and the new
    /// number of levels (AMD: page table root and mode in the device table entry, in one write)
    /// before you map addresses that only the new root translates.
    ///
    /// # Errors
    /// [`Error::CannotGrow`] if the format has no further level. Formats with sign-extended
    /// addresses have none, and neither have formats in which the size of the root depends on the
    /// number of levels.
    ///
    /// [`Error::OutOfMemory`] if there is no memory for the new root.
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
