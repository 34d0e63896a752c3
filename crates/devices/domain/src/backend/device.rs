//! A PCI device of this machine, for its driver.

use std::io;

use longshore_sys::vfio;

/// A PCI device that the kernel passes through to this process, by VFIO or iommufd.
///
/// [`Domain::open_device`](crate::Domain::open_device) returns it together with its address space. The
/// device can reach only memory that is mapped in that address space, and does no DMA before
/// [`set_bus_master`](Self::set_bus_master). Several threads may call its methods at once.
///
/// A driver maps the registers once, and reads and writes them without a system call:
///
/// ```no_run
/// # use longshore_domain::backend::Device;
/// # fn start(device: &Device) -> std::io::Result<()> {
/// device.reset()?;
/// device.set_bus_master(true)?; // the device can do DMA, and answers at its BARs
/// let registers = device.map(&device.region(0)?)?;
/// registers.write_u32(0x14, 1);
///
/// let mut vendor = [0; 2];
/// device.read(&device.config_space()?, 0, &mut vendor)?;
/// # Ok(())
/// # }
/// ```
///
/// Interrupts are not supported: a driver polls.
#[derive(Debug)]
pub struct Device(vfio::Device);

impl Device {
    pub(super) const fn new(device: vfio::Device) -> Self {
        Self(device)
    }

    /// Returns the properties of the device.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn info(&self) -> io::Result<DeviceInfo> {
        let info = self.0.info()?;
        Ok(DeviceInfo { is_pci: info.is_pci, can_reset: info.can_reset })
    }

    /// Returns the region with this number: 0 to 5 are the BARs of a PCI device, 6 is its ROM.
    ///
    /// # Errors
    /// `EINVAL` if there is no region with this number.
    pub fn region(&self, index: u32) -> io::Result<Region> {
        self.0.region(index).map(Region)
    }

    /// Returns the PCI configuration space.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn config_space(&self) -> io::Result<Region> {
        self.region(vfio::CONFIG_REGION)
    }

    /// Fills `into` with the bytes of a region from `offset` on.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes end beyond the region, `UnexpectedEof` if the kernel reads fewer,
    /// `EIO` if the device is gone.
    pub fn read(&self, region: &Region, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(&region.0, offset, into)
    }

    /// Writes all of `from` to a region, from `offset` on.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes end beyond the region, `WriteZero` if the kernel writes fewer, `EIO`
    /// if the device is gone.
    pub fn write(&self, region: &Region, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write(&region.0, offset, from)
    }

    /// Maps all of a region.
    ///
    /// # Errors
    /// `InvalidInput` if the region is empty or cannot be mapped; otherwise those of `mmap(2)`.
    pub fn map(&self, region: &Region) -> io::Result<Registers> {
        self.0.map(&region.0).map(Registers)
    }

    /// Enables or disables bus mastering, without which the device does no DMA. In both cases this also
    /// enables access to the BARs. Both are disabled when a device is opened.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn set_bus_master(&self, is_enabled: bool) -> io::Result<()> {
        self.0.set_bus_master(is_enabled)
    }

    /// Resets the device. All its accesses have ended when this returns.
    ///
    /// # Errors
    /// `ENOTTY` or `EINVAL` if the device cannot be reset alone ([`DeviceInfo::can_reset`]).
    pub fn reset(&self) -> io::Result<()> {
        self.0.reset()
    }
}

/// The properties of a [`Device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// `true` if it is a PCI device.
    pub is_pci: bool,
    /// `true` if [`Device::reset`] works.
    pub can_reset: bool,
}

/// A range of registers or memory of a [`Device`]: a BAR, the ROM, or the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region(vfio::Region);

impl Region {
    /// Returns the length in bytes.
    pub const fn len(&self) -> u64 {
        self.0.len_bytes
    }

    /// Returns `true` if the device does not have this region.
    pub const fn is_empty(&self) -> bool {
        self.0.len_bytes == 0
    }

    /// Returns `true` if it can be read.
    pub const fn is_readable(&self) -> bool {
        self.0.can_read
    }

    /// Returns `true` if it can be written.
    pub const fn is_writable(&self) -> bool {
        self.0.can_write
    }

    /// Returns `true` if [`Device::map`] can map it.
    pub const fn is_mappable(&self) -> bool {
        self.0.can_map
    }
}

/// The mapped registers of a [`Region`].
///
/// Each call is one volatile access of the given size, and the calls of a thread reach the device in
/// program order. Values are little-endian in the region, as always with PCI. Use a fence to order
/// accesses to registers and accesses to memory that the device shares.
///
/// If the device does not respond at its BARs (because of its command register, or during a reset), an
/// access ends the process with SIGBUS.
#[derive(Debug)]
pub struct Registers(vfio::Registers);

#[expect(clippy::len_without_is_empty, reason = "an empty region is not mapped")]
impl Registers {
    /// Returns the length in bytes, which is not zero.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reads the four bytes at `offset`.
    ///
    /// # Panics
    /// If they are not inside the region, `offset` is not a multiple of four, or the region cannot be
    /// read.
    #[inline]
    pub fn read_u32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }

    /// Reads the eight bytes at `offset`.
    ///
    /// # Panics
    /// If they are not inside the region, `offset` is not a multiple of eight, or the region cannot be
    /// read.
    #[inline]
    pub fn read_u64(&self, offset: usize) -> u64 {
        self.0.read_u64(offset)
    }

    /// Writes the four bytes at `offset`.
    ///
    /// # Panics
    /// If they are not inside the region, `offset` is not a multiple of four, or the region cannot be
    /// written.
    #[inline]
    pub fn write_u32(&self, offset: usize, value: u32) {
        self.0.write_u32(offset, value);
    }

    /// Writes the eight bytes at `offset`.
    ///
    /// # Panics
    /// If they are not inside the region, `offset` is not a multiple of eight, or the region cannot be
    /// written.
    #[inline]
    pub fn write_u64(&self, offset: usize, value: u64) {
        self.0.write_u64(offset, value);
    }
}
