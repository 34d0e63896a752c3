//! Tables in an existing region.

use core::fmt;

use super::units::{UNIT_LOG2, Units};
use super::{Resident, TableAddr, TableMemory, TableMeta};
use crate::sync::AtomicU64;

/// Tables in a region that another owner provides, for instance one that is shared with the process
/// or the guest that walks them.
///
/// Others must only read the region, except for the accessed and dirty bits that a walker sets:
/// anything else that they write is taken for an entry of this process. It can make an operation
/// panic, or a table be allocated twice, but no more: entries are only accessed as atomic words,
/// and addresses found in them are checked against the region.
#[derive(Debug)]
pub struct Slab<'a> {
    entries: &'a [AtomicU64],
    metas: &'a [TableMeta],
    base: u64,
    units: Units,
}

/// The reason that a region cannot be a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlabError {
    /// There is not a [`TableMeta`] for each 4 KiB of entries.
    Metas {
        /// The number needed.
        needed: usize,
        /// The number given.
        given: usize,
    },
    /// The walker's address of the region is not a multiple of 4 KiB, or the region extends beyond
    /// 2^64.
    Base {
        /// The address.
        base: TableAddr,
    },
}

impl fmt::Display for SlabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metas { needed, given } => {
                write!(f, "{needed} pages of tables need as many TableMeta, and there are {given}")
            }
            Self::Base { base } => {
                write!(
                    f,
                    "region address {:#x} is not aligned to 4 KiB, or is too high",
                    base.raw()
                )
            }
        }
    }
}

impl core::error::Error for SlabError {}

impl<'a> Slab<'a> {
    /// Returns a memory of tables in `entries`, which a walker finds at `base`.
    ///
    /// `metas` must have one element for each 4 KiB of entries, and stay private to this process. A
    /// table cannot be larger than the alignment of `base`.
    ///
    /// # Errors
    /// [`SlabError`] if there are too few `metas` or `base` is not possible.
    pub fn new(
        entries: &'a [AtomicU64],
        metas: &'a [TableMeta],
        base: TableAddr,
    ) -> Result<Self, SlabError> {
        let units = entries.len() >> (UNIT_LOG2 - 3);
        if metas.len() < units {
            return Err(SlabError::Metas { needed: units, given: metas.len() });
        }
        let end = base.raw().checked_add((entries.len() as u64) << 3);
        if base.raw() & ((1 << UNIT_LOG2) - 1) != 0 || end.is_none() {
            return Err(SlabError::Base { base });
        }
        Ok(Self { entries, metas: &metas[..units], base: base.raw(), units: Units::new() })
    }

    /// Returns the number of tables in use.
    pub fn used(&self) -> u64 {
        self.units.used()
    }

    fn unit_of(&self, table: TableAddr) -> u64 {
        table.raw().wrapping_sub(self.base) >> UNIT_LOG2
    }
}

impl TableMemory for Slab<'_> {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        let address = |unit: u64| TableAddr::new(self.base + (unit << UNIT_LOG2));
        let next = |unit| Some(self.unit_of(self.meta(address(unit)).next()?));
        // Tables are aligned by the walker's addresses, so the base must be aligned too.
        if self.base & ((1 << size_log2) - 1) != 0 {
            return None;
        }
        let unit = self.units.alloc(size_log2, self.metas.len() as u64, next, |_| true)?;
        Some(address(unit))
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        let address = |unit: u64| TableAddr::new(self.base + (unit << UNIT_LOG2));
        self.units.free(self.unit_of(table), size_log2, |unit, next| {
            self.meta(address(unit)).set_next(next.map(address));
        });
    }

    #[inline]
    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        let first = table.raw().wrapping_sub(self.base) >> 3;
        self.entries.get(first as usize..).unwrap_or_default()
    }

    #[inline]
    fn resident(&self) -> Resident<'_> {
        Resident::new(self.entries, TableAddr::new(self.base))
    }

    #[inline]
    fn meta(&self, table: TableAddr) -> &TableMeta {
        &self.metas[self.unit_of(table) as usize]
    }
}
