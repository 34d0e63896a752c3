//! The controller as a PCI device: registers, bus mastering, reset.

use std::io;

use longshore_domain::backend::{Device, Iommufd, Registers, Vfio};
use longshore_domain::{Builder, Domain};

use crate::error::Error;

/// The operations of the driver on a PCI device. [`PciDevice`] is a device that the kernel passes
/// through; a test can implement the trait for a model of a controller.
pub trait Hardware {
    /// Returns the length of the registers (BAR 0), in bytes.
    fn registers_len(&self) -> usize;
    /// Reads a register of four bytes.
    fn read_u32(&self, at: usize) -> u32;
    /// Reads a register of eight bytes.
    fn read_u64(&self, at: usize) -> u64;
    /// Writes a register of four bytes.
    fn write_u32(&self, at: usize, value: u32);
    /// Writes a register of eight bytes.
    fn write_u64(&self, at: usize, value: u64);
    /// Enables or disables bus mastering. The device can do DMA only while it is enabled.
    ///
    /// # Errors
    /// Returns the errors of the bus.
    fn set_bus_master(&self, is_enabled: bool) -> io::Result<()>;
    /// Resets the device by the bus. The device does no DMA any more when this returns `Ok`.
    ///
    /// # Errors
    /// Returns the errors of the bus, also if the device has no reset.
    fn reset(&self) -> io::Result<()>;
}

/// A PCI device that the kernel passes through to this process.
#[derive(Debug)]
pub struct PciDevice {
    registers: Registers,
    device: Device,
}

impl PciDevice {
    /// Maps the registers of a device.
    ///
    /// # Errors
    /// Returns [`Error::Device`], also if BAR 0 cannot be mapped.
    pub fn new(device: Device) -> Result<Self, Error> {
        Self::map(device).map_err(Error::device("mapping the registers (BAR 0) of the device"))
    }

    fn map(device: Device) -> io::Result<Self> {
        // This enables access to the BARs, but no DMA yet.
        device.set_bus_master(false)?;
        let registers = device.map(&device.region(0)?)?;
        Ok(Self { registers, device })
    }
}

impl Hardware for PciDevice {
    fn registers_len(&self) -> usize {
        self.registers.len()
    }

    #[inline]
    fn read_u32(&self, at: usize) -> u32 {
        self.registers.read_u32(at)
    }

    fn read_u64(&self, at: usize) -> u64 {
        self.registers.read_u64(at)
    }

    #[inline]
    fn write_u32(&self, at: usize, value: u32) {
        self.registers.write_u32(at, value);
    }

    fn write_u64(&self, at: usize, value: u64) {
        self.registers.write_u64(at, value);
    }

    fn set_bus_master(&self, is_enabled: bool) -> io::Result<()> {
        self.device.set_bus_master(is_enabled)
    }

    fn reset(&self) -> io::Result<()> {
        self.device.reset()
    }
}

/// A kernel interface that passes devices through to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// VFIO, with a container of type 1.
    Vfio,
    /// iommufd.
    Iommufd,
}

impl Interface {
    /// Opens the device at a PCI address such as `0000:01:00.0`, and returns it with a builder of its
    /// domain.
    ///
    /// # Errors
    /// Returns [`Error::Open`] if this process cannot use the device, and [`Error::Device`] if its
    /// registers cannot be mapped.
    pub fn open(self, address: &str) -> Result<(Builder, PciDevice), Error> {
        let (builder, device) = match self {
            Self::Vfio => {
                let (backend, device) = Vfio::open_device(address)?;
                (Domain::builder(backend), device)
            }
            Self::Iommufd => {
                let (backend, device) = Iommufd::open_device(address)?;
                (Domain::builder(backend), device)
            }
        };
        Ok((builder, PciDevice::new(device)?))
    }
}
