//! The interface of an IOMMU for the tests, and the page table that it walks.

use std::cell::Cell;
use std::convert::Infallible;

use longshore_mem::Iova;
use longshore_pagetable::format::{Format, Geometry};
use longshore_pagetable::{Invalidate, PageTable, TlbGather};

use crate::machine::Machine;
use crate::mirror::Mirror;

/// The reason of a refused access, as the hardware reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Nothing is mapped there.
    Absent,
    /// The mapping does not permit the access.
    Permission,
    /// One of the two; the hardware does not distinguish them.
    AbsentOrPermission,
    /// Another reason, with the hardware's number of it.
    Other(u32),
}

/// A refused access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) reason: Reason,
    /// The address of the access, exact to at least 4 KiB.
    pub(crate) iova: u64,
    pub(crate) write: bool,
}

/// A model of an IOMMU, driven by its registers and queues.
pub(crate) trait Unit {
    /// Sets up the device to use the tables at `root`, and turns translation on.
    fn attach(&self, geometry: &Geometry, root: u64);

    /// Turns translation on or off.
    fn set_translating(&self, on: bool);

    /// Returns the accesses that were refused since the last call.
    fn take_faults(&self) -> Vec<Fault>;

    /// Returns `true` if the unit reports accesses that are refused for this reason.
    fn reports(&self, _reason: Reason) -> bool {
        true
    }

    /// Returns the number of address bits that the unit distinguishes, independent of the tables.
    fn address_bits(&self) -> u32 {
        64
    }

    /// Invalidates the entries that `gather` describes, and as few others as possible.
    fn invalidate(&self, geometry: &Geometry, gather: &TlbGather);
}

/// A page table and the unit that walks it for the device.
pub(crate) struct Rig<'a, F: Format, U: Unit> {
    pub(crate) table: PageTable<F, &'a Mirror<'a>, &'a Mirror<'a>>,
    pub(crate) unit: &'a U,
    pub(crate) machine: &'a Machine,
    invalidations: Cell<u32>,
}

impl<'a, F: Format, U: Unit> Rig<'a, F, U> {
    pub(crate) fn new(
        format: F,
        machine: &'a Machine,
        mirror: &'a Mirror<'a>,
        unit: &'a U,
    ) -> Self {
        let table = PageTable::new(format, mirror, mirror).expect("there is memory for a root");
        unit.attach(format.geometry(), table.root().raw());
        Self { table, unit, machine, invalidations: Cell::new(0) }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.table.format().geometry()
    }

    pub(crate) fn iova(&self, va: u64) -> Iova {
        self.geometry().iova(va)
    }

    /// Invalidates once, and frees the detached tables.
    pub(crate) fn finish(&self, gather: TlbGather) {
        let before = self.invalidations.get();
        let Ok(()) = self.table.finish(gather, self);
        assert_eq!(self.invalidations.get() - before, 1, "an unmap needs exactly one invalidation");
    }

    /// Asserts that the device's write to `va` arrives at `bus` without a fault.
    #[track_caller]
    pub(crate) fn write_arrives(&self, va: u64, bus: u64) {
        self.machine.write_u64(bus, 0);
        let word = self.machine.device_writes(self.iova(va).raw());
        let faults = self.unit.take_faults();
        let found = self.machine.read_u64(bus);
        assert!(
            found == word && faults.is_empty(),
            "{}: wrote {word:#x} to {va:#x}; {bus:#x} holds {found:#x}; {faults:x?}; {:?}",
            F::NAME,
            self.table.lookup(self.iova(va))
        );
    }

    /// Asserts that the device's write to `va` is refused for `reason`, and leaves `bus` unchanged.
    #[track_caller]
    pub(crate) fn write_is_refused(&self, va: u64, bus: u64, reason: Reason) {
        const BEFORE: u64 = 0x0123_4567_89ab_cdef;
        self.machine.write_u64(bus, BEFORE);
        self.machine.device_writes(self.iova(va).raw());
        let found = self.machine.read_u64(bus);
        assert_eq!(found, BEFORE, "{}: a write to {va:#x} reached {bus:#x}", F::NAME);
        self.fault_is(va, true, reason);
    }

    /// Asserts that the device's read at `va` returns the word at `bus`.
    #[track_caller]
    pub(crate) fn read_arrives(&self, va: u64, bus: u64) {
        let word = va.rotate_left(17) ^ 0x55aa_33cc_0ff0_9669;
        self.machine.write_u64(bus, word);
        let read = self.read_word(va);
        let faults = self.unit.take_faults();
        assert!(
            read == word && faults.is_empty(),
            "{}: read {read:#x} at {va:#x}; {bus:#x} holds {word:#x}; {faults:x?}; {:?}",
            F::NAME,
            self.table.lookup(self.iova(va))
        );
    }

    /// Asserts that the device's read at `va` is refused for `reason`, and does not return the word at
    /// `bus`.
    #[track_caller]
    pub(crate) fn read_is_refused(&self, va: u64, bus: u64, reason: Reason) {
        let word = 0xfedc_ba98_7654_3210;
        self.machine.write_u64(bus, word);
        let read = self.read_word(va);
        assert_ne!(read, word, "{}: a read at {va:#x} gave what is at {bus:#x}", F::NAME);
        self.fault_is(va, false, reason);
    }

    /// Asserts that reads and writes of an unmapped address are refused.
    #[track_caller]
    pub(crate) fn is_absent(&self, va: u64, bus: u64) {
        self.write_is_refused(va, bus, Reason::Absent);
        self.read_is_refused(va, bus, Reason::Absent);
    }

    /// Asserts that reads and writes of a mapped address arrive.
    #[track_caller]
    pub(crate) fn is_mapped(&self, va: u64, bus: u64) {
        self.write_arrives(va, bus);
        self.read_arrives(va, bus);
    }

    fn read_word(&self, va: u64) -> u64 {
        self.machine.device_reads(self.iova(va).raw());
        self.unit.set_translating(false);
        let word = self.machine.last_word_read();
        self.unit.set_translating(true);
        word
    }

    #[track_caller]
    fn fault_is(&self, va: u64, write: bool, reason: Reason) {
        let faults = self.unit.take_faults();
        if !self.unit.reports(reason) {
            assert!(faults.is_empty(), "{}: {faults:x?}", F::NAME);
            return;
        }
        let page = self.iova(va).raw() & !0xfff;
        let either = [reason, Reason::AbsentOrPermission];
        // QEMU splits an access to an unmapped address into parts of four bytes, each with its own
        // fault.
        let is_reported = !faults.is_empty()
            && faults.iter().all(|fault| {
                either.contains(&fault.reason)
                    && fault.iova & !0xfff == page
                    && fault.write == write
            });
        assert!(is_reported, "{}: {va:#x}, {reason:?}, write {write}: {faults:x?}", F::NAME);
    }
}

impl<F: Format, U: Unit> Invalidate for Rig<'_, F, U> {
    type Error = Infallible;

    fn flush(&self, gather: &TlbGather) -> Result<(), Infallible> {
        self.invalidations.set(self.invalidations.get() + 1);
        self.unit.invalidate(self.geometry(), gather);
        Ok(())
    }
}
