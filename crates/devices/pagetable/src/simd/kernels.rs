//! What each instruction set does to a run of entries.

use crate::sync::AtomicU64;

/// Entries of a line.
#[cfg(not(any(miri, loom)))]
pub(super) const LINE_ENTRIES: usize = 8;

/// What can be done to a run of entries. Implemented by the tokens of [`longshore_mem::isa`].
pub(super) trait Kernels: Copy {
    /// Stores `first`, `first + step`, `first + 2 * step`, … (wrapping).
    fn fill(self, entries: &[AtomicU64], first: u64, step: u64);

    /// The first entry of which `entry & mask == value` is what `equal` says.
    fn find<const EQUAL: bool>(self, entries: &[AtomicU64], mask: u64, value: u64)
    -> Option<usize>;
}
