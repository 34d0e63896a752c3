//! A userspace driver of QEMU's device `edu` (`docs/specs/edu.rst` of QEMU): it maps the registers, and
//! the device copies between its own buffer and memory.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use longshore_domain::backend::{Device, Registers};

const VENDOR: &str = "0x1234";
const DEVICE: &str = "0x11e8";
const IDENTITY: u32 = 0x0100_00ed;

const REGISTER_IDENTITY: usize = 0x00;
const REGISTER_SOURCE: usize = 0x80;
const REGISTER_TARGET: usize = 0x88;
const REGISTER_COUNT: usize = 0x90;
const REGISTER_COMMAND: usize = 0x98;
const RUN: u64 = 1 << 0;
const TO_MEMORY: u64 = 1 << 1;
/// The address of the device's buffer of 4 KiB.
const BUFFER: u64 = 0x4_0000;

/// The maximum of one copy: QEMU 7.2 aborts if a copy reaches the buffer's end.
pub(super) const COPY_BYTES: usize = 2048;
/// The guest time of a copy of any length.
pub(super) const COPY_TIME: Duration = Duration::from_millis(100);
const COPY_TIMES_MAX: u32 = 200;

/// The device.
pub(super) struct Edu {
    registers: Registers,
    // Keeps the device open as long as its registers are used.
    _device: Device,
}

impl Edu {
    pub(super) fn new(device: Device) -> Result<Self, Box<dyn Error>> {
        let info = device.info()?;
        if !info.is_pci || device.reset().is_ok() != info.can_reset {
            return Err(format!("{info:?} does not match the device").into());
        }
        device.set_bus_master(true)?;
        let bar = device.region(0)?;
        let registers = device.map(&bar)?;
        let identity = registers.read_u32(REGISTER_IDENTITY);
        let mut read = [0; 4];
        device.read(&bar, REGISTER_IDENTITY as u64, &mut read)?;
        if identity != IDENTITY || u32::from_le_bytes(read) != IDENTITY {
            return Err(format!("the device says that it is {identity:#x}").into());
        }
        Ok(Self { registers, _device: device })
    }

    /// Copies `len` bytes from memory to the start of the device's buffer.
    pub(super) fn fetch(&self, iova: u64, len: usize) {
        self.copy(iova, BUFFER, len, RUN);
    }

    /// Copies `len` bytes from the start of the device's buffer to memory.
    pub(super) fn store(&self, iova: u64, len: usize) {
        self.copy(BUFFER, iova, len, RUN | TO_MEMORY);
    }

    /// Like [`store`](Self::store), but does not wait for the end.
    pub(super) fn begin_store(&self, iova: u64, len: usize) {
        self.begin(BUFFER, iova, len, RUN | TO_MEMORY);
    }

    fn copy(&self, source: u64, target: u64, len: usize, command: u64) {
        self.begin(source, target, len, command);
        for _ in 0..COPY_TIMES_MAX {
            thread::sleep(COPY_TIME);
            if self.registers.read_u64(REGISTER_COMMAND) & RUN == 0 {
                return;
            }
        }
        panic!("the device does not end a copy of {len} bytes");
    }

    fn begin(&self, source: u64, target: u64, len: usize, command: u64) {
        assert!(len <= COPY_BYTES, "{len} bytes end QEMU");
        self.registers.write_u64(REGISTER_SOURCE, source);
        self.registers.write_u64(REGISTER_TARGET, target);
        self.registers.write_u64(REGISTER_COUNT, len as u64);
        self.registers.write_u64(REGISTER_COMMAND, command);
    }
}

/// Returns the device's folder in sysfs.
pub(super) fn folder() -> io::Result<PathBuf> {
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let folder = entry?.path();
        let says = |name| fs::read_to_string(folder.join(name));
        if says("vendor")?.trim() == VENDOR && says("device")?.trim() == DEVICE {
            return Ok(folder);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "this machine has no edu"))
}

/// Returns the device's PCI address.
pub(super) fn address(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the sysfs folder of the device in the same IOMMU group: the next function of the slot.
pub(super) fn neighbour(folder: &Path) -> PathBuf {
    let address = address(folder);
    folder.with_file_name(format!("{}.1", address.trim_end_matches(".0")))
}

/// Binds the device to a driver, or to none.
pub(super) fn set_driver(folder: &Path, driver: Option<&str>) -> io::Result<()> {
    let address = address(folder);
    if fs::exists(folder.join("driver"))? {
        fs::write(folder.join("driver/unbind"), &address)?;
    }
    fs::write(folder.join("driver_override"), format!("{}\n", driver.unwrap_or_default()))?;
    if driver.is_some() {
        fs::write("/sys/bus/pci/drivers_probe", &address)?;
    }
    Ok(())
}
