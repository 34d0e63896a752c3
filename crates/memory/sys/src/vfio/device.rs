//! A device: its registers, its configuration space, and the address space that it is in.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::ioctl::{call, exchange, vfio_request as request};
use crate::iommufd::{Ioas, Iommufd};
use crate::retry_interrupted;

/// The directory of devices that are opened without their group (Linux 6.6).
const DEVICES: &str = "/dev/vfio/devices";
/// The region number of a PCI device's configuration space. Regions 0 to 5 are its BARs.
pub const CONFIG_REGION: u32 = 7;

const GET_INFO: libc::Ioctl = request(7);
const GET_REGION_INFO: libc::Ioctl = request(8);
const RESET: libc::Ioctl = request(11);
const BIND_IOMMUFD: libc::Ioctl = request(18);
const ATTACH_IOMMUFD_PT: libc::Ioctl = request(19);
const DETACH_IOMMUFD_PT: libc::Ioctl = request(20);

const DEVICE_CAN_RESET: u32 = 1 << 0;
const DEVICE_IS_PCI: u32 = 1 << 1;
const REGION_READ: u32 = 1 << 0;
const REGION_WRITE: u32 = 1 << 1;
const REGION_MMAP: u32 = 1 << 2;

/// The offset of the command register in the configuration space, and its bits for memory and DMA.
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;

#[repr(C)]
#[derive(Default)]
struct DeviceInfoArg {
    argsz: u32,
    flags: u32,
    num_regions: u32,
    num_irqs: u32,
}
const _: () = assert!(size_of::<DeviceInfoArg>() == 16);

#[repr(C)]
#[derive(Default)]
struct RegionInfoArg {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    size: u64,
    offset: u64,
}
const _: () = assert!(size_of::<RegionInfoArg>() == 32);

#[repr(C)]
struct BindArg {
    argsz: u32,
    flags: u32,
    iommufd: i32,
    out_devid: u32,
}
const _: () = assert!(size_of::<BindArg>() == 16);

#[repr(C)]
struct AttachArg {
    argsz: u32,
    flags: u32,
    pt_id: u32,
}
const _: () = assert!(size_of::<AttachArg>() == 12);

#[repr(C)]
struct DetachArg {
    argsz: u32,
    flags: u32,
}
const _: () = assert!(size_of::<DetachArg>() == 8);

/// An open device. It can access the memory that is mapped in its address space.
#[derive(Debug)]
pub struct Device(OwnedFd);

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `true` if it is a PCI device.
    pub is_pci: bool,
    /// `true` if [`Device::reset`] works.
    pub can_reset: bool,
}

/// A part of a device that can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The number of the region.
    pub index: u32,
    /// Its size in bytes; zero if the device has no such region.
    pub len_bytes: u64,
    /// `true` if it can be read.
    pub can_read: bool,
    /// `true` if it can be written.
    pub can_write: bool,
    /// `true` if it can be mapped.
    pub can_map: bool,
    /// Its offset in the device's file.
    offset: u64,
}

impl Device {
    pub(super) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Returns the path of the device `number`, for opening it without its group.
    pub fn path(number: u32) -> PathBuf {
        PathBuf::from(format!("{DEVICES}/vfio{number}"))
    }

    /// Opens the device `number` without its group. The folder `vfio-dev` in the device's sysfs folder
    /// gives the number. Only [`bind`](Self::bind) works before it is bound.
    ///
    /// # Errors
    /// `ENOENT` if the device has no VFIO driver or the kernel opens devices by group only, `EACCES`
    /// without permission.
    pub fn open(number: u32) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(Self::path(number), flags, Mode::empty())?))
    }

    /// Binds the device to `iommufd`, and returns its ID there. Until it is attached, it cannot access
    /// any memory.
    ///
    /// # Errors
    /// `EPERM` if its interrupts cannot be isolated and that is not permitted (`allow_unsafe_interrupts`
    /// of the module `iommufd`), `EINVAL` if it is already bound, `EBUSY` if its group has another
    /// owner, `ENOTTY` if the kernel does not support it.
    pub fn bind(&self, iommufd: &Iommufd) -> io::Result<u32> {
        let mut arg = BindArg {
            argsz: size_of::<BindArg>() as u32,
            flags: 0,
            iommufd: iommufd.as_fd().as_raw_fd(),
            out_devid: 0,
        };
        // SAFETY: the kernel reads and writes a `struct vfio_device_bind_iommufd`, whose layout the
        // argument has.
        unsafe { exchange(self.0.as_fd(), BIND_IOMMUFD, (&raw mut arg).cast()) }?;
        Ok(arg.out_devid)
    }

    /// Attaches the device to an address space of the iommufd that it is bound to.
    ///
    /// # Errors
    /// `EINVAL` if it is not bound, or the address space is not compatible with its IOMMU.
    pub fn attach(&self, ioas: Ioas) -> io::Result<()> {
        let mut arg =
            AttachArg { argsz: size_of::<AttachArg>() as u32, flags: 0, pt_id: ioas.id() };
        // SAFETY: the kernel reads and writes a `struct vfio_device_attach_iommufd_pt`, whose layout
        // the argument has.
        unsafe { exchange(self.0.as_fd(), ATTACH_IOMMUFD_PT, (&raw mut arg).cast()) }.map(drop)
    }

    /// Detaches the device from its address space. It cannot access any memory then.
    ///
    /// # Errors
    /// `EINVAL` if it is not bound.
    pub fn detach(&self) -> io::Result<()> {
        let mut arg = DetachArg { argsz: size_of::<DetachArg>() as u32, flags: 0 };
        // SAFETY: the kernel reads a `struct vfio_device_detach_iommufd_pt`, whose layout the argument
        // has.
        unsafe { exchange(self.0.as_fd(), DETACH_IOMMUFD_PT, (&raw mut arg).cast()) }.map(drop)
    }

    /// Returns whether the device is a PCI device, and whether it can be reset.
    ///
    /// # Errors
    /// `EINVAL` if it was opened without its group and is not bound.
    pub fn info(&self) -> io::Result<DeviceInfo> {
        let mut arg =
            DeviceInfoArg { argsz: size_of::<DeviceInfoArg>() as u32, ..Default::default() };
        // SAFETY: the argument is the beginning of a `struct vfio_device_info`; `argsz` limits the
        // kernel's accesses to it.
        unsafe { exchange(self.0.as_fd(), GET_INFO, (&raw mut arg).cast()) }?;
        Ok(DeviceInfo {
            is_pci: arg.flags & DEVICE_IS_PCI != 0,
            can_reset: arg.flags & DEVICE_CAN_RESET != 0,
        })
    }

    /// Returns a region by its number. For PCI, 0 to 5 are the BARs and 6 is the ROM; see also
    /// [`CONFIG_REGION`].
    ///
    /// # Errors
    /// `EINVAL` if there is no such number.
    pub fn region(&self, index: u32) -> io::Result<Region> {
        let argsz = size_of::<RegionInfoArg>() as u32;
        let mut arg = RegionInfoArg { argsz, index, ..Default::default() };
        // SAFETY: the kernel reads and writes a `struct vfio_region_info`, whose layout the argument
        // has; `argsz` limits its accesses to it.
        unsafe { exchange(self.0.as_fd(), GET_REGION_INFO, (&raw mut arg).cast()) }?;
        let has = |flag| arg.flags & flag != 0;
        Ok(Region {
            index,
            len_bytes: arg.size,
            can_read: has(REGION_READ),
            can_write: has(REGION_WRITE),
            can_map: has(REGION_MMAP),
            offset: arg.offset,
        })
    }

    /// Resets the device. All of its operations have ended when this returns.
    ///
    /// # Errors
    /// `ENOTTY` or `EINVAL` if it cannot be reset alone ([`DeviceInfo::can_reset`]).
    pub fn reset(&self) -> io::Result<()> {
        call(self.0.as_fd(), RESET, 0).map(drop)
    }

    /// Reads all of `into` from a region.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the region, `UnexpectedEof` if the kernel reads less, `EIO` if
    /// the device has been removed.
    pub fn read(&self, region: &Region, at: u64, into: &mut [u8]) -> io::Result<()> {
        let at = region.position(at, into.len())?;
        let len = into.len();
        let done = retry_interrupted(|| Ok(rustix::io::pread(&self.0, &mut *into, at)?))?;
        if done == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Writes all of `from` to a region.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the region, `WriteZero` if the kernel writes less, `EIO` if the
    /// device has been removed.
    pub fn write(&self, region: &Region, at: u64, from: &[u8]) -> io::Result<()> {
        let at = region.position(at, from.len())?;
        let done = retry_interrupted(|| Ok(rustix::io::pwrite(&self.0, from, at)?))?;
        if done == from.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Permits or forbids DMA of a PCI device, and enables its BARs in both cases. VFIO opens devices
    /// with both disabled.
    ///
    /// # Errors
    /// Those of [`read`](Self::read) and [`write`](Self::write).
    pub fn set_bus_master(&self, may: bool) -> io::Result<()> {
        let config = self.region(CONFIG_REGION)?;
        let mut command = [0; 2];
        self.read(&config, COMMAND, &mut command)?;
        let other = u16::from_le_bytes(command) & !COMMAND_MASTER;
        let master = if may { COMMAND_MASTER } else { 0 };
        self.write(&config, COMMAND, &(other | COMMAND_MEMORY | master).to_le_bytes())
    }

    /// Maps all of a region, to access registers without system calls.
    ///
    /// # Errors
    /// `InvalidInput` for a region that cannot be mapped or has no bytes; those of `mmap(2)`.
    pub fn map(&self, region: &Region) -> io::Result<Registers> {
        let len_bytes = usize::try_from(region.len_bytes).unwrap_or(0);
        if !region.can_map || len_bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut prot = ProtFlags::empty();
        prot.set(ProtFlags::READ, region.can_read);
        prot.set(ProtFlags::WRITE, region.can_write);
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len_bytes,
                prot,
                MapFlags::SHARED,
                &self.0,
                region.offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let (can_read, can_write) = (region.can_read, region.can_write);
        Ok(Registers { start, len_bytes, can_read, can_write })
    }
}

impl Region {
    fn position(&self, at: u64, len: usize) -> io::Result<u64> {
        let end = at.checked_add(len as u64);
        match (end, self.offset.checked_add(at)) {
            (Some(end), Some(position)) if end <= self.len_bytes => Ok(position),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

/// A mapped region of a device. Each access is one read or write of the device, in program order, with
/// exactly the given size. Values are little-endian, as on PCI.
///
/// While the BARs of the device are disabled (by its command register or a reset), an access raises
/// SIGBUS.
#[derive(Debug)]
pub struct Registers {
    start: NonNull<u8>,
    len_bytes: usize,
    can_read: bool,
    can_write: bool,
}

// SAFETY: the value owns the mapping, which any thread may use or unmap.
unsafe impl Send for Registers {}
// SAFETY: all accesses are volatile, and the device orders accesses to its registers.
unsafe impl Sync for Registers {}

#[expect(clippy::len_without_is_empty, reason = "an empty region is not mapped")]
impl Registers {
    /// Returns the length in bytes, which is not zero.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Reads the four bytes at `at`.
    ///
    /// # Panics
    /// If they are not in the region, `at` is not a multiple of four, or the region cannot be read.
    pub fn read_u32(&self, at: usize) -> u32 {
        let register = self.readable::<u32>(at);
        // SAFETY: inside the mapping, readable and aligned, as was just checked.
        u32::from_le(unsafe { register.read_volatile() })
    }

    /// Reads the eight bytes at `at`.
    ///
    /// # Panics
    /// If they are not in the region, `at` is not a multiple of eight, or the region cannot be read.
    pub fn read_u64(&self, at: usize) -> u64 {
        let register = self.readable::<u64>(at);
        // SAFETY: inside the mapping, readable and aligned, as was just checked.
        u64::from_le(unsafe { register.read_volatile() })
    }

    /// Writes four bytes at `at`.
    ///
    /// # Panics
    /// If they are not in the region, `at` is not a multiple of four, or the region cannot be written.
    pub fn write_u32(&self, at: usize, value: u32) {
        let register = self.writable::<u32>(at);
        // SAFETY: inside the mapping, writable and aligned, as was just checked.
        unsafe { register.write_volatile(value.to_le()) };
    }

    /// Writes eight bytes at `at`.
    ///
    /// # Panics
    /// If they are not in the region, `at` is not a multiple of eight, or the region cannot be written.
    pub fn write_u64(&self, at: usize, value: u64) {
        let register = self.writable::<u64>(at);
        // SAFETY: inside the mapping, writable and aligned, as was just checked.
        unsafe { register.write_volatile(value.to_le()) };
    }

    fn readable<T>(&self, at: usize) -> *const T {
        assert!(self.can_read, "the region cannot be read");
        self.at(at)
    }

    fn writable<T>(&self, at: usize) -> *mut T {
        assert!(self.can_write, "the region cannot be written");
        self.at(at)
    }

    fn at<T>(&self, at: usize) -> *mut T {
        let is_inside = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len_bytes);
        let is_aligned = at.is_multiple_of(size_of::<T>());
        assert!(is_inside && is_aligned, "{at:#x} of {:#x} bytes of registers", self.len_bytes);
        self.start.as_ptr().wrapping_add(at).cast()
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and gives no pointer to it away.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, Backing};

    /// Returns a file in the place of a device, which can be read, written and mapped like one.
    fn device(len_bytes: u64) -> (Device, Region) {
        let file = memfd::create("device", Backing::Shmem).unwrap();
        memfd::set_len(&file, len_bytes + 8192).unwrap();
        let (can_read, can_write, can_map) = (true, true, true);
        let region = Region { index: 0, len_bytes, can_read, can_write, can_map, offset: 8192 };
        (Device::from_fd(file), region)
    }

    #[test]
    fn mapped_registers_have_the_bytes_of_the_region() {
        let (device, region) = device(4096);
        let registers = device.map(&region).unwrap();
        registers.write_u32(4, 0x0403_0201);
        registers.write_u64(4088, 0x1817_1615_1413_1211);
        let mut bytes = [0; 8];
        device.read(&region, 2, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 1, 2, 3, 4, 0, 0]);
        device.write(&region, 4092, &[9; 4]).unwrap();
        assert_eq!(registers.read_u32(4092), 0x0909_0909);
        assert_eq!(registers.read_u64(4088), 0x0909_0909_1413_1211);
        for (at, len) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX - 8192, 4)] {
            let beyond = device.write(&region, at, &vec![0; len]).unwrap_err();
            assert_eq!(beyond.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn invalid_accesses_to_registers_panic() {
        let (device, region) = device(4096);
        let registers = &device.map(&region).unwrap();
        for at in [2, 4094, 4096, usize::MAX - 1] {
            let read = std::panic::catch_unwind(|| registers.read_u32(at));
            assert!(read.is_err(), "{at:#x}");
        }
        let region = Region { can_write: false, ..region };
        let registers = &device.map(&region).unwrap();
        assert!(std::panic::catch_unwind(|| registers.write_u32(0, 1)).is_err());
        assert!(device.map(&Region { can_map: false, ..region }).is_err());
        assert!(device.map(&Region { len_bytes: 0, ..region }).is_err());
    }
}
