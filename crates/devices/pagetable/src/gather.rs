//! The translations that walkers may still have cached after a change.

use longshore_mem::Iova;

use crate::table_memory::TableAddr;

/// The translations that must be invalidated before the changes gathered here are complete, and the
/// tables that can be reused only after that.
///
/// A gather collects any number of changes of one page table, and ends in one invalidation:
/// [`PageTable::finish`](crate::PageTable::finish). If it is dropped instead, its tables are
/// leaked.
#[derive(Debug, Default)]
#[must_use = "walkers may use the old translations until the gather is finished"]
pub struct TlbGather {
    touched: Option<(Iova, Iova)>,
    leaf_levels: u32,
    pub(crate) detached: Option<TableAddr>,
    dirty: bool,
    /// The number of the page table that it is used with.
    pub(crate) owner: Option<usize>,
}

/// Invalidates cached translations.
pub trait Invalidate {
    /// The error of a failed invalidation.
    type Error;

    /// Invalidates the translations in `gather`, and returns when no walker can use them any more.
    ///
    /// # Errors
    /// Any error after which a walker may still use the translations. The tables in `gather` are
    /// then leaked.
    fn flush(&self, gather: &TlbGather) -> Result<(), Self::Error>;
}

impl TlbGather {
    /// Returns an empty gather.
    pub const fn new() -> Self {
        Self { touched: None, leaf_levels: 0, detached: None, dirty: false, owner: None }
    }

    /// Returns `true` if there is nothing to invalidate.
    pub const fn is_empty(&self) -> bool {
        self.touched.is_none()
    }

    /// Returns the first and the last address whose translation changed. The range includes
    /// addresses between two changes.
    pub const fn touched(&self) -> Option<(Iova, Iova)> {
        self.touched
    }

    /// Returns the levels at which leaves may have changed, one bit each: bit 0 stands for pages of
    /// the granule. If a whole subtree was detached, the bits of all its levels are set.
    pub const fn leaf_levels(&self) -> u32 {
        self.leaf_levels
    }

    /// Returns `true` if tables were detached, so that cached entries that lead to tables must be
    /// invalidated too.
    pub const fn has_tables(&self) -> bool {
        self.detached.is_some()
    }

    /// Returns `true` if a call with this gather found a dirty page that it unmapped, that it was
    /// asked to read, or whose dirty bit was lost in a change of permissions. Always `false` if
    /// dirty pages are not tracked.
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
