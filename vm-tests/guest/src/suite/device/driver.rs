//! A driver of `examples/device` in userspace: registers through sysfs, rings and buffers in one 2 MiB
//! page, whose physical address root can read from the kernel.
#![expect(unsafe_code, reason = "registers are read and written by whole words")]

use std::{
    error::Error,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use longshore_device_example::layout::{
    BAR_BYTES, Completion, DEVICE, Descriptor, ENTRY_BYTES, IDENTITY, SEGMENT_BYTES, VENDOR,
    control, register, status,
};
use longshore_mem::Granule;
use longshore_sys::{
    mapping::{Access, Mapping},
    memfd,
};

use crate::mapped::Mapped;

pub(super) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A part of a scatter list: its IOVA and its length in bytes.
pub(super) type Part = (u64, u64);

/// The number of entries in each ring.
pub(super) const ENTRIES: u32 = 8;
/// The offset in the page of the buffers; the rings and lists come before them.
pub(super) const BUFFERS: u64 = 0x1_0000;
/// The length of the page in bytes.
pub(super) const PAGE_BYTES: u64 = 2 << 20;

const DESCRIPTORS: u64 = 0x1000;
const COMPLETIONS: u64 = 0x2000;
/// Scatter lists of up to 256 entries, one for each descriptor.
const LISTS: u64 = 0x4000;
const LIST_BYTES: u64 = 256 * SEGMENT_BYTES;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
/// The maximum wait for a completion. A copy takes milliseconds, even on a busy host.
const PATIENCE: Duration = Duration::from_secs(20);

/// A driver of the device.
pub(super) struct Driver {
    registers: Mapping,
    config: File,
    pub(super) memory: Mapped,
    /// The page's physical address, which is its IOVA, because no IOMMU is in front of the device.
    page: u64,
    submitted: u32,
    completed: u32,
}

impl Driver {
    /// Finds the device, and enables it.
    pub(super) fn new() -> Result<Self> {
        let folder = find()?;
        fs::write(folder.join("enable"), "1")?;
        let open = |name| File::options().read(true).write(true).open(folder.join(name));
        let config = open("config")?;
        let registers = Mapping::of_file(
            open("resource0")?,
            BAR_BYTES.into(),
            Granule::SIZE_4K,
            Access::ReadWrite,
        )?;
        fs::write(POOL, "1")?;
        let page = memfd::create("dma", memfd::Backing::Hugetlb2M)?;
        memfd::set_len(&page, PAGE_BYTES)?;
        let mut memory = Mapped::new(&page, PAGE_BYTES)?;
        memory.view_mut().zero(0, PAGE_BYTES as usize)?;
        let page = physical_address(&memory)?;
        let mut driver = Self { registers, config, memory, page, submitted: 0, completed: 0 };
        driver.set_bus_master(true)?;
        driver.enable(0)?;
        Ok(driver)
    }

    /// Restarts the device, with these bits of [`control`] in addition to the enable bit.
    pub(super) fn enable(&mut self, bits: u32) -> Result<()> {
        self.write(register::CONTROL, 0);
        self.memory.view_mut().zero(COMPLETIONS as usize, 0x1000)?;
        for (at, value) in [
            (register::ENTRIES, u64::from(ENTRIES)),
            (register::DESCRIPTORS, self.iova(DESCRIPTORS)),
            (register::DESCRIPTORS + 4, self.iova(DESCRIPTORS) >> 32),
            (register::COMPLETIONS, self.iova(COMPLETIONS)),
            (register::COMPLETIONS + 4, self.iova(COMPLETIONS) >> 32),
            (register::CONTROL, u64::from(control::ENABLE | bits)),
        ] {
            self.write(at, value as u32);
        }
        (self.submitted, self.completed) = (0, 0);
        match self.read(register::STATUS) {
            status::RUNNING => Ok(()),
            other => Err(format!("after enabling, its status is {other}").into()),
        }
    }

    /// Allows or forbids the device to access memory.
    pub(super) fn set_bus_master(&self, may: bool) -> io::Result<()> {
        let command = COMMAND_MEMORY | if may { COMMAND_MASTER } else { 0 };
        self.config.write_all_at(&command.to_le_bytes(), COMMAND)
    }

    /// Returns the configuration space as a file.
    pub(super) fn config(&self) -> &File {
        &self.config
    }

    /// Reads a register.
    pub(super) fn read(&self, at: u64) -> u32 {
        // SAFETY: registers are within the mapping, and aligned.
        let word = unsafe { self.registers.start().byte_add(at as usize) }.cast::<u32>();
        // SAFETY: the mapping lives as long as `self`, and the device answers for every word.
        u32::from_le(unsafe { word.read_volatile() })
    }

    /// Writes a register.
    pub(super) fn write(&self, at: u64, value: u32) {
        // SAFETY: registers are within the mapping, and aligned.
        let word = unsafe { self.registers.start().byte_add(at as usize) }.cast::<u32>();
        // SAFETY: as above.
        unsafe { word.write_volatile(value.to_le()) };
    }

    /// Returns the IOVA of an offset in the page.
    pub(super) fn iova(&self, at: u64) -> u64 {
        self.page + at
    }

    /// Submits a descriptor with this scatter list, without ringing the doorbell.
    pub(super) fn submit(&mut self, opcode: u32, list: &[Part], target: u64) -> Result<()> {
        let slot = u64::from(self.submitted % ENTRIES);
        let at = LISTS + slot * LIST_BYTES;
        for (entry, (iova, len)) in (0..).zip(list) {
            let bytes = [iova.to_le_bytes(), len.to_le_bytes()];
            let at = (at + entry * SEGMENT_BYTES) as usize;
            self.memory.view_mut().write(at, bytes.as_flattened())?;
        }
        let descriptor = Descriptor {
            opcode,
            segments: list.len() as u32,
            list: self.iova(at),
            target,
            cookie: 0xc0_0000 + u64::from(self.submitted),
        };
        self.submit_raw(descriptor)
    }

    /// Submits an unchanged descriptor.
    pub(super) fn submit_raw(&mut self, descriptor: Descriptor) -> Result<()> {
        let slot = u64::from(self.submitted % ENTRIES);
        let bytes = descriptor.words().map(u64::to_ne_bytes);
        let at = (DESCRIPTORS + slot * ENTRY_BYTES) as usize;
        self.memory.view_mut().write(at, bytes.as_flattened())?;
        self.submitted += 1;
        Ok(())
    }

    /// Rings the doorbell.
    pub(super) fn ring(&self) {
        fence(Ordering::Release);
        self.write(register::DOORBELL, self.submitted);
    }

    /// Waits for the next completion.
    pub(super) fn completion(&mut self) -> Result<Completion> {
        let at = (COMPLETIONS + u64::from(self.completed % ENTRIES) * ENTRY_BYTES) as usize;
        let wanted = self.completed + 1;
        let started = Instant::now();
        loop {
            let seen = self.look(at)?;
            if seen.sequence == wanted {
                // The other fields may be older than the sequence number, so read them again.
                fence(Ordering::Acquire);
                self.completed = wanted;
                return self.look(at);
            }
            if started.elapsed() > PATIENCE {
                let status = self.read(register::STATUS);
                return Err(format!("{wanted} does not complete, with status {status}").into());
            }
            std::thread::yield_now();
        }
    }

    /// Submits one descriptor and waits for its completion.
    pub(super) fn run(&mut self, opcode: u32, list: &[Part], target: u64) -> Result<Completion> {
        self.submit(opcode, list, target)?;
        self.ring();
        self.completion()
    }

    fn look(&self, at: usize) -> Result<Completion> {
        let mut bytes = [[0; 8]; 4];
        self.memory.view().read(at, bytes.as_flattened_mut())?;
        Ok(Completion::of(bytes.map(u64::from_ne_bytes)))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.write(register::CONTROL, 0);
        // The test already has its outcome, so an error is ignored.
        let _ = fs::write(POOL, "0");
    }
}

/// Returns the device's folder in sysfs.
fn find() -> Result<PathBuf> {
    let wanted = [format!("{VENDOR:#06x}"), format!("{DEVICE:#06x}")];
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let folder = entry?.path();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        if [read("vendor"), read("device")].each_ref().map(|it| it.trim()) == wanted {
            return Ok(folder);
        }
    }
    Err(format!("there is no PCI device {wanted:?}").into())
}

/// Returns the physical address of a resident page.
fn physical_address(memory: &Mapped) -> Result<u64> {
    const BASE_PAGE_BYTES: u64 = 4096;
    let pagemap = File::open(Path::new("/proc/self/pagemap"))?;
    let mut entry = [0; 8];
    let page = memory.address() as u64 / BASE_PAGE_BYTES;
    pagemap.read_exact_at(&mut entry, page * 8)?;
    let entry = u64::from_le_bytes(entry);
    let frame = entry & ((1 << 55) - 1);
    if entry >> 63 == 0 || frame == 0 {
        return Err(format!("/proc/self/pagemap has no address of the page: {entry:#x}").into());
    }
    Ok(frame * BASE_PAGE_BYTES)
}

/// Returns `true` if the device has the expected identity.
pub(super) fn is_ours(driver: &Driver) -> bool {
    driver.read(register::IDENTITY) == IDENTITY
}
