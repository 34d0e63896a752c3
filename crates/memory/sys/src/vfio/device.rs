//! A device: its registers, its configuration space, and which address space it is in.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::ioctl::{call, exchange, vfio_request as request};
use crate::iommufd::{Ioas, Iommufd};
use crate::retry_interrupted;

/// Where devices are that are opened without their group (Linux 6.6).
const DEVICES: &str = "/dev/vfio/devices";
/// The region of a PCI device that is its configuration space. Regions 0 to 5 are its BARs.
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

/// Where in the configuration space the command register is, and its bits for memory and DMA.
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

/// An open device. What it can reach is what is mapped in the address space that it is in.
#[derive(Debug)]
pub struct Device(OwnedFd);

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its regions are those of a PCI device.
    pub is_pci: bool,
    /// [`Device::reset`] works.
    pub can_reset: bool,
}

/// A part of a device that can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its number.
    pub index: u32,
    /// Its size; zero where the device has no such region.
    pub len_bytes: u64,
    /// It can be read.
    pub can_read: bool,
    /// It can be written.
    pub can_write: bool,
    /// It can be mapped.
    pub can_map: bool,
    /// Where the kernel has it in the device's file.
    offset: u64,
}

impl Device {
    pub(super) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Where the device `number` is opened without its group.
    pub fn path(number: u32) -> PathBuf {
        PathBuf::from(format!("{DEVICES}/vfio{number}"))
    }

    /// The device `number`, as the folder `vfio-dev` of its folder in sysfs names it, without its
    /// group. Nothing but [`bind`](Self::bind) works before it is bound.
    ///
    /// # Errors
    /// `ENOENT` where it has no driver of VFIO or the kernel opens devices by group only, `EACCES`
    /// without the right to it.
    pub fn open(number: u32) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(Self::path(number), flags, Mode::empty())?))
    }

    /// Takes the device for the owner of `iommufd`. It has the number that is returned there. Until it
    /// is attached it reaches nothing.
    ///
    /// # Errors
    /// `EPERM` where its interrupts cannot be isolated and that is not allowed
    /// (`allow_unsafe_interrupts` of the module `iommufd`), `EINVAL` where it is bound, by whomever,
    /// `EBUSY` where its group has another owner, `ENOTTY` of a kernel without it.
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

    /// Puts the device into an address space of the iommufd that it is bound to.
    ///
    /// # Errors
    /// `EINVAL` where it is not bound, or the IOMMU cannot have it there.
    pub fn attach(&self, ioas: Ioas) -> io::Result<()> {
        let mut arg =
            AttachArg { argsz: size_of::<AttachArg>() as u32, flags: 0, pt_id: ioas.id() };
        // SAFETY: the kernel reads and writes a `struct vfio_device_attach_iommufd_pt`, whose layout
        // the argument has.
        unsafe { exchange(self.0.as_fd(), ATTACH_IOMMUFD_PT, (&raw mut arg).cast()) }.map(drop)
    }

    /// Takes the device out of its address space: it reaches nothing.
    ///
    /// # Errors
    /// `EINVAL` where it is not bound.
    pub fn detach(&self) -> io::Result<()> {
        let mut arg = DetachArg { argsz: size_of::<DetachArg>() as u32, flags: 0 };
        // SAFETY: the kernel reads a `struct vfio_device_detach_iommufd_pt`, whose layout the argument
        // has.
        unsafe { exchange(self.0.as_fd(), DETACH_IOMMUFD_PT, (&raw mut arg).cast()) }.map(drop)
    }

    /// Returns the type of the device and the numbers of its regions and interrupts.
    ///
    /// # Errors
    /// `EINVAL` where it was opened without its group and is not bound.
    pub fn info(&self) -> io::Result<DeviceInfo> {
        let mut arg =
            DeviceInfoArg { argsz: size_of::<DeviceInfoArg>() as u32, ..Default::default() };
        // SAFETY: the kernel reads and writes the head of a `struct vfio_device_info`, which the
        // argument is, and knows from `argsz` that there is no more.
        unsafe { exchange(self.0.as_fd(), GET_INFO, (&raw mut arg).cast()) }?;
        Ok(DeviceInfo {
            is_pci: arg.flags & DEVICE_IS_PCI != 0,
            can_reset: arg.flags & DEVICE_CAN_RESET != 0,
        })
    }

    /// A region by its number: of PCI the BARs 0 to 5, the ROM 6, and [`CONFIG_REGION`].
    ///
    /// # Errors
    /// `EINVAL` where there is no such number.
    pub fn region(&self, index: u32) -> io::Result<Region> {
        let argsz = size_of::<RegionInfoArg>() as u32;
        let mut arg = RegionInfoArg { argsz, index, ..Default::default() };
        // SAFETY: the kernel reads and writes a `struct vfio_region_info`, whose layout the argument
        // has, and knows from `argsz` that nothing is behind it.
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

    /// Resets it. What it was doing is over when this returns.
    ///
    /// # Errors
    /// `ENOTTY` or `EINVAL` where it cannot be reset alone ([`DeviceInfo::can_reset`]).
    pub fn reset(&self) -> io::Result<()> {
        call(self.0.as_fd(), RESET, 0).map(drop)
    }

    /// Reads all of `into` from a region.
    ///
    /// # Errors
    /// `InvalidInput` beyond the region's end, `UnexpectedEof` where the kernel reads less, `EIO` where
    /// the device is not there any more.
    pub fn read(&self, region: &Region, at: u64, into: &mut [u8]) -> io::Result<()> {
        let at = region.position(at, into.len())?;
        let len = into.len();
        let done = retry_interrupted(|| Ok(rustix::io::pread(&self.0, &mut *into, at)?))?;
        if done == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Writes all of `from` to a region.
    ///
    /// # Errors
    /// `InvalidInput` beyond the region's end, `WriteZero` where the kernel writes less, `EIO` where the
    /// device is not there any more.
    pub fn write(&self, region: &Region, at: u64, from: &[u8]) -> io::Result<()> {
        let at = region.position(at, from.len())?;
        let done = retry_interrupted(|| Ok(rustix::io::pwrite(&self.0, from, at)?))?;
        if done == from.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Lets a PCI device do DMA, and answer at its BARs; or forbids DMA. VFIO opens devices with both
    /// off.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn set_bus_master(&self, may: bool) -> io::Result<()> {
        let config = self.region(CONFIG_REGION)?;
        let mut command = [0; 2];
        self.read(&config, COMMAND, &mut command)?;
        let other = u16::from_le_bytes(command) & !COMMAND_MASTER;
        let master = if may { COMMAND_MASTER } else { 0 };
        self.write(&config, COMMAND, &(other | COMMAND_MEMORY | master).to_le_bytes())
    }

    /// Maps all of a region, to read and write registers without a system call.
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
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
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

/// A region of a device, mapped. Each access is one read or write of the device, in the order of the
/// program, and of the size it says: on PCI least byte first.
///
/// While the device does not answer at its BARs (its command register, a reset) an access is a SIGBUS.
#[derive(Debug)]
pub struct Registers {
    start: NonNull<u8>,
    len_bytes: usize,
    can_read: bool,
    can_write: bool,
}

// SAFETY: an own mapping; which thread uses or unmaps it does not matter.
unsafe impl Send for Registers {}
// SAFETY: all accesses are volatile, of registers that the device orders.
unsafe impl Sync for Registers {}

#[expect(clippy::len_without_is_empty, reason = "an empty region is not mapped")]
impl Registers {
    /// Returns the length in bytes, which is not zero.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// The four bytes at `at`.
    ///
    /// # Panics
    /// Where they are not all there, `at` is no multiple of four, or the region cannot be read.
    pub fn read_u32(&self, at: usize) -> u32 {
        let register = self.readable::<u32>(at);
        // SAFETY: inside the mapping, readable and aligned, as was just checked.
        u32::from_le(unsafe { register.read_volatile() })
    }

    /// The eight bytes at `at`.
    ///
    /// # Panics
    /// As [`read_u32`](Self::read_u32), of eight.
    pub fn read_u64(&self, at: usize) -> u64 {
        let register = self.readable::<u64>(at);
        // SAFETY: inside the mapping, readable and aligned, as was just checked.
        u64::from_le(unsafe { register.read_volatile() })
    }

    /// Writes four bytes at `at`.
    ///
    /// # Panics
    /// As [`read_u32`](Self::read_u32), where the region cannot be written.
    pub fn write_u32(&self, at: usize, value: u32) {
        let register = self.writable::<u32>(at);
        // SAFETY: inside the mapping, writable and aligned, as was just checked.
        unsafe { register.write_volatile(value.to_le()) };
    }

    /// Writes eight bytes at `at`.
    ///
    /// # Panics
    /// As [`write_u32`](Self::write_u32), of eight.
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
        // SAFETY: the mapping is this value's own, and no pointer to it leaves it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, Backing};

    /// A file in place of a device: reads, writes and maps as one.
    fn device(len_bytes: u64) -> (Device, Region) {
        let file = memfd::create("device", Backing::Shmem).unwrap();
        memfd::set_len(&file, len_bytes + 8192).unwrap();
        let (can_read, can_write, can_map) = (true, true, true);
        let region = Region { index: 0, len_bytes, can_read, can_write, can_map, offset: 8192 };
        (Device::from_fd(file), region)
    }

    #[test]
    fn registers_are_the_regions() {
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
    fn beyond_and_beside_registers_is_a_panic() {
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
