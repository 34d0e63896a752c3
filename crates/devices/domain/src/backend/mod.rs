//! Backends, which make mappings real.
#![expect(unsafe_code, reason = "a backend is trusted to keep devices out of what was unmapped")]

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
    /// Addresses of these that cannot be mapped: windows for interrupts, memory of firmware,
    /// registers of devices on the same bus.
    pub reserved: Vec<AddrRange<Iova>>,
    /// `true` if a device cannot read memory that is mapped for writing only. Arm IOMMUs (stage 1)
    /// have no such entries, and Linux (seen in 6.12) makes those of VT-d readable, so a backend
    /// that cannot find out says `false`.
    pub denies_reads: bool,
    /// `true` if mapping and unmapping a granule costs no more than bouncing it, so that only
    /// transfers are bounced that must be.
    pub maps_cheaply: bool,
    /// `true` if the devices are code of this process, which accesses memory by sessions. Safe code
    /// then reads and writes all that is mapped, so a granule is mapped only if the whole granule
    /// belongs to the transfer, whatever [`Builder::trusted`](crate::Builder::trusted) asks for.
    pub in_process: bool,
}

impl Limits {
    /// Returns the limits of a backend for devices outside this process which can map all of `usable`,
    /// maps slowly, and does not deny reads.
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
    /// The file whose pages these are, and the offset in it, if it is known. A backend needs it
    /// that cannot pin this process's mapping.
    pub file: Option<(BorrowedFd<'a>, FileOffset)>,
}

impl<'a> Piece<'a> {
    /// Returns `len_bytes` of memory at `host`, which are those of `file` from the offset on, if given.
    pub const fn new(
        host: NonNull<u8>,
        len_bytes: u64,
        file: Option<(BorrowedFd<'a>, FileOffset)>,
    ) -> Self {
        Self { host, len_bytes, file }
    }
}

/// One kind of address space for devices: in this process, or the kernel's by VFIO or iommufd.
///
/// The domain chooses the addresses, and never maps two pieces at one address. Calls may come from
/// several threads at once, for ranges that do not overlap.
///
/// A backend may take elements of a DMA pool and map by its own domain during a call, except
/// [`reclaim`](Self::reclaim).
///
/// # Safety
/// When [`map`](Self::map) has returned an error or panicked, or [`unmap`](Self::unmap) has panicked, no
/// device may reach the memory by these addresses, because its owner may then free it. A backend that
/// cannot ensure this must end the process instead. When `unmap` has returned `Ok`, no device may reach the memory by these addresses,
/// now or later, until they are mapped again. Devices may write no more than the `prot` of a mapping
/// says. They may read what is mapped for writing only where [`Limits::denies_reads`] is `false`.
/// If safe code of this process can read or write memory by these addresses, [`Limits::in_process`]
/// must be `true`.
pub unsafe trait Backend: Send + Sync + fmt::Debug {
    /// Returns the name of the kind. Costs are measured once for all backends of a kind.
    fn name(&self) -> &'static str;

    /// Returns the limits, which are the same at every call.
    fn limits(&self) -> Limits;

    /// Maps `piece` at `iova`.
    ///
    /// # Errors
    /// [`BackendError`]; nothing is mapped then, nor if it panics.
    ///
    /// # Safety
    /// The memory must stay where it is, and without a reference that a device's access would
    /// contradict, until `unmap` has returned for it.
    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError>;

    /// Unmaps ranges, each as it was mapped, with one invalidation for all where that is possible.
    ///
    /// # Errors
    /// [`BackendError`]; then each of them may be mapped still.
    ///
    /// # Safety
    /// Each was mapped by [`map`](Self::map) as it is, and no other call may map or unmap any of it
    /// at the same time.
    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError>;

    /// Returns an error if [`unmap`](Self::unmap) of addresses in `range` would fail now because of the
    /// calling thread, which holds a pin, for example. A domain calls this before it maps borrowed
    /// memory, or several pieces, of which it must unmap the first ones if a later one is refused; and
    /// before it unmaps pool memory, which it keeps for a later attempt then.
    ///
    /// # Errors
    /// [`BackendError`]; nothing has changed.
    fn check_unmap(&self, range: AddrRange<Iova>) -> Result<(), BackendError> {
        let _ = range;
        Ok(())
    }

    /// Frees what it keeps for addresses that are not mapped, such as empty page tables, and returns
    /// how many tables that were. `each_unused` calls its argument with such ranges. It is called once
    /// at most, holds a lock that mapping needs, and so nothing waits for a device in its argument.
    /// A backend that keeps nothing does nothing.
    ///
    /// # Errors
    /// [`BackendError`]; some of it may be freed then.
    ///
    /// # Safety
    /// No other call may map or unmap any of the ranges while `each_unused` runs.
    unsafe fn reclaim(&self, each_unused: &mut EachUnused<'_>) -> Result<u64, BackendError> {
        let _ = each_unused;
        Ok(0)
    }
}

/// A function that calls its argument with ranges of addresses which are not mapped.
pub type EachUnused<'a> = dyn FnMut(&mut dyn FnMut(AddrRange<Iova>)) + 'a;

/// The error of a backend.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The space of this process returned an error.
    #[error(transparent)]
    Space(#[from] longshore_access::Error),
    /// A callback panicked during the unmapping, so the memory counts as mapped for ever.
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
