//! Backends, which implement the mappings of a domain.
#![expect(unsafe_code, reason = "a backend is trusted to keep devices out of unmapped memory")]

#[cfg(any(feature = "vfio", feature = "iommufd"))]
mod device;
#[cfg(feature = "iommufd")]
mod iommufd;
#[cfg(any(feature = "vfio", feature = "iommufd"))]
mod open;
#[cfg(any(feature = "vfio", feature = "iommufd"))]
mod pinned;
mod soft;
#[cfg(feature = "vfio")]
mod vfio;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use longshore_mem::{AddrRange, FileOffset, Granule, Iova};
use longshore_pagetable::Prot;
use thiserror::Error;

#[cfg(any(feature = "vfio", feature = "iommufd"))]
pub use device::{Device, DeviceInfo, Region, Registers};
#[cfg(feature = "iommufd")]
pub use iommufd::Iommufd;
#[cfg(any(feature = "vfio", feature = "iommufd"))]
pub use open::OpenError;
pub use soft::Soft;
#[cfg(feature = "vfio")]
pub use vfio::Vfio;

/// The limits of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The unit of addresses, lengths and offsets.
    pub granule: Granule,
    /// The addresses that can be mapped.
    pub usable: Vec<AddrRange<Iova>>,
    /// Addresses that cannot be mapped, also if `usable` has them: windows for interrupts, memory of
    /// firmware, registers of devices on the same bus.
    pub reserved: Vec<AddrRange<Iova>>,
    /// `true` if a device cannot read memory that is mapped write-only. Arm IOMMUs (stage 1) have no
    /// write-only entries, and Linux (seen in 6.12) makes those of VT-d readable, so a backend that
    /// cannot determine this sets `false`.
    pub denies_reads: bool,
    /// `true` if mapping and unmapping a granule costs no more than bouncing it. By default, only
    /// transfers that must be bounced are bounced then.
    pub maps_cheaply: bool,
    /// `true` if the devices are code of this process, which accesses memory through sessions. Safe
    /// code can then read and write all mapped memory, so a granule is mapped only if all of it belongs
    /// to the transfer, even with [`Builder::trusted`](crate::Builder::trusted).
    pub in_process: bool,
}

impl Limits {
    /// Returns limits with nothing reserved and all flags `false`: the devices are outside this process,
    /// mapping is slow, and reads of write-only memory are not denied.
    pub fn new(granule: Granule, usable: Vec<AddrRange<Iova>>) -> Self {
        Self {
            granule,
            usable,
            reserved: Vec::new(),
            denies_reads: false,
            maps_cheaply: false,
            in_process: false,
        }
    }
}

/// Memory to be mapped, in whole granules.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Piece<'a> {
    /// The address in this process.
    pub host: NonNull<u8>,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The file that the pages belong to, and the offset in it, if they are known. A backend uses them
    /// if it cannot pin this process's mapping.
    pub file: Option<(BorrowedFd<'a>, FileOffset)>,
}

impl<'a> Piece<'a> {
    /// Returns a piece of `len_bytes` at `host`. If `file` is given, these are its bytes from the offset
    /// on.
    pub const fn new(
        host: NonNull<u8>,
        len_bytes: u64,
        file: Option<(BorrowedFd<'a>, FileOffset)>,
    ) -> Self {
        Self { host, len_bytes, file }
    }
}

/// A kind of address space for devices: in this process, or in the kernel through VFIO or iommufd.
///
/// The domain chooses the addresses, and never maps two pieces at one address. Several threads may call
/// a backend at once, for ranges that do not overlap.
///
/// During any call but [`reclaim`](Self::reclaim), a backend may take elements of a DMA pool and map
/// through its own domain.
///
/// # Safety
/// When [`map`](Self::map) has returned an error or panicked, or [`unmap`](Self::unmap) has panicked, no
/// device may reach the memory at these addresses, because its owner may then free it. A backend that
/// cannot ensure this must end the process instead. When `unmap` has returned `Ok`, no device may reach
/// the memory at these addresses, now or later, until they are mapped again. Devices may write to a
/// mapping only if its `prot` permits it. They may read a write-only mapping only if
/// [`Limits::denies_reads`] is `false`. If safe code of this process can read or write memory at these
/// addresses, [`Limits::in_process`] must be `true`.
pub unsafe trait Backend: Send + Sync + fmt::Debug {
    /// Returns the name of this kind of backend. Costs are measured once for all backends of one name.
    fn name(&self) -> &'static str;

    /// Returns the limits, which are the same at every call.
    fn limits(&self) -> Limits;

    /// Maps `piece` at `iova`.
    ///
    /// # Errors
    /// [`BackendError`]; nothing is mapped then. Nothing is mapped if this panics, either.
    ///
    /// # Safety
    /// Until `unmap` has returned for it, the memory must stay at its address, and no reference to it
    /// may exist that a device's access would violate.
    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError>;

    /// Unmaps ranges, if possible with one invalidation for all of them.
    ///
    /// # Errors
    /// [`BackendError`]; each of them may still be mapped then.
    ///
    /// # Safety
    /// Each range must be exactly one that [`map`](Self::map) has mapped, and no other call may map or
    /// unmap any of it at the same time.
    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError>;

    /// Returns an error if [`unmap`](Self::unmap) of addresses in `range` would fail now because of the
    /// calling thread, for example because it holds a pin.
    ///
    /// A domain calls this before it maps borrowed memory, and before it maps several pieces, because it
    /// must unmap the first ones if a later one is refused. It also calls this before it unmaps memory
    /// of a pool, and keeps that memory for a later attempt if this fails.
    ///
    /// # Errors
    /// [`BackendError`]; nothing has changed.
    fn check_unmap(&self, range: AddrRange<Iova>) -> Result<(), BackendError> {
        let _ = range;
        Ok(())
    }

    /// Frees memory that the backend keeps for addresses that are not mapped, such as empty page tables,
    /// and returns the number of tables that were freed. The default implementation does nothing.
    ///
    /// `each_unused` calls its argument with ranges of such addresses. A backend calls it at most once.
    /// It holds a lock that mapping needs, so its argument must not wait for a device.
    ///
    /// # Errors
    /// [`BackendError`]; some of the tables may have been freed then.
    ///
    /// # Safety
    /// No other call may map or unmap any of the ranges while `each_unused` runs.
    unsafe fn reclaim(&self, each_unused: &mut EachUnused<'_>) -> Result<u64, BackendError> {
        let _ = each_unused;
        Ok(0)
    }
}

/// A function that calls its argument with ranges of addresses that are not mapped.
pub type EachUnused<'a> = dyn FnMut(&mut dyn FnMut(AddrRange<Iova>)) + 'a;

/// The error of a backend.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The space of this process returned an error.
    #[error(transparent)]
    Space(#[from] longshore_access::Error),
    /// A callback panicked during the unmapping, so the memory is treated as mapped for ever.
    #[error(
        "a callback of a lease or of remote memory panicked, and a session may still use the memory; \
         callbacks must not panic"
    )]
    CallbackPanicked,
    /// The kernel returned an error.
    #[error("{operation}: {source}")]
    Io {
        /// The operation that was requested.
        operation: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}
