//! A device with a doorbell: a write to it copies data within the machine's memory and raises an
//! interrupt.

use std::sync::{Arc, Mutex};

use longshore_access::Space;
use longshore_mem::Iova;
use longshore_vfio_user::pci::{Bar, CONFIG_REGION, ConfigSpace, MSIX_IRQ, MsixTable};
use longshore_vfio_user::{Device, DeviceDescription, Errno, Link};

/// The source address: 8 bytes.
pub(crate) const SOURCE: u64 = 0x00;
/// The target address: 8 bytes.
pub(crate) const TARGET: u64 = 0x08;
/// The number of bytes, 4 bytes; a write starts the copy.
pub(crate) const RING: u64 = 0x10;
/// The number of copies so far: 4 bytes.
pub(crate) const RUNG: u64 = 0x14;
const REGISTERS_BYTES: usize = 0x18;

const BAR_BYTES: u32 = 0x4000;
/// The offset of the MSI-X table in the registers. QEMU implements the table itself.
pub(crate) const MSIX_TABLE: u64 = 0x2000;

pub(crate) struct Doorbell {
    space: Space,
    config: ConfigSpace,
    registers: [u8; REGISTERS_BYTES],
    links: Links,
}

/// The links to the clients, for the test.
#[derive(Clone, Default)]
pub(crate) struct Links(Arc<Mutex<Vec<Link>>>);

impl Links {
    pub(crate) fn newest(&self) -> Option<Link> {
        self.0.lock().unwrap().last().cloned()
    }
}

impl Doorbell {
    /// Device and vendor ID, the first word of the configuration space.
    pub(crate) const IDENTITY: u32 = 0xcafe_1234;
    /// The offset of the MSI-X capability in the configuration space.
    pub(crate) const MSIX_CAPABILITY: u32 = 0x40;

    pub(crate) fn new(space: Space, links: Links) -> Self {
        let config = ConfigSpace::new(0x1234, 0xcafe)
            .class(0xff_00_00)
            .bar(0, Bar::memory32(BAR_BYTES))
            .intx()
            .msix(MsixTable {
                vectors: 4,
                bar: 0,
                table_offset: MSIX_TABLE as u32,
                pba_offset: 0x3000,
            });
        Self { space, config, registers: [0; REGISTERS_BYTES], links }
    }

    fn word(&self, at: u64) -> u64 {
        let bytes: [u8; 8] = std::array::from_fn(|byte| self.registers[at as usize + byte]);
        u64::from_le_bytes(bytes)
    }

    fn copy(&mut self) {
        let len = (self.word(RING) & 0xfff) as usize;
        let (source, target) = (Iova::new(self.word(SOURCE)), Iova::new(self.word(TARGET)));
        let session = self.space.session();
        let mut bytes = vec![0; len];
        let copied = session.read(source, &mut bytes).and_then(|()| session.write(target, &bytes));
        if copied.is_ok() {
            let rung = (self.word(RUNG - 4) >> 32) as u32 + 1;
            self.registers[RUNG as usize..].copy_from_slice(&rung.to_le_bytes());
            if let Some(link) = self.links.newest() {
                // The result does not depend on whether the guest has enabled the interrupt.
                let _ = link.interrupts().raise(MSIX_IRQ, 0);
            }
        }
    }
}

impl Device for Doorbell {
    fn description(&self) -> DeviceDescription {
        self.config.description()
    }

    fn region_read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            return self.config.read(offset, into);
        }
        for (at, byte) in into.iter_mut().enumerate() {
            *byte = self.registers.get(offset as usize + at).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            return self.config.write(offset, from);
        }
        for (at, byte) in from.iter().enumerate() {
            if let Some(register) = self.registers.get_mut(offset as usize + at) {
                *register = *byte;
            }
        }
        if offset == RING {
            self.copy();
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.config.reset();
        self.registers = [0; REGISTERS_BYTES];
    }

    fn connected(&mut self, link: &Link) {
        self.links.0.lock().unwrap().push(link.clone());
    }
}
