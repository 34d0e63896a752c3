//! The operations that each instruction set implements.

use crate::sync::AtomicU64;

/// The number of entries of a line.
#[cfg(not(any(miri, loom)))]
pub(super) const LINE_ENTRIES: usize = 8;

/// The operations on a run of entries, implemented by the instruction sets of
/// [`longshore_mem::isa`].
pub(super) trait Kernels: Copy {
    /// Stores `first`, `first + step`, `first + 2 * step`, … (wrapping).
    fn fill(self, entries: &[AtomicU64], first: u64, step: u64);

    /// Returns the index of the first entry for which `entry & mask == value` is `EQUAL`.
    fn find<const EQUAL: bool>(self, entries: &[AtomicU64], mask: u64, value: u64)
    -> Option<usize>;
}
