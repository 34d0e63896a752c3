//! Memory that can be mapped into a space: this process's own, or somebody else's.
#![expect(unsafe_code, reason = "keeps memory whose owner is moved in, and trusts raw addresses")]

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use longshore_mem::fault::FaultGuard;
use longshore_mem::volatile::{VolatileSlice, VolatileSliceMut};
use longshore_mem::{DmaMemory, FileOffset, Granule, GuestPhys};
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::{file, memfd};

use crate::error::Error;
use crate::fault::Reason;

pub(crate) const PAGE_BYTES: u64 = 4096;

/// A piece of memory that spaces map parts of: what a client calls a DMA region.
pub struct Region {
    memory: Memory,
    len_bytes: u64,
    guest_phys: Option<GuestPhys>,
    read_only: bool,
    /// While it lives, copies survive that the file behind the memory becomes shorter.
    guard: Option<FaultGuard>,
}

pub(crate) enum Memory {
    /// Of this process, from here on; its owner is kept with it.
    Host(NonNull<u8>, #[expect(dead_code, reason = "dropped with the region")] Keep),
    /// Somebody else's.
    Remote(Arc<dyn RemoteMemory>),
}

/// The owner of memory. It is looked at no more, only dropped.
pub(crate) struct Keep(#[expect(dead_code, reason = "only dropped")] Option<Box<dyn Send>>);

// SAFETY: nothing is done through a shared reference to it.
unsafe impl Sync for Keep {}
// SAFETY: the address is valid in every thread, and all access through it is as foreign memory.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Memory that this process reaches by asking for it: another process's, or a client's that answers
/// messages. Offsets are from the region's start.
///
/// The calls may block, and may come from several threads at once. While one runs, the range may be
/// unmapped: [`cancel`](Self::cancel) is called then, from the thread that unmaps, which waits until
/// the call has returned. It is called too where whoever waits for a session would wait for the call:
/// where what is pinned around the call is unmapped.
pub trait RemoteMemory: Send + Sync {
    /// Reads from `offset` into all of `into`.
    ///
    /// # Errors
    /// [`Partial`]: how many bytes were read, and why not more.
    fn read(&self, offset: u64, into: VolatileSliceMut<'_>) -> Result<(), Partial>;

    /// Writes all of `from` to `offset`.
    ///
    /// # Errors
    /// [`Partial`]: how many bytes were written, and why not more.
    fn write(&self, offset: u64, from: VolatileSlice<'_>) -> Result<(), Partial>;

    /// Has calls that are going on in `range` end soon. Where they end soon anyway, nothing needs to
    /// be done.
    ///
    /// A call may be about to begin, or between two steps, and not be known of yet. So this is called
    /// again and again until each has returned: it need not remember anything.
    fn cancel(&self, range: Range<u64>);
}

/// A remote access that was not done, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Bytes done.
    pub done: usize,
    /// Why not more: [`Reason::BackingLost`] where the other side is gone, [`Reason::Permission`]
    /// where it refused, [`Reason::Revoked`] where the call was cancelled.
    pub reason: Reason,
}

impl Region {
    /// `len_bytes` of a file from `offset`, mapped shared into this process: a memfd, a hugetlb file,
    /// a dma-buf, a client's memory.
    ///
    /// Unless the file is a memfd sealed against shrinking (`F_SEAL_SHRINK`), it may become shorter
    /// at any moment. So copies are guarded then, by a handler of SIGBUS that lives as long as the
    /// region ([`FaultGuard`]): what is missing faults as [`Reason::BackingLost`].
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] for an offset or a length that is no multiple of 4 KiB, or no
    /// length; [`Error::Io`] where the file cannot be mapped.
    pub fn map_file(
        of: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        access: Access,
    ) -> Result<Self, Error> {
        check_pages(offset.raw(), len_bytes)?;
        let end = offset.checked_add(len_bytes);
        let end = end.ok_or(Error::RegionAlignment { start: offset.raw(), len_bytes })?.raw();
        let io = |operation| move |source| Error::Io { operation, source };
        let is_sealed = memfd::seals(&of).is_ok_and(|seals| seals.shrink)
            && file::status(&of).is_ok_and(|status| status.version.len_bytes() >= end);
        let guard = if is_sealed {
            None
        } else {
            Some(FaultGuard::install().map_err(io("installing a handler of SIGBUS"))?)
        };
        let mapping = Mapping::of_file(&of, end, Granule::SIZE_2M, access)
            .map_err(io("mapping a region's file"))?;
        // SAFETY: below `end`, which is the mapping's length.
        let start = unsafe { mapping.start().add(offset.raw() as usize) };
        Ok(Self {
            memory: Memory::Host(start, Keep(Some(Box::new(mapping)))),
            len_bytes,
            guest_phys: None,
            read_only: access == Access::Read,
            guard,
        })
    }

    /// All of `memory`, which the region owns from here on.
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] where it is not made of whole pages of 4 KiB.
    pub fn of_memory(memory: impl DmaMemory + 'static) -> Result<Self, Error> {
        let (host, read_only) = (memory.host(), !memory.is_writable());
        // SAFETY: by `DmaMemory` it stays mapped while the value lives, it is writable unless
        // `read_only` is set, and no reference exists that an access would contradict.
        let region = unsafe { Self::at(host.cast(), host.len() as u64, read_only) }?;
        let Memory::Host(start, _) = region.memory else { return Ok(region) };
        Ok(Self { memory: Memory::Host(start, Keep(Some(Box::new(memory)))), ..region })
    }

    /// Makes a region of `len_bytes` of memory at `start`.
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] if the memory does not consist of whole pages of 4 KiB.
    ///
    /// # Safety
    /// While the region lives the memory must stay mapped, readable and writable, and no reference
    /// to it may exist: devices read and write it.
    pub unsafe fn from_raw_parts(start: NonNull<u8>, len_bytes: u64) -> Result<Self, Error> {
        // SAFETY: the caller makes the same promise.
        unsafe { Self::at(start, len_bytes, false) }
    }

    /// # Safety
    /// As [`from_raw_parts`](Self::from_raw_parts), but if `read_only` is set, the memory need not be
    /// writable, and shared references to it may exist.
    unsafe fn at(start: NonNull<u8>, len_bytes: u64, read_only: bool) -> Result<Self, Error> {
        check_pages(start.expose_provenance().get() as u64, len_bytes)?;
        Ok(Self {
            memory: Memory::Host(start, Keep(None)),
            len_bytes,
            guest_phys: None,
            read_only,
            guard: None,
        })
    }

    /// `len_bytes` of memory that is asked for.
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] for a length that is zero or not in whole pages of 4 KiB.
    pub fn remote(memory: Arc<dyn RemoteMemory>, len_bytes: u64) -> Result<Self, Error> {
        check_pages(0, len_bytes)?;
        Ok(Self {
            memory: Memory::Remote(memory),
            len_bytes,
            guest_phys: None,
            read_only: false,
            guard: None,
        })
    }

    /// The same, known to be a machine's memory from `address` on.
    #[must_use]
    pub fn at_guest_phys(self, address: GuestPhys) -> Self {
        Self { guest_phys: Some(address), ..self }
    }

    /// The same, to be mapped for reading only: ROM.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Where it lies in a machine's memory, if that was said.
    pub fn guest_phys(&self) -> Option<GuestPhys> {
        self.guest_phys
    }

    /// Whether it can only be read.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether it is memory of this process.
    pub fn is_direct(&self) -> bool {
        matches!(self.memory, Memory::Host(..))
    }

    /// Whether the memory may vanish, so that copies are guarded.
    pub fn is_shrinkable(&self) -> bool {
        self.guard.is_some()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match self.memory {
            Memory::Host(start, _) => format!("host {start:p}"),
            Memory::Remote(_) => "remote".to_owned(),
        };
        f.debug_struct("Region")
            .field("memory", &memory)
            .field("len_bytes", &self.len_bytes)
            .field("guest_phys", &self.guest_phys)
            .field("read_only", &self.read_only)
            .field("shrinkable", &self.is_shrinkable())
            .finish()
    }
}

fn check_pages(start: u64, len_bytes: u64) -> Result<(), Error> {
    let is_possible = len_bytes != 0
        && (start | len_bytes).is_multiple_of(PAGE_BYTES)
        && len_bytes <= isize::MAX as u64;
    if is_possible { Ok(()) } else { Err(Error::RegionAlignment { start, len_bytes }) }
}
