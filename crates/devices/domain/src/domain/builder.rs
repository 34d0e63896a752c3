//! The setup of a domain.

use std::time::Duration;

use longshore_mem::{AddrRange, Iova};

use super::Domain;
use crate::backend::Backend;
use crate::core::Core;
use crate::error::Error;
use crate::iova::{IovaAllocator, Placement};
use crate::policy::{Bounce, Policy, WhenFull};
use crate::pool::{Pools, budget};
use crate::state::State;
use crate::watch::{Misuse, Watch};

/// The setup of a [`Domain`].
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
    /// Sets the width of the device's addresses, if it is less than that of the IOMMU: 32 bits for
    /// many devices.
    pub fn address_bits(self, bits: u32) -> Self {
        Self { address_bits: bits, ..self }
    }

    /// Leaves this many bytes after each mapping unmapped, rounded up to granules, so that a device
    /// which runs past the end faults. The default is zero.
    pub fn guard_bytes(self, bytes: u64) -> Self {
        Self { guard_bytes: bytes, ..self }
    }

    /// Sets which transfers go through bounce buffers.
    ///
    /// Without this call, a transfer is bounced if that is faster: the first domain of the process on a
    /// kind of backend is [calibrated](Domain::calibrate) when it is built, and
    /// [`Domain::calibration`] returns the result. On a backend that
    /// [maps cheaply](crate::backend::Limits::maps_cheaply), such as [`Soft`](crate::backend::Soft), the
    /// default is [`Bounce::Never`]; another choice may be better if unmapping has to wait for busy
    /// sessions.
    ///
    /// The device accesses a copy of bounced memory. While it is mapped, call
    /// [`sync_for_cpu`](crate::Mapping::sync_for_cpu) before you read the memory.
    pub fn bounce(self, bounce: Bounce) -> Self {
        Self { bounce: Some(bounce), ..self }
    }

    /// Trusts the device with the bytes that share a granule with a transfer, so that no transfer is
    /// bounced to protect them.
    ///
    /// An IOMMU maps whole granules. While a transfer is mapped, a trusted device can therefore read
    /// the other bytes of its first and its last granule. If the direction lets the device write, it can
    /// also overwrite them. They are other objects of the heap, or the neighbors of
    /// [borrowed](Domain::lend) bytes. Nothing else protects them from the device.
    ///
    /// If the devices are code of this process
    /// ([`Limits::in_process`](crate::backend::Limits::in_process), as with
    /// [`Soft`](crate::backend::Soft)), this has no effect: a session could read and write other
    /// objects of the process from safe code.
    ///
    /// # Safety
    /// If [`Limits::in_process`](crate::backend::Limits::in_process) is `false`, each device of the
    /// domain must write only to bytes of transfers that are mapped for it, and only in their
    /// directions. That includes the device, its firmware, and the addresses and lengths that drivers
    /// give it, also from safe code, which can write to the registers of a device.
    #[expect(
        unsafe_code,
        reason = "the caller vouches for the device, because an IOMMU protects only whole granules"
    )]
    pub unsafe fn trusted(self) -> Self {
        Self { trusted: true, ..self }
    }

    /// Sets the bits of an address that a bounced transfer keeps: `iova & mask` is then the memory's
    /// address in this process `& mask`, as with `dma_set_min_align_mask` of the kernel.
    ///
    /// Some devices derive the layout of a transfer from the low bits of its address, while their driver
    /// computes it from the address of the memory: Linux sets `0xfff` for NVMe controllers with pages
    /// of 4 KiB. A driver that computes it from the IOVA needs no mask. Without this call the mask is
    /// zero, and bounced transfers begin at the start of a granule, which suits most devices.
    /// Transfers that are mapped keep all bits below the granule in any case, and so do those of which
    /// only the ends are bounced. In a scattered transfer each place keeps the bits, so it can have
    /// more segments than without a mask.
    ///
    /// With a mask, a bounce buffer can have unused bytes before the transfer. They are zero, and they
    /// are part of the size of the buffer.
    ///
    /// # Errors
    /// [`Error::AlignMask`] if the mask has bits of the backend's granule or above, which no transfer
    /// keeps.
    pub fn min_align_mask(self, mask: u64) -> Result<Self, Error> {
        let granule = self.backend.limits().granule;
        if mask >= granule.bytes() {
            return Err(Error::AlignMask { mask, granule });
        }
        Ok(Self { align_mask: mask, ..self })
    }

    /// Limits the bytes of this domain's bounce buffers, and sets the handling of transfers at the
    /// limit. The default is no limit, and [`WhenFull::MapDirectly`].
    pub fn pool_limit(self, bytes: u64, when_full: WhenFull) -> Self {
        Self { pool_limit_bytes: bytes, when_full, ..self }
    }

    /// Sets the time after which idle memory is freed: bounce buffers that no transfer uses, and chunks
    /// of DMA pools of which no element is in use. The default is one second; with `None` they are never
    /// freed.
    ///
    /// One thread of the process does this for all domains, and runs only while one of them has
    /// such memory. If the kernel reports memory pressure, it frees all idle memory at once.
    pub fn free_after(self, idle: Option<Duration>) -> Self {
        Self { idle, ..self }
    }

    /// Checks the use of mappings, and calls `report` for each [`Misuse`]. This is for tests,
    /// because every mapping then takes a lock. `report` may panic.
    ///
    /// ```
    /// # use longshore_domain::{Direction, Domain, backend::Soft};
    /// # use longshore_heap::Heap;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Domain::builder(Soft::new()?).on_misuse(|misuse| panic!("{misuse}"));
    /// let domain = builder.build();
    /// let mut mapping = domain.map(Heap::Memfd.allocate(4096)?, Direction::FromDevice)?;
    /// mapping.sync_for_cpu(0..512)?;
    /// let mut status = [0; 8];
    /// mapping.read(0, &mut status)?;
    /// // mapping.read(512, &mut status)?; would panic: the device has those bytes.
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_misuse(self, report: impl Fn(&Misuse) + Send + Sync + 'static) -> Self {
        Self { watch: Some(Watch::new(Box::new(report))), ..self }
    }

    /// Builds the domain.
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
        let domain = Domain::new(state);
        if self.bounce.is_none() && !domain.limits().maps_cheaply {
            domain.use_calibration();
        }
        if self.idle.is_some() {
            domain.reclaim_when_idle();
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
    /// Returns a builder of a domain on this backend.
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

    /// Opens the PCI device at `address`, such as `0000:01:00.0`, and returns a builder of its domain.
    /// The address space is in the kernel: through iommufd if the kernel has it, otherwise through VFIO
    /// type 1.
    ///
    /// # Errors
    /// [`OpenError`](crate::backend::OpenError), which says what the administrator of the machine must
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
}
