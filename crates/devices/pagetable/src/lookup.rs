//! A fast path for looking up one address in live tables of the usual shape: four levels of 512
//! entries, and pages of 4 KiB. All shifts and masks are constants.

use longshore_mem::Iova;

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format};
use crate::table::PageTable;
use crate::table_memory::{Live, TableAddr, TableMemory};
use crate::walk::Mapping;

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Returns the mapping that contains `iova`, or `None` if there is none.
    ///
    /// It differs from [`Walker::lookup`](crate::Walker::lookup) in that it ignores restrictions in
    /// entries that lead to tables, because a `PageTable` never writes such restrictions.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `iova` is outside the input range of the format.
    // Not inlined, it would write the whole `Mapping` to memory for a caller that uses one field of
    // it.
    #[inline(always)]
    pub fn lookup(&self, iova: Iova) -> Result<Option<Mapping>, Error> {
        let geometry = self.format.geometry();
        if !geometry.has_four_levels_of_512() {
            return self.walker().lookup(iova);
        }
        let va = geometry.va(iova).ok_or(Error::OutOfRange { iova, len_bytes: 1 })?;
        let (live, walker) = (self.live(), self.walker());
        let mut table = self.root;
        for level in [3, 2, 1] {
            match self.step_512(live, table, level, va) {
                Ok(child) => table = child,
                Err(entry) => {
                    return Ok(walker.mapping(iova, table, level, shift_512(level), entry));
                }
            }
        }
        let entry = live.load_at(table, offset_512(0, va));
        Ok(walker.mapping(iova, table, 0, shift_512(0), entry))
    }

    /// Returns the table of pages for `va`, or `None` if there is none or the tables have another
    /// shape.
    #[inline(always)]
    pub(crate) fn pages_table_512(&self, va: u64) -> Option<TableAddr> {
        if !self.format.geometry().has_four_levels_of_512() {
            return None;
        }
        let live = self.live();
        let table = self.step_512(live, self.root, 3, va).ok()?;
        let table = self.step_512(live, table, 2, va).ok()?;
        self.step_512(live, table, 1, va).ok()
    }

    /// Returns the next table on the way to `va`, or the entry if it does not lead to a table.
    #[inline(always)]
    fn step_512(
        &self,
        live: Live<'_, M>,
        table: TableAddr,
        level: u32,
        va: u64,
    ) -> Result<TableAddr, u64> {
        let entry = live.load_at(table, offset_512(level, va));
        match self.format.decode(level, entry) {
            Entry::Table(child) => Ok(child),
            _ => Err(entry),
        }
    }
}

/// Returns how many bytes a slot of `level` translates, as a logarithm.
#[inline(always)]
const fn shift_512(level: u32) -> u32 {
    12 + 9 * level
}

/// Returns the offset in bytes of the entry for `va` in a table of `level`.
#[inline(always)]
const fn offset_512(level: u32, va: u64) -> u64 {
    va >> (shift_512(level) - 3) & (511 << 3)
}
