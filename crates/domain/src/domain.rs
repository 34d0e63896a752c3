//! A device's view of memory.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use longshore_mem::{AddrRange, DmaMemory, Iova};

use crate::backend::{Backend, BackendError, Limits};
use crate::batch::Batch;
use crate::calibration::Calibration;
use crate::core::Core;
use crate::counters::Counters;
use crate::direction::Direction;
use crate::dump::Dump;
use crate::error::{Error, Failed};
use crate::iova::{IovaAllocator, Iovas, Placement};
use crate::local::Local;
use crate::mapping::Mapping;
use crate::policy::{Bounce, Policy, WhenFull};
use crate::pool::reclaim_thread::{self, Reclaim};
use crate::pool::{Pools, budget};
use crate::state::State;
use crate::trace::span;
use crate::watch::{Misuse, Watch};

/// What one device, or one group of devices that cannot be kept apart, can reach: nothing but what is
/// mapped here.
///
/// It is shared by any number of threads. A thread that maps much opens a door of its own
/// ([`local`](Self::local)), which takes no lock.
pub struct Domain {
    state: Arc<State>,
}

/// How a domain is set up.
#[derive(Debug)]
#[must_use = "nothing is made before `build`"]
pub struct Builder {
    backend: Box<dyn Backend>,
    address_bits: u32,
    guard_bytes: u64,
    bounce: Option<Bounce>,
    when_full: WhenFull,
    trusted: bool,
    align_mask: u64,
    pool_limit_bytes: u64,
    idle: Option<Duration>,
    watch: Option<Watch>,
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

    /// Which transfers go through bounce buffers.
    ///
    /// Where this is not asked for, those that are better copied than mapped: the first domain of the
    /// process on a backend of its kind is [calibrated](Domain::calibrate) when it is built, and
    /// [`Domain::calibration`] tells what was found. In this process mapping is cheap, and the default
    /// is [`Bounce::Never`]; where unmapping has to wait for busy sessions, another choice may be
    /// better.
    ///
    /// Memory that is bounced is not what the device sees while it is mapped: look at it after
    /// [`sync_for_cpu`](Mapping::sync_for_cpu).
    pub fn bounce(self, bounce: Bounce) -> Self {
        Self { bounce: Some(bounce), ..self }
    }

    /// Trusts the device with the bytes that share a granule with a transfer, so that no transfer is
    /// bounced for their sake.
    ///
    /// An IOMMU maps whole granules. While a transfer is mapped, a trusted device can therefore read
    /// the other bytes of its first and its last granule, and in the directions in which it writes
    /// also overwrite them: other objects of the heap, and of [borrowed](Domain::lend) bytes their
    /// neighbors. No check stands between the device and them.
    ///
    /// If the devices are code of this process ([`Limits::in_process`], as with
    /// [`Soft`](crate::backend::Soft)), this has no effect: a session could read and write other
    /// objects of the process from safe code.
    ///
    /// # Safety
    /// If [`Limits::in_process`] is `false`, each device of the domain must write only to bytes of
    /// transfers that are mapped for it, and only in their directions. That includes the device, its
    /// firmware, and the addresses and lengths that drivers give it, also from safe code, which can
    /// write to the registers of a device.
    #[expect(
        unsafe_code,
        reason = "the caller answers for devices that no IOMMU confines to bytes"
    )]
    pub unsafe fn trusted(self) -> Self {
        Self { trusted: true, ..self }
    }

    /// Sets the bits of an address that a bounced transfer keeps: `iova & mask` is then the memory's
    /// address in this process `& mask`, as with `dma_set_min_align_mask` of the kernel.
    ///
    /// Some devices derive the shape of a transfer from the low bits of its address, and a driver
    /// computes it from the address of the memory: Linux sets `0xfff` for NVMe controllers with pages
    /// of 4 KiB. A driver that computes it from the IOVA needs no mask. Without this call the mask is
    /// zero, and bounced transfers begin at the start of a granule, which most devices can take.
    /// Transfers that are mapped keep all bits below the granule in any case, and so do those of which
    /// only the ends are bounced. Of a scattered transfer each place keeps the bits, so it can have
    /// more segments than without a mask.
    ///
    /// A bounce buffer then has unused bytes before the transfer: they are zero, and they count
    /// towards the size of the buffer.
    ///
    /// # Errors
    /// [`Error::AlignMask`] if the mask has bits of the backend's granule or above: no transfer keeps
    /// those.
    pub fn min_align_mask(self, mask: u64) -> Result<Self, Error> {
        let granule = self.backend.limits().granule;
        if mask >= granule.bytes() {
            return Err(Error::AlignMask { mask, granule });
        }
        Ok(Self { align_mask: mask, ..self })
    }

    /// The most that this domain's bounce buffers may have, and what happens to transfers then. No
    /// limit, and [`WhenFull::MapDirectly`], where this is not asked for.
    pub fn pool_limit(self, bytes: u64, when_full: WhenFull) -> Self {
        Self { pool_limit_bytes: bytes, when_full, ..self }
    }

    /// Sets after how long bounce buffers that no transfer uses, and chunks of DMA pools of which no
    /// element is in use, are freed. The default is one second; with `None` they are never freed.
    ///
    /// One thread of the process does this for all domains, and runs only while one of them has such
    /// memory. If the kernel reports that memory is scarce, it frees all that is idle at once.
    pub fn free_after(self, idle: Option<Duration>) -> Self {
        Self { idle, ..self }
    }

    /// Looks at what is done with mappings, and tells `report` of each [`Misuse`]: for tests, as every
    /// mapping then takes a lock. It may panic, print, or count.
    ///
    /// ```
    /// # use longshore_domain::{Direction, Domain, backend::Soft};
    /// # use longshore_heap::Heap;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Domain::builder(Soft::new()?).watch(|misuse| panic!("{misuse}"));
    /// let domain = builder.build();
    /// let mut mapping = domain.map(Heap::Memfd.allocate(4096)?, Direction::FromDevice)?;
    /// mapping.sync_for_cpu(0..512)?;
    /// let mut status = [0; 8];
    /// mapping.read(0, &mut status)?;
    /// // mapping.read(512, &mut status)?; would panic: the device has those bytes.
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(self, report: impl Fn(&Misuse) + Send + Sync + 'static) -> Self {
        Self { watch: Some(Watch::new(Box::new(report))), ..self }
    }

    /// The domain.
    pub fn build(self) -> Domain {
        let limits = self.backend.limits();
        let usable: Vec<_> = below(&limits.usable, self.address_bits);
        let iovas = IovaAllocator::new(limits.granule, &usable, &limits.reserved, self.guard_bytes);
        let placement = Placement { align: limits.granule, ..Placement::ANYWHERE };
        let is_trusted = self.trusted && !limits.in_process;
        let bounce = self.bounce.unwrap_or(Bounce::Never);
        let core = Core { backend: self.backend, limits, iovas, placement };
        let pools = Pools::new(self.pool_limit_bytes, &budget::PROCESS);
        let policy = Policy::new(bounce, self.when_full, is_trusted, self.align_mask);
        let state = State::new(core, pools, policy, self.watch, self.idle);
        let domain = Domain { state: Arc::new(state) };
        if self.bounce.is_none() && !domain.limits().maps_cheaply {
            domain.use_calibration();
        }
        if self.idle.is_some() {
            let state: Weak<State> = Arc::downgrade(&domain.state);
            reclaim_thread::add(state);
        }
        domain
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
        Builder {
            backend: Box::new(backend),
            address_bits: 64,
            guard_bytes: 0,
            bounce: None,
            when_full: WhenFull::MapDirectly,
            trusted: false,
            align_mask: 0,
            pool_limit_bytes: u64::MAX,
            idle: Some(Duration::from_secs(1)),
            watch: None,
        }
    }

    /// Over an address space of the kernel's with the PCI device at `address`, as `0000:01:00.0`:
    /// by iommufd where the kernel has it, and else by VFIO's type 1.
    ///
    /// # Errors
    /// [`OpenError`](crate::backend::OpenError), which says what whoever administers the machine must
    /// do.
    #[cfg(all(feature = "vfio", feature = "iommufd"))]
    pub fn open_device(
        address: &str,
    ) -> Result<(Builder, crate::backend::Device), crate::backend::OpenError> {
        use crate::backend::{Iommufd, OpenError, Vfio};
        match Iommufd::open_device(address) {
            Ok((backend, device)) => Ok((Self::builder(backend), device)),
            Err(OpenError::NoInterface { .. }) => {
                let (backend, device) = Vfio::open_device(address)?;
                Ok((Self::builder(backend), device))
            }
            Err(error) => Err(error),
        }
    }

    /// Lets the device reach all of `memory`, as `direction` says, until the mapping is unmapped.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[track_caller]
    pub fn map<B: DmaMemory + 'static>(
        &self,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B>, Failed<B>> {
        Mapping::new(self, memory, direction, false)
    }

    /// The same of memory that the device only writes, and says how much it has written: what was
    /// there before is not copied, and [`Mapping::complete`] takes it back.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[track_caller]
    pub fn map_reported<B: DmaMemory + 'static>(
        &self,
        memory: B,
    ) -> Result<Mapping<'_, B>, Failed<B>> {
        Mapping::new(self, memory, Direction::FromDevice, true)
    }

    /// As [`map`](Self::map), at an address that the caller chooses; never bounced.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[track_caller]
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
        let local = Local::new(self);
        self.state.caches.add(local.cache());
        local
    }

    /// Unmappings that are done together.
    pub fn batch<B: DmaMemory + 'static>(&self) -> Batch<'_, B> {
        Batch::new(self)
    }

    /// Frees bounce buffers that no transfer has used for `idle`, and chunks of DMA pools of which no
    /// element was in use, and takes back the addresses, bounce buffers and elements that other threads
    /// keep for their next transfers. Returns how many bytes were freed. [`reclaim`](Self::reclaim)
    /// also frees page tables.
    ///
    /// # Errors
    /// [`BackendError`] if a chunk could not be unmapped; it is leaked. If this thread cannot unmap it
    /// because of a pin or a lease of its own, the chunk is kept instead, and can be freed later.
    pub fn shrink(&self, idle: Duration) -> Result<u64, BackendError> {
        let _span = span!("shrink", idle = idle);
        self.state.shrink(idle)
    }

    /// Changes which transfers go through bounce buffers, of those that begin from here on.
    pub fn set_bounce(&self, bounce: Bounce) {
        self.state.policy.set(bounce);
    }

    /// What was measured when the domain was built without being told what to bounce; `None` where it
    /// was told, where mapping is cheap, and where the backend did not map.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.state.calibration.get().map(Arc::as_ref)
    }

    /// What the backend can map, and where.
    pub fn limits(&self) -> &Limits {
        &self.state.core.limits
    }

    /// Returns a view of the addresses: how many there are, and how many are free.
    pub fn iovas(&self) -> Iovas<'_> {
        Iovas::new(&self.state.core.iovas)
    }

    /// Which transfers go through bounce buffers now.
    pub fn bounce(&self) -> Bounce {
        self.state.policy.bounce()
    }

    /// All there is to know of it now, to be printed: limits, addresses, pools, counters, and the
    /// mappings of a domain that is [watched](Builder::watch).
    pub fn dump(&self) -> Dump {
        Dump {
            backend: self.state.core.backend.name(),
            limits: self.limits().clone(),
            bounce: self.bounce(),
            iovas: self.iovas().usage(),
            pools: self.state.pools.usage(self.limits().granule.bytes()),
            dma_pools: self.state.dma_pools.all().iter().map(|pool| pool.usage()).collect(),
            counters: self.counters(),
            mappings: self.state.watch.as_ref().map(Watch::live),
        }
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        let State { pools, tallies, .. } = &*self.state;
        let (pool_grows, pool_shrinks) = pools.changes();
        Counters {
            pool_bytes: pools.held_bytes(),
            pool_peak_bytes: pools.peak_bytes(),
            pool_grows,
            pool_shrinks,
            ..tallies.sum()
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // From here on only DMA pools have what is inside.
        reclaim_thread::remove(&*self.state);
        if let Some(watch) = &self.state.watch {
            watch.end();
        }
        self.state.set_dropped();
        if self.state.end().is_err() {
            reclaim_thread::end_later(Arc::clone(&self.state) as _);
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("backend", &self.state.core.backend)
            .field("iovas", &self.iovas())
            .field("policy", &self.state.policy)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
