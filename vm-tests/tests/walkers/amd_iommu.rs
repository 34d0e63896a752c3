//! AMD's IOMMU with version 1 tables.
//!
//! Source: AMD I/O Virtualization Technology (IOMMU) Specification (48882): section 2.2.2 for the
//! device table entry, 2.4 for commands, 3.4 for registers.

use std::cell::Cell;
use std::rc::Rc;

use longshore_pagetable::TlbGather;
use longshore_pagetable::format::Geometry;

use crate::machine::{DEVICE, Machine, STRUCTURES};
use crate::unit::{Fault, Reason, Unit};

/// The address of the IOMMU in QEMU's `q35` machine.
const BASE: u64 = 0xfed8_0000;

const DEVICE_TABLE_BASE: u64 = 0x00;
const COMMAND_BASE: u64 = 0x08;
const CONTROL: u64 = 0x18;
const COMMAND_HEAD: u64 = 0x2000;
const COMMAND_TAIL: u64 = 0x2008;

const CONTROL_ENABLE: u64 = 1 << 0;
const CONTROL_COMMANDS: u64 = 1 << 12;

const DEVICE_TABLE: u64 = STRUCTURES;
const COMMANDS: u64 = STRUCTURES + 0x1_0000;
const COMPLETION: u64 = STRUCTURES + 0x3_0000;
/// The queue length of 256 entries of 16 bytes, as encoded in the base registers.
const QUEUE_LENGTH: u64 = 8 << 56;
const QUEUE_BYTES: u64 = 256 * 16;

const COMPLETION_WAIT: u64 = 1 << 60;
const INVALIDATE_DEVICE: u64 = 2 << 60;
const INVALIDATE_PAGES: u64 = 3 << 60;

const DOMAIN: u64 = 5;

/// An AMD IOMMU that serves one device.
pub(crate) struct AmdIommu {
    machine: Rc<Machine>,
    tail: Cell<u64>,
    waits: Cell<u64>,
}

impl AmdIommu {
    pub(crate) fn new(machine: Rc<Machine>) -> Self {
        Self { machine, tail: Cell::new(0), waits: Cell::new(0) }
    }

    fn command(&self, words: [u64; 2]) {
        self.machine.write_words(COMMANDS + self.tail.get(), &words);
        self.tail.set((self.tail.get() + 16) % QUEUE_BYTES);
        self.machine.write_u64(BASE + COMMAND_TAIL, self.tail.get());
    }

    /// Waits until all commands have completed.
    fn complete(&self) {
        self.waits.set(self.waits.get() + 1);
        self.command([COMPLETION_WAIT | COMPLETION | 1, self.waits.get()]);
        assert_eq!(
            self.machine.read_u64(COMPLETION),
            self.waits.get(),
            "commands have not completed"
        );
        assert_eq!(self.machine.read_u64(BASE + COMMAND_HEAD), self.tail.get());
    }
}

impl Unit for AmdIommu {
    fn attach(&self, geometry: &Geometry, root: u64) {
        self.machine.fill(DEVICE_TABLE, 0x1000, 0);
        // V, TV, mode, root, IR, IW.
        let mode = u64::from(geometry.levels()) << 9;
        let entry = [0b11 | mode | root | 0b11 << 61, DOMAIN, 0, 0];
        self.machine.write_words(DEVICE_TABLE + u64::from(DEVICE) * 32, &entry);
        self.machine.write_u64(BASE + DEVICE_TABLE_BASE, DEVICE_TABLE);
        self.machine.write_u64(BASE + COMMAND_BASE, COMMANDS | QUEUE_LENGTH);
        self.machine.write_u64(BASE + COMMAND_HEAD, 0);
        self.machine.write_u64(BASE + COMMAND_TAIL, 0);
        self.tail.set(0);
        self.set_translating(true);
        self.command([INVALIDATE_PAGES | DOMAIN << 32, 0x7fff_ffff_ffff_f001]);
        self.complete();
    }

    fn set_translating(&self, on: bool) {
        let enable = if on { CONTROL_ENABLE } else { 0 };
        let control = CONTROL_COMMANDS | enable;
        self.machine.write_u64(BASE + CONTROL, control);
        if on {
            // Later versions of QEMU read the device table only at this command.
            self.command([INVALIDATE_DEVICE | u64::from(DEVICE), 0]);
            self.complete();
        }
    }

    /// Returns none: QEMU 7.2 always considers its event log full, and later versions log no page
    /// faults.
    fn take_faults(&self) -> Vec<Fault> {
        Vec::new()
    }

    fn reports(&self, _reason: Reason) -> bool {
        false
    }

    /// In QEMU, address bits above 48 overlap the device ID in the key of the IOTLB.
    fn address_bits(&self) -> u32 {
        48
    }

    fn invalidate(&self, _geometry: &Geometry, gather: &TlbGather) {
        let Some((first, last)) = gather.touched() else { return };
        // S: the lowest clear bit of the address, from bit 12 on, gives the size. PDE: also invalidate
        // tables.
        let differing = (first.raw() ^ last.raw()) >> 12;
        let bits = u64::BITS - differing.leading_zeros();
        let sized = match bits {
            0 => 0,
            bits => ((1 << (bits - 1)) - 1) << 12 | 1,
        };
        let tables = u64::from(gather.has_tables()) << 1;
        let address = first.raw() & (u64::MAX << 12 << bits);
        self.command([INVALIDATE_PAGES | DOMAIN << 32, address | sized | tables]);
        self.complete();
    }
}
