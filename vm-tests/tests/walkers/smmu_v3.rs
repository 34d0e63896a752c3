//! Arm's SMMUv3.
//!
//! Source: Arm System Memory Management Unit Architecture Specification, version 3 (IHI 0070):
//! chapter 4 for commands, 5 for the stream table entry and the context descriptor, 6 for
//! registers, 7 for events.

use std::cell::Cell;
use std::rc::Rc;

use longshore_mem::Granule;
use longshore_pagetable::TlbGather;
use longshore_pagetable::format::{ArmStage1, Geometry, Window};

use crate::machine::{DEVICE, Machine, STRUCTURES};
use crate::unit::{Fault, Reason, Unit};

/// The address of the SMMU in QEMU's `virt` machine (hw/arm/virt.c).
const BASE: u64 = 0x0905_0000;

const IDR0: u64 = 0x00;
const IDR5: u64 = 0x14;
const CR0: u64 = 0x20;
const CR0_ACK: u64 = 0x24;
const CR1: u64 = 0x28;
const CR2: u64 = 0x2c;
const GERROR: u64 = 0x60;
const STRTAB_BASE: u64 = 0x80;
const STRTAB_BASE_CFG: u64 = 0x88;
const CMDQ_BASE: u64 = 0x90;
const CMDQ_PROD: u64 = 0x98;
const CMDQ_CONS: u64 = 0x9c;
const EVENTQ_BASE: u64 = 0xa0;
const EVENTQ_PROD: u64 = 0x1_00a8;
const EVENTQ_CONS: u64 = 0x1_00ac;

const CR0_ENABLE: u32 = 1 << 0;
const CR0_EVENTQ: u32 = 1 << 2;
const CR0_CMDQ: u32 = 1 << 3;
/// Tables and queues are inner shareable and write-back.
const CR1_CACHEABLE: u32 = 0b11_0101 << 6 | 0b11_0101;

const STREAM_TABLE: u64 = STRUCTURES;
const CONTEXT: u64 = STRUCTURES + 0x1_0000;
const COMMANDS: u64 = STRUCTURES + 0x2_0000;
const EVENTS: u64 = STRUCTURES + 0x3_0000;
const STREAMS_LOG2: u32 = 5;
const COMMANDS_LOG2: u32 = 8;
const EVENTS_LOG2: u32 = 7;

const CMD_CFGI_STE: u64 = 0x03;
const CMD_CFGI_ALL: u64 = 0x04;
const CMD_CFGI_CD: u64 = 0x05;
const CMD_TLBI_NH_ASID: u64 = 0x11;
const CMD_TLBI_NH_VA: u64 = 0x12;
const CMD_TLBI_S12_VMALL: u64 = 0x28;
const CMD_TLBI_S2_IPA: u64 = 0x2a;
const CMD_TLBI_NSNH_ALL: u64 = 0x30;
const CMD_SYNC: u64 = 0x46;

const F_TRANSLATION: u32 = 0x10;
const F_PERMISSION: u32 = 0x13;

const ASID: u64 = 7;
const VMID: u64 = 9;

/// The translation stage of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    One,
    Two,
}

/// An SMMUv3 with one stream.
pub(crate) struct SmmuV3 {
    machine: Rc<Machine>,
    stage: Stage,
    produced: Cell<u32>,
}

impl SmmuV3 {
    /// # Errors
    /// Returns a message if the model does not support `stage` or `granule`.
    pub(crate) fn new(
        machine: Rc<Machine>,
        stage: Stage,
        granule: Granule,
    ) -> Result<Self, String> {
        let smmu = Self { machine, stage, produced: Cell::new(0) };
        let (idr0, idr5) = (smmu.read(IDR0), smmu.read(IDR5));
        let stage_bit = if stage == Stage::One { 1 } else { 0 };
        let granule_bit = 4 + (u32::from(granule.log2()) - 12) / 2;
        if idr0 >> stage_bit & 1 == 0 {
            return Err(format!("this QEMU's SMMUv3 has no stage {stage:?} (IDR0 {idr0:#x})"));
        }
        if idr5 >> granule_bit & 1 == 0 {
            return Err(format!("this QEMU's SMMUv3 has no granule {granule} (IDR5 {idr5:#x})"));
        }
        Ok(smmu)
    }

    fn read(&self, register: u64) -> u32 {
        self.machine.read_u32(BASE + register)
    }

    fn write(&self, register: u64, value: u32) {
        self.machine.write_u32(BASE + register, value);
    }

    fn write_u64(&self, register: u64, value: u64) {
        self.machine.write_u64(BASE + register, value);
    }

    /// Queues a command. QEMU executes it at once, but only a sync guarantees that.
    fn command(&self, words: [u64; 2]) {
        let slot = u64::from(self.produced.get() & ((1 << COMMANDS_LOG2) - 1));
        self.machine.write_words(COMMANDS + slot * 16, &words);
        // The bit above the index distinguishes a full queue from an empty one.
        self.produced.set((self.produced.get() + 1) & ((2 << COMMANDS_LOG2) - 1));
        self.write(CMDQ_PROD, self.produced.get());
    }

    fn sync(&self) {
        self.command([CMD_SYNC, 0]);
        assert_eq!(self.read(CMDQ_CONS), self.produced.get(), "commands were not executed");
        assert_eq!(self.read(GERROR), 0, "the SMMU reports an error of its own");
    }

    fn context_descriptor(geometry: &Geometry, root: u64) -> [u64; 8] {
        let upper = geometry.window() == Window::High;
        let granule_log2 = u64::from(geometry.granule_log2());
        let size = 64 - u64::from(geometry.input_bits());
        // TG0 and TG1 have different encodings.
        let (tg0, tg1) = match granule_log2 {
            12 => (0, 2),
            14 => (2, 1),
            _ => (1, 3),
        };
        const CACHED: u64 = 0b11_0101;
        let translation = if upper {
            1 << 14 | size << 16 | tg1 << 22 | CACHED << 24
        } else {
            size | tg0 << 6 | CACHED << 8 | 1 << 30
        };
        // V, AA64, R (record faults), A (abort them), ASET, ASID.
        let control = 1 << 31 | 1 << 41 | 1 << 45 | 1 << 46 | 1 << 47 | ASID << 48;
        let output = output_size(geometry) << 32;
        let roots = if upper { [0, root] } else { [root, 0] };
        [translation | control | output, roots[0], roots[1], ArmStage1::MAIR, 0, 0, 0, 0]
    }

    fn stream_entry(&self, geometry: &Geometry, root: u64) -> [u64; 8] {
        const VALID: u64 = 1 << 0;
        // Uses the incoming attributes.
        const SHCFG: u64 = 1 << 44;
        const CACHED: u64 = 0b11_0101;
        match self.stage {
            // S1CIR, S1COR, S1CSH: the attributes of fetches of the context descriptor.
            Stage::One => [VALID | 0b101 << 1 | CONTEXT, SHCFG | 0b11_0101 << 2, 0, 0, 0, 0, 0, 0],
            Stage::Two => {
                let size = 64 - u64::from(geometry.input_bits());
                let start = 4 - u64::from(geometry.levels());
                let (granule, level) = match geometry.granule_log2() {
                    12 => (0, 2 - start),
                    14 => (2, 3 - start),
                    _ => (1, 3 - start),
                };
                let control = VMID
                    | size << 32
                    | level << 38
                    | CACHED << 40
                    | granule << 46
                    | output_size(geometry) << 48
                    // S2AA64, S2R (record faults).
                    | 1 << 51
                    | 1 << 58;
                [VALID | 0b110 << 1, SHCFG, control, root, 0, 0, 0, 0]
            }
        }
    }

    fn set_control(&self, control: u32) {
        self.write(CR0, control);
        assert_eq!(self.read(CR0_ACK), control, "CR0 is not acknowledged");
    }
}

/// Returns the encoding of IPS and S2PS.
fn output_size(geometry: &Geometry) -> u64 {
    let sizes = [32, 36, 40, 42, 44, 48, 52];
    sizes.iter().position(|bits| *bits == geometry.output_bits()).expect("a size of Arm's") as u64
}

impl Unit for SmmuV3 {
    fn attach(&self, geometry: &Geometry, root: u64) {
        self.set_control(0);
        self.produced.set(0);
        let entry = STREAM_TABLE + u64::from(DEVICE) * 64;
        self.machine.fill(STREAM_TABLE, 64 << STREAMS_LOG2, 0);
        self.machine.write_words(CONTEXT, &Self::context_descriptor(geometry, root));
        self.machine.write_words(entry, &self.stream_entry(geometry, root));
        const ALLOCATE: u64 = 1 << 62;
        self.write(CR1, CR1_CACHEABLE);
        self.write(CR2, 0);
        self.write_u64(STRTAB_BASE, STREAM_TABLE | ALLOCATE);
        self.write(STRTAB_BASE_CFG, STREAMS_LOG2);
        self.write_u64(CMDQ_BASE, COMMANDS | ALLOCATE | u64::from(COMMANDS_LOG2));
        self.write(CMDQ_PROD, 0);
        self.write(CMDQ_CONS, 0);
        self.write_u64(EVENTQ_BASE, EVENTS | ALLOCATE | u64::from(EVENTS_LOG2));
        self.write(EVENTQ_PROD, 0);
        self.write(EVENTQ_CONS, 0);
        self.set_control(CR0_CMDQ | CR0_EVENTQ);
        let stream = u64::from(DEVICE) << 32;
        self.command([CMD_CFGI_ALL, 31]);
        self.command([CMD_CFGI_STE | stream, 1]);
        self.command([CMD_CFGI_CD | stream, 1]);
        self.command([CMD_TLBI_NSNH_ALL, 0]);
        self.sync();
        self.set_translating(true);
    }

    fn set_translating(&self, on: bool) {
        let enable = if on { CR0_ENABLE } else { 0 };
        self.set_control(CR0_CMDQ | CR0_EVENTQ | enable);
    }

    fn take_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let (produced, mut consumed) = (self.read(EVENTQ_PROD), self.read(EVENTQ_CONS));
        while consumed != produced {
            let slot = u64::from(consumed & ((1 << EVENTS_LOG2) - 1));
            let bytes = self.machine.read(EVENTS + slot * 32, 32);
            let word = |index: usize| {
                u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"))
            };
            let kind = word(0) as u32 & 0xff;
            let reason = match kind {
                F_TRANSLATION => Reason::Absent,
                F_PERMISSION => Reason::Permission,
                other => Reason::Other(other),
            };
            assert_eq!(word(0) >> 32, u64::from(DEVICE), "an event of another stream");
            // RnW is bit 99; the address starts at bit 128.
            faults.push(Fault { reason, iova: word(2), write: word(1) >> 35 & 1 == 0 });
            consumed = (consumed + 1) & ((2 << EVENTS_LOG2) - 1);
        }
        self.write(EVENTQ_CONS, consumed);
        faults
    }

    fn invalidate(&self, geometry: &Geometry, gather: &TlbGather) {
        let Some((first, last)) = gather.touched() else { return };
        let leaf = u64::from(!gather.has_tables());
        let one_level = gather.leaf_levels().is_power_of_two().then(|| {
            // The specification counts levels from the root down.
            3 - u64::from(gather.leaf_levels().trailing_zeros())
        });
        let granule_log2 = geometry.granule_log2();
        let granule = (u64::from(granule_log2) - 10) / 2;
        let pages = ((last.raw() - first.raw()) >> granule_log2) + 1;
        let (by_address, all) = match self.stage {
            Stage::One => (CMD_TLBI_NH_VA | ASID << 48, CMD_TLBI_NH_ASID | ASID << 48),
            Stage::Two => (CMD_TLBI_S2_IPA | VMID << 32, CMD_TLBI_S12_VMALL | VMID << 32),
        };
        match one_level {
            // By range, of (NUM + 1) << SCALE granules, with the level of all its leaves.
            Some(level) => {
                let scale = pages.div_ceil(32).next_power_of_two().ilog2();
                let number = pages.div_ceil(1 << scale) - 1;
                self.command([
                    by_address | number << 12 | u64::from(scale) << 20,
                    first.raw() | granule << 10 | level << 8 | leaf,
                ]);
            }
            None if pages <= 64 => {
                for page in 0..pages {
                    self.command([by_address, (first.raw() + (page << granule_log2)) | leaf]);
                }
            }
            None => self.command([all, 0]),
        }
        self.sync();
    }
}
