//! VFIO by container and group: address spaces in the kernel for devices of a process (`linux/vfio.h`,
//! IOMMU backend type 1).
//!
//! ```text
//!   Container  /dev/vfio/vfio ── map, unmap: the memory that devices can access
//!       ▲
//!       │ set_container, then set_iommu once
//!   Group      /dev/vfio/N ──── devices that the IOMMU cannot isolate from each other
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

/// The path of the device that containers are opened from.
pub const CONTAINER: &str = "/dev/vfio/vfio";
/// The directory of the groups, which are named by their numbers.
pub const GROUPS: &str = "/dev/vfio";
/// The version of the interface that this module uses.
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
    /// `VFIO_TYPE1_IOMMU`: any part of a mapping can be unmapped, if the page sizes permit it.
    Type1 = 1,
    /// `VFIO_TYPE1v2_IOMMU`: only whole mappings can be unmapped.
    Type1v2 = 3,
}

/// A container, which is an address space after it has got a group and a type.
#[derive(Debug)]
pub struct Container(OwnedFd);

impl Container {
    /// Opens a new container without a type.
    ///
    /// # Errors
    /// `ENOENT` without the module `vfio`, `EACCES` without permission.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(CONTAINER, flags, Mode::empty())?))
    }

    /// Returns the version of the kernel's interface, which should be [`API_VERSION`].
    ///
    /// # Errors
    /// `ENOTTY` if the descriptor is not a container.
    pub fn api_version(&self) -> io::Result<i32> {
        call(self.0.as_fd(), GET_API_VERSION, 0)
    }

    /// Returns `true` if the container can have this type. Some kernels know this only after it has a
    /// group.
    ///
    /// # Errors
    /// `ENOTTY` if the descriptor is not a container.
    pub fn supports(&self, kind: IommuType) -> io::Result<bool> {
        Ok(call(self.0.as_fd(), CHECK_EXTENSION, kind as libc::c_ulong)? > 0)
    }

    /// Sets the type of the container, which makes it an address space. It must have a group.
    ///
    /// # Errors
    /// `EPERM` if interrupts of the group's devices cannot be isolated and that is not permitted
    /// (`allow_unsafe_interrupts` of the module `vfio_iommu_type1`), `EINVAL` without a group or for a
    /// type that it cannot have, `ENODEV` without the type's module.
    pub fn set_iommu(&self, kind: IommuType) -> io::Result<()> {
        call(self.0.as_fd(), SET_IOMMU, kind as libc::c_ulong).map(drop)
    }

    /// Returns the page sizes and IOVAs that can be mapped.
    ///
    /// # Errors
    /// `EINVAL` before [`set_iommu`](Self::set_iommu); `InvalidData` for an answer that does not
    /// conform to the kernel's headers.
    pub fn info(&self) -> io::Result<IommuInfo> {
        let mut bytes = info::first_request();
        loop {
            let arg = bytes.as_mut_ptr().cast();
            // SAFETY: the first word is the length of the buffer, and the kernel accesses no more than
            // that.
            unsafe { exchange(self.0.as_fd(), IOMMU_GET_INFO, arg) }?;
            match info::longer_request(&bytes) {
                Some(longer) => bytes = longer,
                None => return Ok(IommuInfo::parse(&bytes)?),
            }
        }
    }

    /// Maps `len_bytes` of this process's memory at `iova`. Until [`unmap`](Self::unmap), the pages are
    /// pinned, and devices of the container's groups can access them.
    ///
    /// # Errors
    /// `EEXIST` if a part of the range is mapped already, `EINVAL` if the range does not consist of
    /// whole pages or cannot be mapped, or if `access` is empty, `EFAULT` for memory that cannot be
    /// pinned (the mapping of a dma-buf), `ENOMEM` beyond the limit of locked memory (`RLIMIT_MEMLOCK`),
    /// `ENOSPC` beyond the number of mappings (`dma_entry_limit` of the module `vfio_iommu_type1`).
    /// Nothing is mapped then.
    ///
    /// # Safety
    /// Until the memory is unmapped, devices may read and write it at any moment, as `access` permits.
    /// No code may rely on its content, and no reference to it may exist that conflicts with a device's
    /// access.
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
        // SAFETY: the kernel reads a `struct vfio_iommu_type1_dma_map`, whose layout `MapArg` has; the
        // caller's promise covers accesses of devices.
        unsafe { exchange(self.0.as_fd(), IOMMU_MAP_DMA, (&raw mut arg).cast()) }.map(drop)
    }

    /// Unmaps all mappings in `len_bytes` from `iova`. When it returns, devices cannot access the memory
    /// any more. Returns the number of bytes that were mapped, which may be zero.
    ///
    /// # Errors
    /// `EINVAL` if the range begins or ends inside a mapping, or does not consist of whole pages.
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

/// A group of devices that the IOMMU cannot isolate from each other.
#[derive(Debug)]
pub struct Group(OwnedFd);

/// The status of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// `true` if no other kernel driver uses any of its devices.
    pub is_viable: bool,
    /// `true` if the group is in a container.
    pub has_container: bool,
}

impl Group {
    /// Returns the path of the group `number`.
    pub fn path(number: u32) -> PathBuf {
        PathBuf::from(format!("{GROUPS}/{number}"))
    }

    /// Opens the group `number`, which the link `iommu_group` in a device's sysfs folder gives.
    ///
    /// # Errors
    /// `ENOENT` if none of its devices has a VFIO driver, `EACCES` without permission, `EBUSY` if it is
    /// already open.
    pub fn open(number: u32) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(Self::path(number), flags, Mode::empty())?))
    }

    /// Returns the status of the group.
    ///
    /// # Errors
    /// `ENOTTY` if the descriptor is not a group.
    pub fn status(&self) -> io::Result<GroupStatus> {
        let mut arg = GroupStatusArg { argsz: size_of::<GroupStatusArg>() as u32, flags: 0 };
        // SAFETY: the kernel reads and writes a `struct vfio_group_status`, whose layout the argument
        // has.
        unsafe { exchange(self.0.as_fd(), GROUP_GET_STATUS, (&raw mut arg).cast()) }?;
        let has = |flag| arg.flags & flag != 0;
        Ok(GroupStatus { is_viable: has(GROUP_IS_VIABLE), has_container: has(GROUP_HAS_CONTAINER) })
    }

    /// Puts the group into a container.
    ///
    /// # Errors
    /// `EINVAL` if it is in a container already, `EPERM` if it is not viable.
    pub fn set_container(&self, container: &Container) -> io::Result<()> {
        let mut fd = container.0.as_raw_fd();
        // SAFETY: the kernel reads a descriptor.
        unsafe { exchange(self.0.as_fd(), GROUP_SET_CONTAINER, (&raw mut fd).cast()) }.map(drop)
    }

    /// Takes the group out of its container.
    ///
    /// # Errors
    /// `EBUSY` while one of its devices is open, `EINVAL` if it is not in a container.
    pub fn unset_container(&self) -> io::Result<()> {
        call(self.0.as_fd(), GROUP_UNSET_CONTAINER, 0).map(drop)
    }

    /// Opens a device of the group by its name, for PCI such as `0000:01:00.0`. The group must be in a
    /// container that has a type.
    ///
    /// # Errors
    /// `ENODEV` if the device is not in the group or has no VFIO driver, `EINVAL` without a container;
    /// `InvalidInput` for a name with a zero byte.
    pub fn device(&self, name: &str) -> io::Result<Device> {
        let name = CString::new(name)?;
        let arg = name.as_ptr().cast_mut().cast();
        // SAFETY: the kernel reads a string that ends with a zero.
        let fd = unsafe { exchange(self.0.as_fd(), GROUP_GET_DEVICE_FD, arg) }?;
        // SAFETY: on success the ioctl returns a new descriptor, which has no other owner.
        Ok(Device::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}
