//! Memory that can be mapped into a space: memory of this process, or remote memory.
#![expect(unsafe_code, reason = "keeps memory whose owner is moved in, and trusts raw addresses")]

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use longshore_mem::fault::FaultGuard;
use longshore_mem::{DmaMemory, FileOffset, Granule, GuestPhys};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_sys::file;
use longshore_sys::mapping::{self, Mapping};

use crate::error::Error;
use crate::fault::Reason;

pub(crate) const PAGE_BYTES: u64 = 4096;

/// The permitted accesses to a region's file.
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

/// A range of memory of which spaces map parts; a client calls it a DMA region.
pub struct Region {
    memory: Memory,
    len_bytes: u64,
    guest_phys: Option<GuestPhys>,
    read_only: bool,
    /// The number of bytes of addresses that were reserved for it.
    address_bytes: u64,
    is_guarded: bool,
    /// While it lives, copies survive missing pages of the file behind the memory.
    #[expect(dead_code, reason = "held, not looked at")]
    guard: Option<FaultGuard>,
}

pub(crate) enum Memory {
    /// Memory of this process from this address on, and its owner.
    Host(NonNull<u8>, Keep),
    /// Memory that is accessed by calls.
    Remote(Arc<dyn RemoteMemory>),
}

/// The owner of memory. It is kept only to be dropped.
pub(crate) struct Keep(#[expect(dead_code, reason = "only dropped")] Option<Box<dyn Send>>);

// SAFETY: a shared reference to it gives no access to the owner.
unsafe impl Sync for Keep {}
// SAFETY: the address is valid in every thread, and it is only accessed as foreign memory.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Memory that this process reads and writes by calls: memory of another process, or of a client that
/// answers messages. Offsets count from the region's start.
///
/// The calls may block, and may come from several threads at once. If the range is unmapped while a call
/// runs, the unmapping thread calls [`cancel`](Self::cancel) and waits until the call has returned. It
/// also does so if it waits for a session that is inside such a call, for example because it unmaps
/// memory that is pinned around the call.
pub trait RemoteMemory: Send + Sync {
    /// Reads from `offset` into all of `into`.
    ///
    /// # Errors
    /// [`RemoteFault`], with the number of bytes that were read and the reason.
    fn read(&self, offset: u64, into: VolatileSliceMut<'_>) -> Result<(), RemoteFault>;

    /// Writes all of `from` to `offset`.
    ///
    /// # Errors
    /// [`RemoteFault`], with the number of bytes that were written and the reason.
    fn write(&self, offset: u64, from: VolatileSlice<'_>) -> Result<(), RemoteFault>;

    /// Makes running calls that access any of `range` return soon. If calls always return soon, this may
    /// do nothing.
    ///
    /// The unmapping thread repeats this until each call has returned. So the implementation need not
    /// remember the cancellation for a call that begins only later.
    fn cancel(&self, range: Range<u64>);
}

/// The failure of a remote access. A part of the bytes may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteFault {
    /// The number of bytes that were read or written.
    pub done: usize,
    /// The reason: [`Reason::BackingLost`] if the other side is gone, [`Reason::Permission`] if it
    /// refused, [`Reason::TimedOut`] if it did not answer, [`Reason::Revoked`] if the call was
    /// cancelled. After the last two, dirty logs mark all bytes of a write.
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
    /// Maps `len_bytes` of a file from `offset` on into this process, shared. The file can be a memfd, a
    /// hugetlb file or a dma-buf, and it can be a client's.
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
    /// For a regular file it reserves addresses for the whole huge pages (2 MiB) around the range.
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] if the offset or the length is not a multiple of 4 KiB, or the length
    /// is zero; [`Error::BeyondFile`] if the file ends before the range does; [`Error::Io`] if the file
    /// cannot be mapped.
    pub fn map_file(
        of: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        access: RegionAccess,
    ) -> Result<Self, Error> {
        // `as_fd` is called only once, so that the file that is checked is the one that is mapped.
        let of = of.as_fd();
        check_pages(offset.raw(), len_bytes)?;
        let io = |operation| move |source| Error::Io { operation, source };
        let is_regular = check_file(of, offset, len_bytes)?;
        let guard = FaultGuard::install().map_err(io("installing a handler of SIGBUS"))?;
        // A mapping of a device or a dma-buf cannot be larger than the file.
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

    /// Returns `len_bytes` of `whole` from `offset` on as a region of its own, which keeps `whole`
    /// alive. Returns `None` if `whole` is remote, or if the part is not inside of it or does not
    /// consist of whole pages of 4 KiB.
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

    /// Makes a region of all of `memory`, which it keeps until it is dropped.
    ///
    /// If the memory is not [writable](DmaMemory::is_writable), the region is
    /// [read-only](Self::is_read_only). If it has a [file](DmaMemory::file), which another process may
    /// have, copies are guarded as for [`map_file`](Self::map_file).
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
        // SAFETY: the descriptor is not used.
        let has_file = unsafe { memory.file() }.is_some();
        let guard = has_file.then(FaultGuard::install).transpose();
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
    /// While the region lives, the memory must stay mapped, readable and writable, and no reference to
    /// it may exist, because devices read and write it.
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

    /// Makes a region of `len_bytes` of remote memory.
    ///
    /// # Errors
    /// [`Error::RegionAlignment`] if the length is zero or not a multiple of 4 KiB.
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

    /// Returns the same region with its guest-physical address.
    #[must_use]
    pub fn at_guest_phys(self, address: GuestPhys) -> Self {
        Self { guest_phys: Some(address), ..self }
    }

    /// Returns the same region as ROM: it cannot be mapped for writing.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Returns the length in bytes, which is not zero.
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns its guest-physical address if [`at_guest_phys`](Self::at_guest_phys) has set one.
    pub fn guest_phys(&self) -> Option<GuestPhys> {
        self.guest_phys
    }

    /// Returns `true` if it cannot be mapped for writing.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns `true` if it is memory of this process.
    pub fn is_direct(&self) -> bool {
        matches!(self.memory, Memory::Host(..))
    }

    /// Returns `true` if copies are guarded, because pages of the memory may be missing.
    pub fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Returns the number of bytes of addresses that [`map_file`](Self::map_file) reserved: the length,
    /// rounded out to whole huge pages. It is zero for other regions.
    pub fn address_bytes(&self) -> u64 {
        self.address_bytes
    }

    /// Returns the same region, which drops `kept` after the memory is unmapped. A remote region drops
    /// it at once.
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

/// Checks that a regular file is not shorter than the range to map, and returns `true` if it is regular.
/// For other files, `mmap` itself fails.
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
