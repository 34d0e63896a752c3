//! Counts the events of the device, and prints them if requested.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longshore::access::Fault;
use longshore::mem::{AddrRange, Iova};
use longshore::vfio_user::{DirtyLog, DmaMapping, DmaTarget, Errno, Link};

use crate::layout::{Completion, outcome};

/// The counts of events. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_printed: AtomicBool,
    clients: AtomicU64,
    resets: AtomicU64,
    maps: AtomicU64,
    unmaps: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    ring_faults: AtomicU64,
}

/// A snapshot of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Clients that connected.
    pub clients: u64,
    /// Resets that clients requested.
    pub resets: u64,
    /// Memory ranges that clients mapped.
    pub maps: u64,
    /// Memory ranges that were unmapped, also when a client disconnected.
    pub unmaps: u64,
    /// Descriptors that were executed.
    pub done: u64,
    /// Descriptors that completed with an error.
    pub failed: u64,
    /// Rings that could not be accessed.
    pub ring_faults: u64,
}

impl Counts {
    /// Prints a line for each event from now on.
    pub fn print(&self) {
        self.0.is_printed.store(true, Ordering::Relaxed);
    }

    /// Returns a snapshot of the counts.
    pub fn snapshot(&self) -> Snapshot {
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        let Inner { clients, resets, maps, unmaps, done, failed, ring_faults, .. } = &*self.0;
        Snapshot {
            clients: load(clients),
            resets: load(resets),
            maps: load(maps),
            unmaps: load(unmaps),
            done: load(done),
            failed: load(failed),
            ring_faults: load(ring_faults),
        }
    }

    pub(crate) fn client(&self) {
        self.count(&self.0.clients, format_args!("client connected"));
    }

    pub(crate) fn reset(&self) {
        self.count(&self.0.resets, format_args!("reset"));
    }

    pub(crate) fn completion(&self, completion: &Completion) {
        let Completion { cookie, done_bytes, outcome, fault, .. } = completion;
        if *outcome == outcome::DONE {
            self.count(&self.0.done, format_args!("{cookie:#x}: done, {done_bytes} bytes"));
        } else {
            let said = format_args!(
                "{cookie:#x}: failed with {outcome} after {done_bytes} bytes, at {fault:#x}"
            );
            self.count(&self.0.failed, said);
        }
    }

    pub(crate) fn ring_fault(&self, fault: &Fault) {
        self.count(&self.0.ring_faults, format_args!("a ring could not be accessed: {fault}"));
    }

    fn count(&self, count: &AtomicU64, what: fmt::Arguments<'_>) {
        count.fetch_add(1, Ordering::AcqRel);
        if self.0.is_printed.load(Ordering::Relaxed) {
            println!("{what}");
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, resets, maps, unmaps, done, failed, ring_faults } = self;
        write!(
            f,
            "{clients} clients, {resets} resets; {maps} maps, {unmaps} unmaps; \
             {done} descriptors done, {failed} failed, {ring_faults} ring faults"
        )
    }
}

/// A [`DmaTarget`] that counts maps and unmaps, and passes them on.
#[derive(Debug)]
pub struct Counted<M> {
    inner: M,
    counts: Counts,
}

impl<M> Counted<M> {
    pub(crate) fn new(inner: M, counts: Counts) -> Self {
        Self { inner, counts }
    }
}

impl<M: DmaTarget> DmaTarget for Counted<M> {
    fn connected(&mut self, link: &Link) {
        self.inner.connected(link);
    }

    fn disconnected(&mut self) {
        self.inner.disconnected();
    }

    fn dma_map(&mut self, map: DmaMapping) -> Result<(), Errno> {
        let (range, rights) = (map.range, if map.writable { "rw" } else { "r" });
        self.inner.dma_map(map)?;
        let (start, len) = (range.start().raw(), range.len());
        self.counts.count(&self.counts.0.maps, format_args!("map {start:#x} + {len:#x} {rights}"));
        Ok(())
    }

    fn dma_unmap(&mut self, range: AddrRange<Iova>) -> Result<(), Errno> {
        self.inner.dma_unmap(range)?;
        let (start, len) = (range.start().raw(), range.len());
        self.counts.count(&self.counts.0.unmaps, format_args!("unmap {start:#x} + {len:#x}"));
        Ok(())
    }

    fn dirty_log(&mut self) -> Option<&mut dyn DirtyLog> {
        self.inner.dirty_log()
    }
}
