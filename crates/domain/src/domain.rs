//! A device's view of memory.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use longshore_mem::{AddrRange, DmaMemory, Iova};

use crate::backend::{Backend, Limits};
use crate::batch::Batch;
use crate::counters::{Counters, Event, Tallies, Tally};
use crate::direction::Direction;
use crate::error::Failed;
use crate::iova::{IovaAllocator, IovaCache, IovaError, IovaRange, Placement};
use crate::mapping::Mapping;

/// What one device, or one group of devices that cannot be kept apart, can reach: nothing but what is
/// mapped here.
///
/// It is shared by any number of threads. A thread that maps much opens a door of its own
/// ([`local`](Self::local)), which takes no lock.
pub struct Domain {
    backend: Box<dyn Backend>,
    limits: Limits,
    iovas: IovaAllocator,
    placement: Placement,
    tallies: Tallies,
}

/// How a domain is set up.
#[derive(Debug)]
#[must_use = "nothing is made before `build`"]
pub struct Builder {
    backend: Box<dyn Backend>,
    address_bits: u32,
    guard_bytes: u64,
}

impl Builder {
    /// Bits of an address that the device can say, where that is fewer than the IOMMU has: 32 for
    /// many.
    pub fn address_bits(self, bits: u32) -> Self {
        Self { address_bits: bits, ..self }
    }

    /// So many bytes behind each mapping stay unmapped, rounded up to granules: a device that runs
    /// past the end faults. None where this is not asked for.
    pub fn guard_bytes(self, bytes: u64) -> Self {
        Self { guard_bytes: bytes, ..self }
    }

    /// The domain.
    pub fn build(self) -> Domain {
        let limits = self.backend.limits();
        let usable: Vec<_> = below(&limits.usable, self.address_bits);
        let iovas = IovaAllocator::new(limits.granule, &usable, &limits.reserved, self.guard_bytes);
        let placement = Placement { align: limits.granule, ..Placement::ANYWHERE };
        Domain { backend: self.backend, limits, iovas, placement, tallies: Tallies::default() }
    }
}

fn below(usable: &[AddrRange<Iova>], bits: u32) -> Vec<AddrRange<Iova>> {
    let Some(all) = 1u64.checked_shl(bits) else { return usable.to_vec() };
    let all = AddrRange::new(Iova::new(0), all).expect("it begins at zero");
    usable.iter().filter_map(|range| range.intersection(all)).collect()
}

impl Domain {
    /// Over a backend.
    pub fn builder(backend: impl Backend + 'static) -> Builder {
        Builder { backend: Box::new(backend), address_bits: 64, guard_bytes: 0 }
    }

    /// Lets the device reach all of `memory`, as `direction` says, until the mapping is unmapped.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    pub fn map<B: DmaMemory + 'static>(
        &self,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B>, Failed<B>> {
        Mapping::new(self, memory, direction, self.placement)
    }

    /// The same at an address that the caller chooses.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    pub fn map_at<B: DmaMemory + 'static>(
        &self,
        iova: Iova,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B>, Failed<B>> {
        Mapping::at(self, iova, memory, direction)
    }

    /// A door for the calling thread.
    pub fn local(&self) -> Local<'_> {
        Local {
            domain: self,
            cache: RefCell::new(IovaCache::new(&self.iovas)),
            tally: self.tallies.open(),
        }
    }

    /// Unmappings that are done together.
    pub fn batch<B: DmaMemory + 'static>(&self) -> Batch<'_, B> {
        Batch::new(self)
    }

    /// What the backend can map, and where.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The addresses.
    pub fn iovas(&self) -> &IovaAllocator {
        &self.iovas
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        self.tallies.sum()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("backend", &self.backend)
            .field("iovas", &self.iovas)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

/// A thread's door to a [`Domain`]: it keeps IOVAs for its next mappings, and gives them back when it
/// is dropped.
pub struct Local<'d> {
    domain: &'d Domain,
    cache: RefCell<IovaCache<'d>>,
    tally: Arc<Tally>,
}

impl Local<'_> {
    /// As [`Domain::map`], without a lock once it is warm.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[inline]
    pub fn map<B: DmaMemory + 'static>(
        &self,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B, Self>, Failed<B>> {
        Mapping::new(self, memory, direction, self.domain.placement)
    }

    /// Unmappings that are done together.
    pub fn batch<B: DmaMemory + 'static>(&self) -> Batch<'_, B, Self> {
        Batch::new(self)
    }

    /// The domain.
    pub fn domain(&self) -> &Domain {
        self.domain
    }
}

impl Drop for Local<'_> {
    fn drop(&mut self) {
        self.domain.tallies.close(&self.tally);
    }
}

impl fmt::Debug for Local<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// By which mappings are made and taken back: a [`Domain`], or a thread's [`Local`].
pub trait Door: sealed::Door {}

impl Door for Domain {}
impl Door for Local<'_> {}

pub(crate) mod sealed {
    use super::{Domain, Event, IovaError, IovaRange, Local, Placement};

    /// What doors differ in.
    pub trait Door {
        fn domain(&self) -> &Domain;
        fn take(&self, len_bytes: u64, placement: Placement) -> Result<IovaRange, IovaError>;
        fn give(&self, range: IovaRange);
        fn note(&self, event: Event);
    }

    impl Door for Domain {
        fn domain(&self) -> &Domain {
            self
        }

        fn take(&self, len_bytes: u64, placement: Placement) -> Result<IovaRange, IovaError> {
            self.iovas.take(len_bytes, placement)
        }

        fn give(&self, range: IovaRange) {
            self.iovas.give(range);
        }

        fn note(&self, event: Event) {
            self.tallies.shared.note_shared(event);
        }
    }

    impl Door for Local<'_> {
        #[inline]
        fn domain(&self) -> &Domain {
            self.domain
        }

        #[inline]
        fn take(&self, len_bytes: u64, placement: Placement) -> Result<IovaRange, IovaError> {
            self.cache.borrow_mut().take(len_bytes, placement)
        }

        #[inline]
        fn give(&self, range: IovaRange) {
            self.cache.borrow_mut().give(range);
        }

        #[inline]
        fn note(&self, event: Event) {
            self.tally.note(event);
        }
    }
}
