//! Restrictions in entries that lead to tables, for everything below. This crate never writes such
//! entries, but a walker may find them in tables of other programs.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use longshore_mem::Iova;
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{Format, Narrowing};
use longshore_pagetable::table_memory::{HostPages, TableMemory};
use longshore_pagetable::{PageTable, Prot};

use crate::setup::*;

/// Returns `prot` without the memory type, which some formats always have.
fn access(prot: Prot) -> Prot {
    let kind = Prot::COHERENT | Prot::DEVICE;
    Narrowing { denied: kind, demanded: Prot::NONE }.apply(prot)
}

/// Maps a page with `prot`, changes the bits `changed` of the root's entry that leads to it, and
/// looks up this page and one that another entry of the root leads to.
fn check<F: Format>(format: F, prot: Prot, changed: u64, expected: Prot) {
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    let other = 1 << format.geometry().shift(format.geometry().root_level());
    for iova in [0, other] {
        table.map(Iova::new(iova), bus(0x1000), 0x1000, prot).unwrap();
    }
    let found = |iova: u64| access(table.walker().lookup(Iova::new(iova)).unwrap().unwrap().prot);
    assert_eq!((found(0), found(other)), (prot, prot), "{}", F::NAME);
    table.memory().entries(table.root())[0].fetch_xor(changed, Ordering::Relaxed);

    assert_eq!((found(0), found(other)), (expected, prot), "{} {changed:#x}", F::NAME);
    let mut walked = Vec::new();
    let _ = table.walker().walk_all(|mapping| {
        walked.push(access(mapping.prot));
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(walked, [expected, prot], "{} {changed:#x}", F::NAME);
}

#[test]
fn restrictions_of_table_entries_apply_below() {
    let rw = Prot::READ_WRITE;
    // R/W, U/S and XD of a PML4E: Intel SDM volume 3, 4.6 "Access rights".
    let rwx = rw | Prot::EXECUTE;
    check(x86_64(false), rwx, 1 << 1, Prot::READ | Prot::EXECUTE);
    check(x86_64(false), rwx, 1 << 2, rwx | Prot::PRIVILEGED);
    check(x86_64(false), rwx, 1 << 63, rw);
    check(vtd_first(false), rw, 1 << 1, Prot::READ);
    // R and W of an SS-PML4E.
    check(vtd_second(48), rw, 1 << 1, Prot::READ);
    check(vtd_second(48), rw, 1 << 0, Prot::WRITE);
    // IR and IW.
    check(amd_v1(4), rw, 1 << 62, Prot::READ);
    check(amd_v1(4), rw, 1 << 61, Prot::WRITE);
    // APTable[1], APTable[0], UXNTable and PXNTable.
    check(stage1(12, 48, 48), rwx, 1 << 62, Prot::READ | Prot::EXECUTE);
    check(stage1(12, 48, 48), rwx, 1 << 61, rwx | Prot::PRIVILEGED);
    check(stage1(12, 48, 48), rwx, 1 << 60, rw);
    check(stage1(12, 48, 48), rwx, 1 << 59, rw);
}

/// DBM has no meaning if the hardware does not manage dirty state.
#[test]
fn dbm_permits_no_write_without_tracking() {
    fn check<F: Format>(tracking: F, plain: F) {
        let clean =
            tracking.leaf(0, 0, bus(0x1000), tracking.attributes(Prot::READ_WRITE).unwrap());
        assert!(tracking.prot(clean).contains(Prot::WRITE), "{}", F::NAME);
        assert!(!plain.prot(clean).contains(Prot::WRITE), "{}", F::NAME);
    }
    check(stage1_tracking(), stage1(12, 48, 48));
    check(stage2_tracking(), stage2(12, 48, 48));
}
