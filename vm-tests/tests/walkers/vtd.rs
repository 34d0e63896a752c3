//! Intel's VT-d in legacy mode.
//!
//! Source: Intel Virtualization Technology for Directed I/O, Architecture Specification (D51397):
//! sections 9.1 and 9.3 for root and context entries, chapter 11 for registers (10 in older
//! editions), 7.1 for fault reasons.

use std::rc::Rc;

use longshore_pagetable::TlbGather;
use longshore_pagetable::format::Geometry;

use crate::machine::{DEVICE, Machine, STRUCTURES};
use crate::unit::{Fault, Reason, Unit};

/// The address of the unit in QEMU's `q35` machine.
pub(crate) const BASE: u64 = 0xfed9_0000;

const CAP: u64 = 0x08;
const ECAP: u64 = 0x10;
const GCMD: u64 = 0x18;
const GSTS: u64 = 0x1c;
const RTADDR: u64 = 0x20;
const CCMD: u64 = 0x28;
const FSTS: u64 = 0x34;

const GCMD_TRANSLATE: u32 = 1 << 31;
const GCMD_SET_ROOT: u32 = 1 << 30;
/// The bits of GSTS that stay set until they are cleared.
const GSTS_PERSISTENT: u32 = 0x96ff_ffff;

const CCMD_INVALIDATE: u64 = 1 << 63;
const CCMD_GLOBAL: u64 = 1 << 61;
const IOTLB_INVALIDATE: u64 = 1 << 63;
const IOTLB_GLOBAL: u64 = 1 << 60;
const IOTLB_DOMAIN: u64 = 2 << 60;
const IOTLB_PAGES: u64 = 3 << 60;
const IOTLB_DRAIN: u64 = 0b11 << 48;

const ROOT_TABLE: u64 = STRUCTURES;
const CONTEXT_TABLE: u64 = STRUCTURES + 0x1000;
const DOMAIN: u64 = 5;

const FAULT: u64 = 1 << 63;
const ADDRESS_BEYOND_WIDTH: u32 = 0x4;
const WRITE_DENIED: u32 = 0x5;
const READ_DENIED: u32 = 0x6;
const FIRST_STAGE_ABSENT: u32 = 0x71;
const FIRST_STAGE_WRITE_DENIED: u32 = 0x85;

/// A VT-d unit that serves one device.
pub(crate) struct Vtd {
    machine: Rc<Machine>,
    /// The address of the registers IVA and IOTLB.
    iotlb: u64,
    /// The address and the number of the fault recording registers.
    records: (u64, u64),
    mask_max: u64,
    widths: u64,
}

impl Vtd {
    pub(crate) fn new(machine: Rc<Machine>) -> Self {
        let (cap, ecap) = (machine.read_u64(BASE + CAP), machine.read_u64(BASE + ECAP));
        Self {
            iotlb: BASE + (ecap >> 8 & 0x3ff) * 16,
            records: (BASE + (cap >> 24 & 0x3ff) * 16, (cap >> 40 & 0xff) + 1),
            mask_max: cap >> 48 & 0x3f,
            widths: cap >> 8 & 0x1f,
            machine,
        }
    }

    pub(crate) fn mask_max(&self) -> u64 {
        self.mask_max
    }

    /// Applies the value of RTADDR.
    pub(crate) fn set_root(&self) {
        self.global_command(GCMD_SET_ROOT, true);
    }

    /// Returns the smallest aligned power-of-two number of pages that contains `first` to `last`: its
    /// address and the logarithm of the number.
    pub(crate) fn aligned_pages(&self, first: u64, last: u64) -> (u64, u64) {
        let mask = u64::BITS - ((first ^ last) >> 12).leading_zeros();
        (first & u64::MAX.checked_shl(12 + mask).unwrap_or(0), u64::from(mask))
    }

    pub(crate) fn global_command(&self, bit: u32, on: bool) {
        let status = self.machine.read_u32(BASE + GSTS) & GSTS_PERSISTENT;
        let command = if on { status | bit } else { status & !bit };
        self.machine.write_u32(BASE + GCMD, command);
        let set = self.machine.read_u32(BASE + GSTS) & bit != 0;
        assert_eq!(set, on, "the unit did not execute {bit:#x}");
    }

    fn invalidate_iotlb(&self, kind: u64, address: u64) {
        self.machine.write_u64(self.iotlb, address);
        let register = self.iotlb + 8;
        let command = IOTLB_INVALIDATE | kind | IOTLB_DRAIN | DOMAIN << 32;
        self.machine.write_u64(register, command);
        let done = self.machine.read_u64(register);
        assert_eq!(done & IOTLB_INVALIDATE, 0, "the IOTLB was not invalidated");
        // IAIG: the granularity of the invalidation; 0 means that it was refused.
        assert_ne!(done >> 57 & 3, 0, "the IOTLB refused {command:#x}");
    }
}

impl Unit for Vtd {
    fn attach(&self, geometry: &Geometry, root: u64) {
        // AW: 1 for three levels, 2 for four; SAGAW has a bit for each.
        let width = u64::from(geometry.levels()) - 2;
        assert_ne!(
            self.widths >> width & 1,
            0,
            "the unit does not support {} levels",
            geometry.levels()
        );
        self.machine.fill(ROOT_TABLE, 0x2000, 0);
        self.machine.write_words(ROOT_TABLE, &[CONTEXT_TABLE | 1, 0]);
        let entry = CONTEXT_TABLE + u64::from(DEVICE) * 16;
        self.machine.write_words(entry, &[root | 1, width | DOMAIN << 8]);
        self.machine.write_u64(BASE + RTADDR, ROOT_TABLE);
        self.set_root();
        self.machine.write_u64(BASE + CCMD, CCMD_INVALIDATE | CCMD_GLOBAL);
        self.invalidate_iotlb(IOTLB_GLOBAL, 0);
        self.set_translating(true);
    }

    fn set_translating(&self, on: bool) {
        self.global_command(GCMD_TRANSLATE, on);
    }

    fn take_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let (first, count) = self.records;
        for record in 0..count {
            let at = first + record * 16;
            let [low, high] = [at, at + 8].map(|half| self.machine.read_u64(half));
            if high & FAULT == 0 {
                continue;
            }
            assert_eq!(high & 0xffff, u64::from(DEVICE), "a fault of another device");
            let reason = match (high >> 32) as u32 & 0xff {
                WRITE_DENIED | READ_DENIED => Reason::AbsentOrPermission,
                ADDRESS_BEYOND_WIDTH | FIRST_STAGE_ABSENT => Reason::Absent,
                FIRST_STAGE_WRITE_DENIED => Reason::Permission,
                other => Reason::Other(other),
            };
            faults.push(Fault { reason, iova: low, write: high >> 62 & 1 == 0 });
            self.machine.write_u64(at + 8, FAULT);
        }
        // Overflow and other status bits are cleared by writing them.
        self.machine.write_u32(BASE + FSTS, 0xff);
        faults
    }

    fn invalidate(&self, _geometry: &Geometry, gather: &TlbGather) {
        let Some((first, last)) = gather.touched() else { return };
        let (start, mask) = self.aligned_pages(first.raw(), last.raw());
        if mask > self.mask_max {
            return self.invalidate_iotlb(IOTLB_DOMAIN, 0);
        }
        // IH: no tables were detached.
        let only_leaves = u64::from(!gather.has_tables()) << 6;
        self.invalidate_iotlb(IOTLB_PAGES, start | only_leaves | mask);
    }
}
