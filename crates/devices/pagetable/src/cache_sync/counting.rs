//! Counts the calls of another cache maintenance.

use core::sync::atomic::{AtomicU64 as Counter, Ordering};

use super::{CacheSync, LINE_BYTES};
use crate::sync::AtomicU64;

/// Forwards all calls to `S` and counts them.
#[derive(Debug, Default)]
pub struct Counting<S> {
    inner: S,
    lines: Counter,
    cleans: Counter,
    fences: Counter,
}

/// The numbers of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// The number of lines cleaned, of [`LINE_BYTES`] each.
    pub lines: u64,
    /// The number of calls of [`clean`](CacheSync::clean), each for a run of entries.
    pub cleans: u64,
    /// The number of fences.
    pub fences: u64,
}

impl<S> Counting<S> {
    /// Returns a counter with zero calls, which forwards to `inner`.
    pub const fn new(inner: S) -> Self {
        Self { inner, lines: Counter::new(0), cleans: Counter::new(0), fences: Counter::new(0) }
    }

    /// Returns the numbers since the last call of this function, and sets them to zero.
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
