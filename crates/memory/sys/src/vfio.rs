//! VFIO by container and group: address spaces that the kernel makes for devices of a process
//! (`linux/vfio.h`, type 1 of the IOMMU backends).
//!
//! ```text
//!   Container  /dev/vfio/vfio ── map, unmap: what devices reach
//!       ▲
//!       │ set_container, then set_iommu once
//!   Group      /dev/vfio/N ──── devices that no IOMMU can keep apart
//!       │
//!       ▼ device
//!   Device     registers, configuration space, reset ([`Device`])
//! ```
//!
//! The kernel keeps a container with its mappings until the last descriptor of any of the three is
//! closed, so they may be dropped in any order.
#![expect(unsafe_code, reason = "ioctl")]

mod device;
mod info;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use crate::ioctl::{call, exchange, vfio_request as request};
use crate::iommufd::DmaAccess;
use longshore_mem::Iova;
use rustix::fs::{Mode, OFlags};

pub use device::{CONFIG_REGION, Device, DeviceInfo, Region, Registers};
pub use info::{InfoError, IommuInfo};

/// Opens containers.
pub const CONTAINER: &str = "/dev/vfio/vfio";
/// Where groups are, each by its number.
pub const GROUPS: &str = "/dev/vfio";
/// The version of the interface that this module speaks.
pub const API_VERSION: i32 = 0;

const GET_API_VERSION: libc::Ioctl = request(0);
const CHECK_EXTENSION: libc::Ioctl = request(1);
const SET_IOMMU: libc::Ioctl = request(2);
const GROUP_GET_STATUS: libc::Ioctl = request(3);
const GROUP_SET_CONTAINER: libc::Ioctl = request(4);
const GROUP_UNSET_CONTAINER: libc::Ioctl = request(5);
const GROUP_GET_DEVICE_FD: libc::Ioctl = request(6);
const IOMMU_GET_INFO: libc::Ioctl = request(12);
const IOMMU_MAP_DMA: libc::Ioctl = request(13);
const IOMMU_UNMAP_DMA: libc::Ioctl = request(14);

const GROUP_IS_VIABLE: u32 = 1 << 0;
const GROUP_HAS_CONTAINER: u32 = 1 << 1;
const MAP_READ: u32 = 1 << 0;
const MAP_WRITE: u32 = 1 << 1;

#[repr(C)]
struct GroupStatusArg {
    argsz: u32,
    flags: u32,
}
const _: () = assert!(size_of::<GroupStatusArg>() == 8);

#[repr(C)]
struct MapArg {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}
const _: () = assert!(size_of::<MapArg>() == 32);

#[repr(C)]
struct UnmapArg {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}
const _: () = assert!(size_of::<UnmapArg>() == 24);

/// A kind of address space that a container can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IommuType {
    /// `VFIO_TYPE1_IOMMU`: any part of a mapping can be unmapped, as far as page sizes allow.
    Type1 = 1,
    /// `VFIO_TYPE1v2_IOMMU`: unmapping takes whole mappings.
    Type1v2 = 3,
}

/// An address space, once it has a group and a type.
#[derive(Debug)]
pub struct Container(OwnedFd);

impl Container {
    /// A new one, of no type.
    ///
    /// # Errors
    /// `ENOENT` without the module `vfio`, `EACCES` without the right to it.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(CONTAINER, flags, Mode::empty())?))
    }

    /// The version of the interface: [`API_VERSION`].
    ///
    /// # Errors
    /// `ENOTTY` where the descriptor is something else.
    pub fn api_version(&self) -> io::Result<i32> {
        call(self.0.as_fd(), GET_API_VERSION, 0)
    }

    /// Whether the container can be of this type. Some kernels know only once a group is in it.
    ///
    /// # Errors
    /// `ENOTTY` where the descriptor is something else.
    pub fn supports(&self, kind: IommuType) -> io::Result<bool> {
        Ok(call(self.0.as_fd(), CHECK_EXTENSION, kind as libc::c_ulong)? > 0)
    }

    /// Makes it an address space. It must have a group.
    ///
    /// # Errors
    /// `EPERM` where interrupts of the group's devices cannot be isolated and that is not allowed
    /// (`allow_unsafe_interrupts` of the module `vfio_iommu_type1`), `EINVAL` without a group or for
    /// a type it cannot be of, `ENODEV` without the type's module.
    pub fn set_iommu(&self, kind: IommuType) -> io::Result<()> {
        call(self.0.as_fd(), SET_IOMMU, kind as libc::c_ulong).map(drop)
    }

    /// What can be mapped, and where.
    ///
    /// # Errors
    /// `EINVAL` before [`set_iommu`](Self::set_iommu); `InvalidData` for an answer that is not what
    /// the kernel's headers say.
    pub fn info(&self) -> io::Result<IommuInfo> {
        let mut bytes = info::first_request();
        loop {
            let arg = bytes.as_mut_ptr().cast();
            // SAFETY: the kernel reads and writes no more than the length that the first word says,
            // which is the buffer's.
            unsafe { exchange(self.0.as_fd(), IOMMU_GET_INFO, arg) }?;
            match info::longer_request(&bytes) {
                Some(longer) => bytes = longer,
                None => return Ok(IommuInfo::parse(&bytes)?),
            }
        }
    }

    /// Maps `len_bytes` of this process's memory at `iova`: the pages stay where they are, and devices
    /// of the container's groups reach them, until [`unmap`](Self::unmap).
    ///
    /// # Errors
    /// `EEXIST` where something is mapped there, `EINVAL` where it is not whole pages, no access at
    /// all, or addresses that cannot be mapped, `EFAULT` for memory that cannot be pinned (the mapping
    /// of a dma-buf), `ENOMEM` past the limit of locked memory (`RLIMIT_MEMLOCK`), `ENOSPC` past the
    /// number of mappings (`dma_entry_limit` of the module `vfio_iommu_type1`). Nothing is mapped then.
    ///
    /// # Safety
    /// Until it is unmapped, devices may read and write the memory, as `access` says, at any moment:
    /// it must not be given to anybody who relies on its content, nor may there be a reference to it
    /// that a device's access would contradict.
    pub unsafe fn map(
        &self,
        iova: Iova,
        host: NonNull<u8>,
        len_bytes: u64,
        access: DmaAccess,
    ) -> io::Result<()> {
        let read = if access.read { MAP_READ } else { 0 };
        let write = if access.write { MAP_WRITE } else { 0 };
        let mut arg = MapArg {
            argsz: size_of::<MapArg>() as u32,
            flags: read | write,
            vaddr: host.expose_provenance().get() as u64,
            iova: iova.raw(),
            size: len_bytes,
        };
        // SAFETY: the kernel reads a `struct vfio_iommu_type1_dma_map`, whose layout `MapArg` has; what
        // devices do with the memory is the caller's promise.
        unsafe { exchange(self.0.as_fd(), IOMMU_MAP_DMA, (&raw mut arg).cast()) }.map(drop)
    }

    /// Unmaps all mappings between `iova` and `len_bytes` behind it. When it returns, devices cannot
    /// reach them any more. The value is how many bytes were mapped there: none are no error.
    ///
    /// # Errors
    /// `EINVAL` where it would cut a mapping, or is not whole pages.
    pub fn unmap(&self, iova: Iova, len_bytes: u64) -> io::Result<u64> {
        let mut arg = UnmapArg {
            argsz: size_of::<UnmapArg>() as u32,
            flags: 0,
            iova: iova.raw(),
            size: len_bytes,
        };
        // SAFETY: the kernel reads and writes a `struct vfio_iommu_type1_dma_unmap`, whose layout
        // `UnmapArg` has.
        unsafe { exchange(self.0.as_fd(), IOMMU_UNMAP_DMA, (&raw mut arg).cast()) }?;
        Ok(arg.size)
    }
}

/// Devices that no IOMMU can keep apart.
#[derive(Debug)]
pub struct Group(OwnedFd);

/// What a group is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// No driver of the kernel has any of its devices.
    pub is_viable: bool,
    /// It is in a container.
    pub has_container: bool,
}

impl Group {
    /// Where the group `number` is opened.
    pub fn path(number: u32) -> PathBuf {
        PathBuf::from(format!("{GROUPS}/{number}"))
    }

    /// The group `number`, as the link `iommu_group` of a device's folder in sysfs names it.
    ///
    /// # Errors
    /// `ENOENT` where no device of it has a driver of VFIO, `EACCES` without the right to it, `EBUSY`
    /// where somebody has it open.
    pub fn open(number: u32) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(Self::path(number), flags, Mode::empty())?))
    }

    /// What it is like.
    ///
    /// # Errors
    /// `ENOTTY` where the descriptor is something else.
    pub fn status(&self) -> io::Result<GroupStatus> {
        let mut arg = GroupStatusArg { argsz: size_of::<GroupStatusArg>() as u32, flags: 0 };
        // SAFETY: the kernel reads and writes a `struct vfio_group_status`, whose layout the argument
        // has.
        unsafe { exchange(self.0.as_fd(), GROUP_GET_STATUS, (&raw mut arg).cast()) }?;
        let has = |flag| arg.flags & flag != 0;
        Ok(GroupStatus { is_viable: has(GROUP_IS_VIABLE), has_container: has(GROUP_HAS_CONTAINER) })
    }

    /// Puts it into a container.
    ///
    /// # Errors
    /// `EINVAL` where it is in one, `EPERM` where it is not viable.
    pub fn set_container(&self, container: &Container) -> io::Result<()> {
        let mut fd = container.0.as_raw_fd();
        // SAFETY: the kernel reads a descriptor.
        unsafe { exchange(self.0.as_fd(), GROUP_SET_CONTAINER, (&raw mut fd).cast()) }.map(drop)
    }

    /// Takes it out of its container.
    ///
    /// # Errors
    /// `EBUSY` while one of its devices is open, `EINVAL` where it is in none.
    pub fn unset_container(&self) -> io::Result<()> {
        call(self.0.as_fd(), GROUP_UNSET_CONTAINER, 0).map(drop)
    }

    /// Opens a device of it by its name: for PCI as `0000:01:00.0`. It must be in a container that has
    /// a type.
    ///
    /// # Errors
    /// `ENODEV` where it is no device of the group or VFIO has no driver for it, `EINVAL` without a
    /// container; `InvalidInput` for a name with a zero byte.
    pub fn device(&self, name: &str) -> io::Result<Device> {
        let name = CString::new(name)?;
        let arg = name.as_ptr().cast_mut().cast();
        // SAFETY: the kernel reads a string that ends with a zero.
        let fd = unsafe { exchange(self.0.as_fd(), GROUP_GET_DEVICE_FD, arg) }?;
        // SAFETY: on success the ioctl returns a new descriptor, which nobody else owns.
        Ok(Device::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}
