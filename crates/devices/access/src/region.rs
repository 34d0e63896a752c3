//! Memory that can be mapped into a space: this process's own, or somebody else's.
#![expect(unsafe_code, reason = "keeps memory whose owner is moved in, and trusts raw addresses")]

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use longshore_mem::fault::FaultGuard;
use longshore_mem::{DmaMemory, FileOffset, Granule, GuestPhys};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_sys::file::{self, FileSystem};
use longshore_sys::mapping::{self, Mapping};
use longshore_sys::memfd;

use crate::error::Error;
use crate::fault::Reason;

pub(crate) const PAGE_BYTES: u64 = 4096;

/// How a region's file may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionAccess {
    /// The file is only read. It may have been opened for reading only.
    ReadOnly,
    /// The file is read and written.
    ReadWrite,
}

impl RegionAccess {
    pub(crate) fn of_mapping(self) -> mapping::Access {
        match self {
            Self::ReadOnly => mapping::Access::Read,
            Self::ReadWrite => mapping::Access::ReadWrite,
        }
    }
}

/// A piece of memory that spaces map parts of: what a client calls a DMA region.
pub struct Region {
    memory: Memory,
    len_bytes: u64,
    guest_phys: Option<GuestPhys>,
    read_only: bool,
    /// How many bytes of addresses were taken for it.
    address_bytes: u64,
    is_guarded: bool,
    /// While it lives, copies survive that pages of the file behind the memory are missing.
    #[expect(dead_code, reason = "held, not looked at")]
    guard: Option<FaultGuard>,
}

pub(crate) enum Memory {
    /// Of this process, from here on; its owner is kept with it.
    Host(NonNull<u8>, Keep),
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
    /// [`RemoteFault`]: how many bytes were read, and why not more.
    fn read(&self, offset: u64, into: VolatileSliceMut<'_>) -> Result<(), RemoteFault>;

    /// Writes all of `from` to `offset`.
    ///
    /// # Errors
    /// [`RemoteFault`]: how many bytes were written, and why not more.
    fn write(&self, offset: u64, from: VolatileSlice<'_>) -> Result<(), RemoteFault>;

    /// Has calls that are going on in `range` end soon. Where they end soon anyway, nothing needs to
    /// be done.
    ///
    /// A call may be about to begin, or between two steps, and not be known of yet. So this is called
    /// again and again until each has returned: it need not remember anything.
    fn cancel(&self, range: Range<u64>);
}

/// A remote access that was not done, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteFault {
    /// Bytes done.
    pub done: usize,
    /// Why not more: [`Reason::BackingLost`] where the other side is gone, [`Reason::Permission`]
    /// where it refused, [`Reason::TimedOut`] where it did not answer, [`Reason::Revoked`] where the call
    /// was cancelled. After the last two all of a write counts as written in dirty logs.
    pub reason: Reason,
}

impl RemoteFault {
    /// Returns the failure of an access after `done` bytes.
    pub const fn new(done: usize, reason: Reason) -> Self {
        Self { done, reason }
    }
}

#[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
impl Region {
    /// Maps `len_bytes` of a file from `offset` on, shared, into this process: a memfd, a hugetlb
    /// file, a dma-buf, a client's memory.
    ///
    /// Pages of the file may be missing at any moment. Another process can truncate it, or punch a hole
    /// into it, and no seal guarantees that the kernel can fill a hole: memory can be committed
    /// (`vm.overcommit_memory=2`), the hugetlb pool empty, or a page lost in swap. So the region holds a
    /// [`FaultGuard`], whose handler of SIGBUS turns a missing page into a fault with
    /// [`Reason::BackingLost`]. A program that has called
    /// [`never_install_handler`](longshore_mem::fault::never_install_handler) must handle SIGBUS with
    /// [`fault::handle`](longshore_mem::fault::handle) itself: otherwise a missing page ends the
    /// process.
    ///
    /// Takes as many addresses as the part has, in whole huge pages, wherever it lies in the file.
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] for an offset or a length that is no multiple of 4 KiB, or no
    /// length; [`Error::BeyondFile`] where the file ends before; [`Error::Io`] where it cannot be
    /// mapped.
    pub fn map_file(
        of: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        access: RegionAccess,
    ) -> Result<Self, Error> {
        // Asked once: the file that is checked has to be the one that is mapped.
        let of = of.as_fd();
        check_pages(offset.raw(), len_bytes)?;
        let io = |operation| move |source| Error::Io { operation, source };
        let is_regular = check_file(of, offset, len_bytes)?;
        let guard = FaultGuard::install().map_err(io("installing a handler of SIGBUS"))?;
        // A device or a dma-buf lets no more be mapped than it has.
        let page = Granule::new(longshore_sys::page_size_bytes() as u64);
        let alignment =
            if is_regular { Granule::SIZE_2M } else { page.unwrap_or(Granule::SIZE_4K) };
        let mapping = Mapping::of_file_part(of, offset, len_bytes, alignment, access.of_mapping())
            .map_err(io("mapping a region's file"))?;
        let start = mapping.start();
        let address_bytes = mapping.reserved_bytes() as u64;
        Ok(Self {
            memory: Memory::Host(start, Keep(Some(Box::new(mapping)))),
            len_bytes,
            address_bytes,
            guest_phys: None,
            read_only: access == RegionAccess::ReadOnly,
            is_guarded: true,
            guard: Some(guard),
        })
    }

    /// Returns `len_bytes` of `whole` from `offset` on as a region of its own, which keeps `whole`;
    /// `None` if `whole` is remote, or the part is not inside of it or not in whole pages of 4 KiB.
    pub fn part(whole: &Arc<Self>, offset: u64, len_bytes: u64) -> Option<Self> {
        let Memory::Host(start, _) = &whole.memory else { return None };
        check_pages(offset, len_bytes).ok()?;
        if offset.checked_add(len_bytes)? > whole.len_bytes {
            return None;
        }
        // SAFETY: inside of the memory, as just checked.
        let start = unsafe { start.add(usize::try_from(offset).ok()?) };
        let guest_phys = whole.guest_phys.and_then(|address| address.checked_add(offset));
        Some(Self {
            memory: Memory::Host(start, Keep(Some(Box::new(Arc::clone(whole))))),
            len_bytes,
            address_bytes: 0,
            guest_phys,
            read_only: whole.read_only,
            is_guarded: whole.is_guarded,
            guard: None,
        })
    }

    /// Makes a region of all of `memory`, and keeps `memory` until the region is dropped.
    ///
    /// If the memory is not [writable](DmaMemory::is_writable), the region is
    /// [read-only](Self::is_read_only). If another process could punch a hole into its file, which is of
    /// the hugetlb pool then, copies are guarded as for [`map_file`](Self::map_file).
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] if the memory does not consist of whole pages of 4 KiB;
    /// [`Error::Io`] if the handler of SIGBUS cannot be installed.
    pub fn from_memory(memory: impl DmaMemory + 'static) -> Result<Self, Error> {
        let (host, read_only) = (memory.host(), !memory.is_writable());
        // SAFETY: by `DmaMemory` it stays mapped while the value lives, it is writable unless
        // `read_only` is set, and no reference exists that an access would contradict.
        let region = unsafe { Self::at(host.cast(), host.len() as u64, read_only) }?;
        let Memory::Host(start, _) = region.memory else { return Ok(region) };
        // SAFETY: looks at its seals, and does not keep it.
        let file = unsafe { memory.file() };
        let can_be_punched = file.is_some_and(|(file, _)| can_be_punched(file));
        let guard = can_be_punched.then(FaultGuard::install).transpose();
        let operation = "installing a handler of SIGBUS";
        let guard = guard.map_err(|source| Error::Io { operation, source })?;
        Ok(Self {
            memory: Memory::Host(start, Keep(Some(Box::new(memory)))),
            is_guarded: guard.is_some(),
            guard,
            ..region
        })
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
            address_bytes: 0,
            is_guarded: false,
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
            address_bytes: 0,
            is_guarded: false,
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

    /// Returns the length in bytes, which is not zero.
    pub fn len(&self) -> u64 {
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

    /// Returns whether copies are guarded, because pages of the memory may be missing.
    pub fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Returns how many bytes of this process's addresses [`map_file`](Self::map_file) took: more than
    /// the length, by the rest of the huge pages at the ends. Of another region it is zero.
    pub fn address_bytes(&self) -> u64 {
        self.address_bytes
    }

    /// Keeps `kept` until the memory is unmapped, and drops it then. A remote region drops it here.
    #[must_use]
    pub fn keeping(self, kept: impl Send + 'static) -> Self {
        let memory = match self.memory {
            // A tuple drops its first field first.
            Memory::Host(start, keep) => Memory::Host(start, Keep(Some(Box::new((keep, kept))))),
            remote @ Memory::Remote(_) => remote,
        };
        Self { memory, ..self }
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
            .field("guarded", &self.is_guarded())
            .finish()
    }
}

/// Returns whether a file is of the hugetlb pool, where a hole may have no page to be filled with, and
/// not sealed against writing, which rules out holes.
fn can_be_punched(of: BorrowedFd<'_>) -> bool {
    matches!(file::file_system(of), Ok(FileSystem::Hugetlb { .. }))
        && !memfd::seals(of).is_ok_and(|seals| seals.write)
}

/// Checks that a regular file is as long as the range that is to be mapped of it, and returns whether
/// it is regular. Other files refuse by themselves.
fn check_file(of: BorrowedFd<'_>, offset: FileOffset, len_bytes: u64) -> Result<bool, Error> {
    let operation = "looking at a region's file";
    let status = file::status(of).map_err(|source| Error::Io { operation, source })?;
    let end = offset.checked_add(len_bytes).map(FileOffset::raw);
    let end = end.ok_or(Error::RegionAlignment { start: offset.raw(), len_bytes })?;
    let (is_regular, file_bytes) = (status.kind == file::Kind::Regular, status.version.len_bytes());
    if is_regular && end > file_bytes {
        return Err(Error::BeyondFile { end, file_bytes });
    }
    Ok(is_regular)
}

fn check_pages(start: u64, len_bytes: u64) -> Result<(), Error> {
    let is_possible = len_bytes != 0
        && (start | len_bytes).is_multiple_of(PAGE_BYTES)
        && len_bytes <= isize::MAX as u64;
    if is_possible { Ok(()) } else { Err(Error::RegionAlignment { start, len_bytes }) }
}
