//! `/dev/iommu`: address spaces for devices (`linux/iommufd.h`, Linux 6.2).
//!
//! An address space ([`Ioas`]) has mappings, and devices are attached to it
//! ([`Device::attach`](crate::vfio::Device::attach)).
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use longshore_mem::{AddrRange, FileOffset, Iova};
use rustix::fs::{Mode, OFlags};

use crate::ioctl::{exchange, request};

/// The path of the iommufd device.
pub const DEVICE: &str = "/dev/iommu";

const DESTROY: libc::Ioctl = request(0x80);
const IOAS_ALLOC: libc::Ioctl = request(0x81);
const IOAS_IOVA_RANGES: libc::Ioctl = request(0x84);
const IOAS_MAP: libc::Ioctl = request(0x85);
const IOAS_UNMAP: libc::Ioctl = request(0x86);
const IOAS_MAP_FILE: libc::Ioctl = request(0x8f);

const MAP_FIXED_IOVA: u32 = 1 << 0;
const MAP_WRITEABLE: u32 = 1 << 1;
const MAP_READABLE: u32 = 1 << 2;

/// The accesses to memory that are permitted to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaAccess {
    /// `true` if the device may read.
    pub read: bool,
    /// `true` if the device may write.
    pub write: bool,
}

/// The number of ranges to ask for first. Known address spaces have fewer, so one call is usually
/// enough.
const FIRST_RANGES: usize = 64;
/// The maximum number of ranges that is believed.
const MAX_RANGES: usize = 1 << 16;

#[repr(C)]
struct DestroyArg {
    size: u32,
    id: u32,
}
const _: () = assert!(size_of::<DestroyArg>() == 8);

#[repr(C)]
struct AllocArg {
    size: u32,
    flags: u32,
    out_ioas_id: u32,
}
const _: () = assert!(size_of::<AllocArg>() == 12);

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RangeArg {
    start: u64,
    last: u64,
}
const _: () = assert!(size_of::<RangeArg>() == 16);

#[repr(C)]
struct RangesArg {
    size: u32,
    ioas_id: u32,
    num_iovas: u32,
    reserved: u32,
    allowed_iovas: u64,
    out_iova_alignment: u64,
}
const _: () = assert!(size_of::<RangesArg>() == 32);

#[repr(C)]
struct MapArg {
    size: u32,
    flags: u32,
    ioas_id: u32,
    reserved: u32,
    user_va: u64,
    length: u64,
    iova: u64,
}
const _: () = assert!(size_of::<MapArg>() == 40);

#[repr(C)]
struct MapFileArg {
    size: u32,
    flags: u32,
    ioas_id: u32,
    fd: i32,
    start: u64,
    length: u64,
    iova: u64,
}
const _: () = assert!(size_of::<MapFileArg>() == 40);

#[repr(C)]
struct UnmapArg {
    size: u32,
    ioas_id: u32,
    iova: u64,
    length: u64,
}
const _: () = assert!(size_of::<UnmapArg>() == 24);

/// An iommufd, which has address spaces and bound devices.
#[derive(Debug)]
pub struct Iommufd(OwnedFd);

/// The ID of an address space of an [`Iommufd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioas(u32);

impl Ioas {
    /// Returns the ID as a number.
    pub fn id(self) -> u32 {
        self.0
    }
}

/// The IOVAs at which an address space can map memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IovaRanges {
    /// The ranges that all its devices can address.
    pub ranges: Vec<AddrRange<Iova>>,
    /// The required alignment of addresses and lengths, at most a page.
    pub alignment_bytes: u64,
}

impl AsFd for Iommufd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Iommufd {
    /// Opens a new iommufd, without address spaces.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has no iommufd, `EACCES` without permission.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(DEVICE, flags, Mode::empty())?))
    }

    /// Allocates an address space.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn alloc_ioas(&self) -> io::Result<Ioas> {
        let mut arg = AllocArg { size: size_of::<AllocArg>() as u32, flags: 0, out_ioas_id: 0 };
        // SAFETY: the kernel reads and writes a `struct iommu_ioas_alloc`, whose layout the argument
        // has.
        unsafe { exchange(self.as_fd(), IOAS_ALLOC, (&raw mut arg).cast()) }?;
        Ok(Ioas(arg.out_ioas_id))
    }

    /// Destroys an address space with its mappings.
    ///
    /// # Errors
    /// `EBUSY` while a device is attached to it, `ENOENT` if it does not exist.
    pub fn destroy(&self, ioas: Ioas) -> io::Result<()> {
        let mut arg = DestroyArg { size: size_of::<DestroyArg>() as u32, id: ioas.0 };
        // SAFETY: the kernel reads a `struct iommu_destroy`, whose layout the argument has.
        unsafe { exchange(self.as_fd(), DESTROY, (&raw mut arg).cast()) }.map(drop)
    }

    /// Returns the IOVAs that can be mapped. Each attached device can restrict them.
    ///
    /// # Errors
    /// `ENOENT` if the address space does not exist; `InvalidData` if the kernel's answer is invalid.
    pub fn iova_ranges(&self, ioas: Ioas) -> io::Result<IovaRanges> {
        let mut room = FIRST_RANGES;
        loop {
            let mut ranges = vec![RangeArg::default(); room];
            let mut arg = RangesArg {
                size: size_of::<RangesArg>() as u32,
                ioas_id: ioas.0,
                num_iovas: room as u32,
                reserved: 0,
                allowed_iovas: ranges.as_mut_ptr().expose_provenance() as u64,
                out_iova_alignment: 0,
            };
            // SAFETY: the kernel reads and writes a `struct iommu_ioas_iova_ranges`, whose layout the
            // argument has, and at most `num_iovas` ranges at `allowed_iovas`.
            let done = unsafe { exchange(self.as_fd(), IOAS_IOVA_RANGES, (&raw mut arg).cast()) };
            let count = arg.num_iovas as usize;
            match done {
                // EMSGSIZE: there are more ranges than fit.
                Err(error)
                    if error.raw_os_error() == Some(libc::EMSGSIZE)
                        && (room..=MAX_RANGES).contains(&count) =>
                {
                    room = count + 1;
                    continue;
                }
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            let found = ranges.get(..count).ok_or(io::ErrorKind::InvalidData)?;
            let found = found.iter().map(|found| range(found.start, found.last));
            let ranges = found.collect::<Option<_>>().ok_or(io::ErrorKind::InvalidData)?;
            return Ok(IovaRanges { ranges, alignment_bytes: arg.out_iova_alignment });
        }
    }

    /// Maps `len_bytes` of this process's memory at `iova`. Devices in the address space can access it
    /// until [`unmap`](Self::unmap).
    ///
    /// # Errors
    /// `EEXIST` if a part of the range is mapped already, `EINVAL` or `ENOENT` for addresses that cannot
    /// be mapped or are not aligned, `EFAULT` for memory that cannot be pinned (the mapping of a
    /// dma-buf), `ENOMEM` beyond the limit of locked memory (`RLIMIT_MEMLOCK`). Nothing is mapped then.
    ///
    /// # Safety
    /// Until the memory is unmapped, devices may read and write it at any moment, as `access` permits.
    /// No code may rely on its content, and no reference to it may exist that conflicts with a device's
    /// access.
    pub unsafe fn map(
        &self,
        ioas: Ioas,
        iova: Iova,
        host: NonNull<u8>,
        len_bytes: u64,
        access: DmaAccess,
    ) -> io::Result<()> {
        let mut arg = MapArg {
            size: size_of::<MapArg>() as u32,
            flags: flags(access),
            ioas_id: ioas.0,
            reserved: 0,
            user_va: host.expose_provenance().get() as u64,
            length: len_bytes,
            iova: iova.raw(),
        };
        // SAFETY: the kernel reads and writes a `struct iommu_ioas_map`, whose layout the argument has;
        // the caller's promise covers accesses of devices.
        unsafe { exchange(self.as_fd(), IOAS_MAP, (&raw mut arg).cast()) }.map(drop)
    }

    /// Maps pages of a memfd at `iova`, which need not be mapped in this process.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.13; `EINVAL` if the file is not a memfd; those of [`map`](Self::map).
    ///
    /// # Safety
    /// The same as for [`map`](Self::map), for the file's pages.
    pub unsafe fn map_file(
        &self,
        ioas: Ioas,
        iova: Iova,
        file: BorrowedFd<'_>,
        range: AddrRange<FileOffset>,
        access: DmaAccess,
    ) -> io::Result<()> {
        let mut arg = MapFileArg {
            size: size_of::<MapFileArg>() as u32,
            flags: flags(access),
            ioas_id: ioas.0,
            fd: file.as_raw_fd(),
            start: range.start().raw(),
            length: range.len(),
            iova: iova.raw(),
        };
        // SAFETY: the kernel reads and writes a `struct iommu_ioas_map_file`, whose layout the argument
        // has; the caller's promise covers accesses of devices.
        unsafe { exchange(self.as_fd(), IOAS_MAP_FILE, (&raw mut arg).cast()) }.map(drop)
    }

    /// Unmaps all mappings in `len_bytes` from `iova`. When it returns, devices cannot access the memory
    /// any more. Returns the number of bytes that were mapped.
    ///
    /// # Errors
    /// `ENOENT` if nothing is mapped there, or if the range ends inside a mapping; the mappings before
    /// that one are unmapped then.
    pub fn unmap(&self, ioas: Ioas, iova: Iova, len_bytes: u64) -> io::Result<u64> {
        let mut arg = UnmapArg {
            size: size_of::<UnmapArg>() as u32,
            ioas_id: ioas.0,
            iova: iova.raw(),
            length: len_bytes,
        };
        // SAFETY: the kernel reads and writes a `struct iommu_ioas_unmap`, whose layout the argument
        // has.
        unsafe { exchange(self.as_fd(), IOAS_UNMAP, (&raw mut arg).cast()) }?;
        Ok(arg.length)
    }
}

/// Returns the range from the first to the last address. A range of all 2^64 addresses loses its last
/// one.
pub(crate) fn range(first: u64, last: u64) -> Option<AddrRange<Iova>> {
    let len_bytes = last.checked_sub(first)?.saturating_add(1);
    AddrRange::new(Iova::new(first), len_bytes).ok()
}

fn flags(access: DmaAccess) -> u32 {
    let readable = if access.read { MAP_READABLE } else { 0 };
    let writeable = if access.write { MAP_WRITEABLE } else { 0 };
    MAP_FIXED_IOVA | readable | writeable
}
