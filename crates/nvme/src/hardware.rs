//! The controller as a driver reaches it: registers, and the switch that lets it do DMA.

use std::io;

use longshore_domain::backend::{Device, Iommufd, OpenError, Registers, Vfio};
use longshore_domain::{Builder, Domain};

/// What a driver needs of the bus. [`Passed`] is a device that the kernel passes through; a test can
/// have a model of a controller instead.
pub trait Hardware {
    /// How many bytes of registers there are.
    fn registers_len_bytes(&self) -> usize;
    /// Reads a register of four bytes.
    fn read_u32(&self, at: usize) -> u32;
    /// Reads a register of eight bytes.
    fn read_u64(&self, at: usize) -> u64;
    /// Writes a register of four bytes.
    fn write_u32(&self, at: usize, value: u32);
    /// Writes a register of eight bytes.
    fn write_u64(&self, at: usize, value: u64);
    /// Lets the device do DMA, or forbids it.
    ///
    /// # Errors
    /// Those of the bus.
    fn set_bus_master(&self, may: bool) -> io::Result<()>;
    /// Resets the device by the bus: what it was doing is over when this returns.
    ///
    /// # Errors
    /// Those of the bus; also where the device cannot be reset.
    fn reset(&self) -> io::Result<()>;
}

/// A device that was passed through to this process.
#[derive(Debug)]
pub struct Passed {
    registers: Registers,
    device: Device,
}

impl Passed {
    /// Maps its registers.
    ///
    /// # Errors
    /// Those of the kernel; `InvalidInput` where BAR 0 cannot be mapped.
    pub fn new(device: Device) -> io::Result<Self> {
        // It answers at its BARs from here on, and does no DMA yet.
        device.set_bus_master(false)?;
        let registers = device.map(&device.region(0)?)?;
        Ok(Self { registers, device })
    }
}

impl Hardware for Passed {
    fn registers_len_bytes(&self) -> usize {
        self.registers.len_bytes()
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

    fn set_bus_master(&self, may: bool) -> io::Result<()> {
        self.device.set_bus_master(may)
    }

    fn reset(&self) -> io::Result<()> {
        self.device.reset()
    }
}

/// Which of the kernel's interfaces a device is passed through by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// VFIO, with a container of type 1.
    Vfio,
    /// iommufd.
    Iommufd,
}

/// Why a device could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// It could not be opened; the text says what whoever administers the machine must do.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its registers could not be reached.
    #[error("mapping the registers (BAR 0) of the device: {0}")]
    Registers(#[source] io::Error),
}

impl Interface {
    /// The device at a PCI address, as `0000:01:00.0`, and a domain in the making for it.
    ///
    /// # Errors
    /// [`PassError`].
    pub fn open(self, address: &str) -> Result<(Builder, Passed), PassError> {
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
        Ok((builder, Passed::new(device).map_err(PassError::Registers)?))
    }
}
