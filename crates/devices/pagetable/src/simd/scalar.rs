//! One entry at a time, on every machine.

use longshore_mem::isa::Scalar;

use super::kernels::Kernels;
use crate::sync::{AtomicU64, Ordering};

/// The portable version, which needs no token.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Kernels for Plain {
    #[inline]
    fn fill(self, entries: &[AtomicU64], first: u64, step: u64) {
        let mut value = first;
        for entry in entries {
            entry.store(value, Ordering::Relaxed);
            value = value.wrapping_add(step);
        }
    }

    #[inline]
    fn find<const EQUAL: bool>(
        self,
        entries: &[AtomicU64],
        mask: u64,
        value: u64,
    ) -> Option<usize> {
        entries.iter().position(|entry| (entry.load(Ordering::Relaxed) & mask == value) == EQUAL)
    }
}

impl Kernels for Scalar {
    fn fill(self, entries: &[AtomicU64], first: u64, step: u64) {
        Plain.fill(entries, first, step);
    }

    fn find<const EQUAL: bool>(
        self,
        entries: &[AtomicU64],
        mask: u64,
        value: u64,
    ) -> Option<usize> {
        Plain.find::<EQUAL>(entries, mask, value)
    }
}
