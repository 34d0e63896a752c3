//! The maps and unmaps of a client, in order.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use longshore_mem::{AddrRange, Iova};
use longshore_vfio_user::{DmaBacking, DmaMapping, DmaTarget, Errno, Link};

/// A map or an unmap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) at: Instant,
    pub(crate) start: u64,
    pub(crate) len_bytes: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A map. All maps are readable.
    Map {
        writable: bool,
        by_messages: bool,
        /// The offset of the map in the file, or 0.
        offset: u64,
    },
    Unmap,
}

impl Event {
    /// Returns `true` if this maps memory below 1 MiB read-only, which the firmware does last.
    pub(crate) fn locks_low_memory(&self) -> bool {
        let is_locked = matches!(self.kind, Kind::Map { writable: false, by_messages: false, .. });
        is_locked && self.start < 1 << 20
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, len_bytes, .. } = self;
        let how = match self.kind {
            Kind::Unmap => "unmap",
            Kind::Map { writable: true, by_messages: false, .. } => "map   rw, file",
            Kind::Map { writable: false, by_messages: false, .. } => "map   r,  file",
            Kind::Map { writable: true, by_messages: true, .. } => "map   rw, messages",
            Kind::Map { writable: false, by_messages: true, .. } => "map   r,  messages",
        };
        write!(f, "{start:#012x} + {len_bytes:#010x} {how}")
    }
}

/// All events so far. Clones share the list.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    pub(crate) fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    fn add(&self, range: AddrRange<Iova>, kind: Kind) {
        let (start, len_bytes) = (range.start().raw(), range.len());
        self.0.lock().unwrap().push(Event { at: Instant::now(), start, len_bytes, kind });
    }
}

/// A DMA handler that records events and passes them on.
pub(crate) struct Observed<M> {
    inner: M,
    events: Events,
}

impl<M> Observed<M> {
    pub(crate) fn new(inner: M, events: Events) -> Self {
        Self { inner, events }
    }
}

impl<M: DmaTarget> DmaTarget for Observed<M> {
    fn connected(&mut self, link: &Link) {
        self.inner.connected(link);
    }

    fn dma_map(&mut self, map: DmaMapping) -> Result<(), Errno> {
        assert!(map.readable, "{map:?}");
        let (range, writable) = (map.range, map.writable);
        let (by_messages, offset) = match &map.backing {
            DmaBacking::Mmap { offset, .. } | DmaBacking::FileIo { offset, .. } => {
                (false, offset.raw())
            }
            DmaBacking::Messages => (true, 0),
        };
        self.inner.dma_map(map)?;
        self.events.add(range, Kind::Map { writable, by_messages, offset });
        Ok(())
    }

    fn dma_unmap(&mut self, range: AddrRange<Iova>) -> Result<(), Errno> {
        self.inner.dma_unmap(range)?;
        self.events.add(range, Kind::Unmap);
        Ok(())
    }
}
