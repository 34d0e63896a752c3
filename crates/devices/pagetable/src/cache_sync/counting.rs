//! Counts what another way of syncing is asked to do.

use core::sync::atomic::{AtomicU64 as Counter, Ordering};

use super::{CacheSync, LINE_BYTES};
use crate::sync::AtomicU64;

/// Passes everything on to `S` and counts it.
#[derive(Debug, Default)]
pub struct Counting<S> {
    inner: S,
    lines: Counter,
    cleans: Counter,
    fences: Counter,
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lines cleaned, of [`LINE_BYTES`] each.
    pub lines: u64,
    /// Runs of entries that were cleaned.
    pub cleans: u64,
    /// Fences.
    pub fences: u64,
}

impl<S> Counting<S> {
    /// Counts what `inner` is asked to do.
    pub const fn new(inner: S) -> Self {
        Self { inner, lines: Counter::new(0), cleans: Counter::new(0), fences: Counter::new(0) }
    }

    /// What was counted since the last call.
    pub fn take(&self) -> Counts {
        Counts {
            lines: self.lines.swap(0, Ordering::Relaxed),
            cleans: self.cleans.swap(0, Ordering::Relaxed),
            fences: self.fences.swap(0, Ordering::Relaxed),
        }
    }
}

impl<S: CacheSync> CacheSync for Counting<S> {
    const COHERENT: bool = S::COHERENT;

    fn clean(&self, entries: &[AtomicU64]) {
        let start = entries.as_ptr().addr();
        let last = start + (size_of_val(entries)).saturating_sub(1);
        let lines = last / LINE_BYTES - start / LINE_BYTES + 1;
        self.lines.fetch_add(lines as u64, Ordering::Relaxed);
        self.cleans.fetch_add(1, Ordering::Relaxed);
        self.inner.clean(entries);
    }

    fn fence(&self) {
        self.fences.fetch_add(1, Ordering::Relaxed);
        self.inner.fence();
    }
}
