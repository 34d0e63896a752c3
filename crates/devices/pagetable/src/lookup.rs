//! The way to one address in live tables of the usual shape, with nothing of a step left to be worked
//! out: four levels of 512 entries, pages of 4 KiB.

use longshore_mem::Iova;

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format};
use crate::table::PageTable;
use crate::table_memory::{Live, TableAddr, TableMemory};
use crate::walk::Mapping;

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// What `iova` is mapped by, or `None`.
    ///
    /// As a [`Walker`](crate::Walker) says, but for entries on the way that deny something, which are
    /// never written here.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where the format does not translate `iova` at all.
    // Always: called, it would put together in memory what the caller takes a field of.
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

    /// The table of pages for `va`; `None` where the tables are of another shape, or none is there.
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

    /// The table below that `va` leads to, or the entry that leads to none.
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

/// What a slot of `level` stands for, in bytes, as a logarithm.
#[inline(always)]
const fn shift_512(level: u32) -> u32 {
    12 + 9 * level
}

/// Where the entry for `va` lies in a table of `level`.
#[inline(always)]
const fn offset_512(level: u32, va: u64) -> u64 {
    va >> (shift_512(level) - 3) & (511 << 3)
}
