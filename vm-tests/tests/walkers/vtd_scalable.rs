//! Intel's VT-d in scalable mode, with first-stage tables for requests without a PASID.
//!
//! Source: as for [`vtd`](crate::vtd); sections 9.2 and 9.4 to 9.6 for root, context, PASID
//! directory and PASID table entries, 6.5.2 for the invalidation queue.

use std::cell::Cell;
use std::rc::Rc;

use longshore_pagetable::TlbGather;
use longshore_pagetable::format::Geometry;

use crate::machine::{DEVICE, Machine, STRUCTURES};
use crate::unit::{Fault, Unit};
use crate::vtd::{BASE, Vtd};

const RTADDR: u64 = 0x20;
const QUEUE_HEAD: u64 = 0x80;
const QUEUE_TAIL: u64 = 0x88;
const QUEUE_ADDRESS: u64 = 0x90;

const SCALABLE: u64 = 1 << 10;
const GCMD_QUEUE: u32 = 1 << 26;
/// DW: descriptors of 256 bits, which scalable mode requires.
const WIDE_DESCRIPTORS: u64 = 1 << 11;

const ROOT_TABLE: u64 = STRUCTURES;
const CONTEXT_TABLE: u64 = STRUCTURES + 0x1000;
const PASID_DIRECTORY: u64 = STRUCTURES + 0x2000;
const PASID_TABLE: u64 = STRUCTURES + 0x3000;
const QUEUE: u64 = STRUCTURES + 0x4000;
const COMPLETION: u64 = STRUCTURES + 0x5000;
const QUEUE_BYTES: u64 = 0x1000;

const DOMAIN: u64 = 5;

const INVALIDATE_CONTEXTS: u64 = 1 | 1 << 4;
const WAIT: u64 = 5 | 1 << 5;
const INVALIDATE_PASID_IOTLB: u64 = 6 | DOMAIN << 16;
const ALL_OF_PASID: u64 = 2 << 4;
const PAGES_OF_PASID: u64 = 3 << 4;
const INVALIDATE_PASIDS: u64 = 7 | 3 << 4;

/// A VT-d unit in scalable mode that serves one device.
pub(crate) struct VtdScalable {
    machine: Rc<Machine>,
    vtd: Vtd,
    tail: Cell<u64>,
    waits: Cell<u64>,
}

impl VtdScalable {
    pub(crate) fn new(machine: Rc<Machine>) -> Self {
        let vtd = Vtd::new(Rc::clone(&machine));
        Self { machine, vtd, tail: Cell::new(0), waits: Cell::new(0) }
    }

    fn command(&self, words: [u64; 2]) {
        self.machine.write_words(QUEUE + self.tail.get(), &[words[0], words[1], 0, 0]);
        self.tail.set((self.tail.get() + 32) % QUEUE_BYTES);
        self.machine.write_u64(BASE + QUEUE_TAIL, self.tail.get());
    }

    /// Waits until all commands have completed.
    fn complete(&self) {
        self.waits.set(self.waits.get() + 1);
        self.command([WAIT | self.waits.get() << 32, COMPLETION]);
        let (head, done) =
            (self.machine.read_u64(BASE + QUEUE_HEAD), self.machine.read_u32(COMPLETION));
        assert_eq!(
            (head, u64::from(done)),
            (self.tail.get(), self.waits.get()),
            "commands have not completed"
        );
    }
}

impl Unit for VtdScalable {
    fn attach(&self, geometry: &Geometry, root: u64) {
        self.machine.fill(ROOT_TABLE, 0x6000, 0);
        self.machine.write_words(ROOT_TABLE, &[CONTEXT_TABLE | 1, 0]);
        let context = CONTEXT_TABLE + u64::from(DEVICE) * 32;
        self.machine.write_words(context, &[PASID_DIRECTORY | 1, 0, 0, 0]);
        self.machine.write_words(PASID_DIRECTORY, &[PASID_TABLE | 1]);
        // P, AW, PGTT of 1 for the first stage; domain; FSPM and the root.
        let five_levels = u64::from(geometry.levels() == 5);
        let entry = [1 | 2 << 2 | 1 << 6, DOMAIN, root | five_levels << 2];
        self.machine.write_words(PASID_TABLE, &entry);
        self.machine.write_u64(BASE + QUEUE_ADDRESS, QUEUE | WIDE_DESCRIPTORS);
        self.machine.write_u64(BASE + QUEUE_TAIL, 0);
        self.vtd.global_command(GCMD_QUEUE, true);
        self.machine.write_u64(BASE + RTADDR, ROOT_TABLE | SCALABLE);
        self.vtd.set_root();
        self.command([INVALIDATE_CONTEXTS, 0]);
        self.command([INVALIDATE_PASIDS, 0]);
        self.command([INVALIDATE_PASID_IOTLB | ALL_OF_PASID, 0]);
        self.complete();
        self.set_translating(true);
    }

    fn set_translating(&self, on: bool) {
        self.vtd.set_translating(on);
    }

    fn take_faults(&self) -> Vec<Fault> {
        self.vtd.take_faults()
    }

    fn invalidate(&self, _geometry: &Geometry, gather: &TlbGather) {
        let Some((first, last)) = gather.touched() else { return };
        let (start, mask) = self.vtd.aligned_pages(first.raw(), last.raw());
        if mask > self.vtd.mask_max() {
            self.command([INVALIDATE_PASID_IOTLB | ALL_OF_PASID, 0]);
        } else {
            let only_leaves = u64::from(!gather.has_tables()) << 6;
            self.command([INVALIDATE_PASID_IOTLB | PAGES_OF_PASID, start | only_leaves | mask]);
        }
        self.complete();
    }
}
