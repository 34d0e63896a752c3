//! Tables in a region that exists already.

use core::fmt;

use super::units::{UNIT_LOG2, Units};
use super::{Resident, TableAddr, TableMemory, TableMeta};
use crate::sync::AtomicU64;

/// Tables in a region that someone else owns, for instance one that is shared with the process or
/// the guest that walks them.
///
/// Others must only read the region, but for a walker's accessed and dirty bits: what else they
/// write there is taken for this table's own. It can make an operation panic or a table be handed
/// out twice, and no more: entries are only ever read and written as atomic words, and addresses
/// found in them are held against the region.
#[derive(Debug)]
pub struct Slab<'a> {
    entries: &'a [AtomicU64],
    metas: &'a [TableMeta],
    base: u64,
    units: Units,
}

/// A region cannot be a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlabError {
    /// There must be a [`TableMeta`] for each 4 KiB of entries.
    Metas {
        /// How many there must be.
        needed: usize,
        /// How many there are.
        given: usize,
    },
    /// The walker's address of the region is not a multiple of 4 KiB, or the region reaches past
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
                write!(f, "{given} notes for {needed} pages of tables")
            }
            Self::Base { base } => {
                write!(f, "a region of tables cannot begin at {:#x}", base.raw())
            }
        }
    }
}

impl core::error::Error for SlabError {}

impl<'a> Slab<'a> {
    /// Tables in `entries`, which a walker finds at `base`.
    ///
    /// `metas` stay private to this process: one for each 4 KiB of entries. Tables larger than what
    /// `base` is aligned to cannot be had.
    ///
    /// # Errors
    /// [`SlabError`] where the sizes do not fit each other, or `base` is not possible.
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

    /// Tables in use.
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
        // Tables are aligned in the walker's addresses, so the base must be.
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
