//! What walkers may still remember of entries that changed.

use longshore_mem::Iova;

use crate::table_memory::TableAddr;

/// What must be invalidated before the changes gathered here are complete, and the tables that may
/// be reused only then.
///
/// One gather takes any number of changes of one page table, and ends in one invalidation:
/// [`PageTable::finish`](crate::PageTable::finish). Dropped instead, it leaks its tables.
#[derive(Debug, Default)]
#[must_use = "what was unmapped stays in use until it is finished"]
pub struct TlbGather {
    touched: Option<(Iova, Iova)>,
    leaf_levels: u32,
    pub(crate) detached: Option<TableAddr>,
    dirty: bool,
    /// Which page table it is used with.
    pub(crate) owner: Option<usize>,
}

/// How walkers are made to forget.
pub trait Invalidate {
    /// Why they could not be.
    type Error;

    /// Returns when no walker can use the entries any more that `gather` tells of.
    ///
    /// # Errors
    /// Where that cannot be made sure. The tables gathered are never reused then.
    fn flush(&self, gather: &TlbGather) -> Result<(), Self::Error>;
}

impl TlbGather {
    /// Nothing gathered.
    pub const fn new() -> Self {
        Self { touched: None, leaf_levels: 0, detached: None, dirty: false, owner: None }
    }

    /// Whether there is nothing to invalidate.
    pub const fn is_empty(&self) -> bool {
        self.touched.is_none()
    }

    /// The first and the last address whose translation changed. Addresses between two changes are
    /// included.
    pub const fn touched(&self) -> Option<(Iova, Iova)> {
        self.touched
    }

    /// At which levels leaves may have changed: bit 0 for pages of the granule. Of a subtree that
    /// was taken out whole, all levels count.
    pub const fn leaf_levels(&self) -> u32 {
        self.leaf_levels
    }

    /// Whether tables were taken out, so that what walkers remember of them must go too.
    pub const fn has_tables(&self) -> bool {
        self.detached.is_some()
    }

    /// Whether a page that was changed or unmapped was dirty. Only known where dirty pages are
    /// tracked.
    pub const fn saw_dirty(&self) -> bool {
        self.dirty
    }

    pub(crate) fn touch(&mut self, first: Iova, last: Iova) {
        let (low, high) = self.touched.unwrap_or((first, last));
        self.touched = Some((low.min(first), high.max(last)));
    }

    pub(crate) fn add_leaf_levels(&mut self, levels: u32) {
        self.leaf_levels |= levels;
    }

    pub(crate) fn add_dirty(&mut self) {
        self.dirty = true;
    }
}
