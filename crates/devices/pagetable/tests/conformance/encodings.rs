//! The bits of entries: round trips for every format, and tables of entries worked out by hand from
//! the manuals that the formats name.

use longshore_mem::BusAddr;
use longshore_pagetable::Prot;
use longshore_pagetable::format::{Entry, Format};
use longshore_pagetable::table_memory::TableAddr;

use crate::model::Random;
use crate::setup::*;

pub(crate) fn round_trip<F: Format>(format: F) {
    let geometry = format.geometry();
    let output_mask = (1u64 << geometry.output_bits()) - 1;
    for prot in Prot::all() {
        let Some(attributes) = format.attributes(prot) else { continue };
        for level in 0..geometry.levels() {
            let runs = geometry.runs(level);
            for run_log2 in (0..32).filter(|run| runs >> run & 1 != 0) {
                let page_log2 = geometry.shift(level) + run_log2;
                for pattern in [0, u64::MAX, 0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa] {
                    let bus = pattern & output_mask & (u64::MAX << page_log2);
                    let first = format.leaf(level, run_log2, BusAddr::new(bus), attributes);
                    assert_ne!(first & format.present_mask(), 0);
                    // Every item of a contiguous entry decodes to the same leaf.
                    let items = if run_log2 == 0 { 1 } else { 1u64 << run_log2 };
                    for item in 0..items {
                        let step = if F::RUNS_REPEAT { 0 } else { format.step(level) };
                        let entry = first + item * step;
                        let Entry::Leaf(leaf) = format.decode(level, entry) else {
                            panic!("{}: {entry:#x} of level {level} is no leaf", F::NAME)
                        };
                        assert_eq!(leaf.run_log2, run_log2, "{} {entry:#x}", F::NAME);
                        assert_eq!(leaf.bus.raw() >> page_log2 << page_log2, bus);
                        let got = format.prot(entry);
                        assert!(got.contains(prot), "{} {prot} {got}", F::NAME);
                        assert_eq!(got.without(Prot::COHERENT), prot.without(Prot::COHERENT));
                        assert_eq!(format.attributes_of(entry), attributes);
                    }
                }
            }
            if level > 0 {
                for pattern in [0, u64::MAX, 0x5555_5555_5555_5555] {
                    let address = pattern & output_mask & (u64::MAX << geometry.granule_log2());
                    let table = TableAddr::new(address);
                    let entry = format.table(level, table);
                    assert_eq!(format.decode(level, entry), Entry::Table(table));
                    assert_ne!(entry & format.present_mask(), 0);
                }
            }
            assert_eq!(format.decode(level, 0), Entry::Absent);
        }
    }
}

/// Any entry can be decoded, and a leaf has a size that the format has.
pub(crate) fn any_entry<F: Format>(format: F) {
    let geometry = format.geometry();
    let mut random = Random(0x0123_4567_89ab_cdef);
    for _ in 0..20_000 {
        let random_bits = random.below(u64::MAX);
        // Some with a sequence of bits all set or all clear, as in addresses that encode a size.
        let low = u64::MAX >> random.below(64);
        for entry in [random_bits, random_bits | low, random_bits & !low, low, !low] {
            for level in 0..geometry.levels() {
                let decoded = format.decode(level, entry);
                if decoded != Entry::Absent {
                    assert_ne!(entry & format.present_mask(), 0);
                }
                match decoded {
                    Entry::Leaf(leaf) => {
                        assert_ne!(geometry.runs(level) >> leaf.run_log2 & 1, 0);
                        assert!(leaf.bus.raw() >> 56 == 0);
                        assert_eq!(leaf.bus.raw() & ((1 << geometry.shift(level)) - 1), 0);
                        let _ = (format.prot(entry), format.attributes_of(entry));
                    }
                    Entry::Table(table) => {
                        assert!(level > 0);
                        assert_eq!(table.raw() & 0xfff, 0);
                    }
                    Entry::Absent | Entry::Reserved => {}
                }
            }
        }
    }
}

/// Returns the entry for a format, level, run, target and permissions, to compare with the manuals.
fn leaf<F: Format>(format: &F, level: u32, run_log2: u32, target: u64, prot: Prot) -> u64 {
    format.leaf(level, run_log2, bus(target), format.attributes(prot).unwrap())
}

#[test]
fn arm_stage_1() {
    let format = stage1(12, 48, 48);
    let (rw, c, x) = (Prot::READ_WRITE, Prot::COHERENT, Prot::EXECUTE);
    // Valid page, AttrIndx 1, AP[1], SH inner, AF, nG, PXN, UXN.
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, rw | c), 0x0060_0000_1234_5f47);
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, rw | c | x), 0x0000_0000_1234_5f47);
    // Read-only is AP[2]; privileged is no AP[1]; non-cacheable is index 0, outer shareable.
    assert_eq!(leaf(&format, 0, 0, 0x1000, Prot::READ | c), 0x0060_0000_0000_1fc7);
    assert_eq!(leaf(&format, 0, 0, 0x1000, rw | Prot::PRIVILEGED), 0x0060_0000_0000_1e03);
    assert_eq!(leaf(&format, 0, 0, 0x1000, rw | Prot::DEVICE), 0x0060_0000_0000_1e4b);
    // Blocks have bit 1 clear; runs have bit 52.
    assert_eq!(leaf(&format, 1, 0, 0x4020_0000, rw | c), 0x0060_0000_4020_0f45);
    assert_eq!(leaf(&format, 1, 4, 0x4200_0000, rw | c), 0x0070_0000_4200_0f45);
    assert_eq!(format.table(1, TableAddr::new(0x8_0000_1000)), 0x0000_0008_0000_1003);
    // Wide addresses: with 64 KiB granules bits 51:48 are in 15:12, otherwise 51:50 in 9:8, without
    // SH.
    let format = stage1(16, 52, 52);
    assert_eq!(leaf(&format, 0, 0, 0x000a_0000_1234_0000, rw | c), 0x0060_0000_1234_af47);
    let format = stage1(12, 52, 52);
    assert_eq!(leaf(&format, 0, 0, 0x000e_0000_0000_1000, rw | c), 0x0062_0000_0000_1f47);
    assert_eq!(leaf(&format, 0, 0, 0x0008_0000_0000_1000, rw | c), 0x0060_0000_0000_1e47);
    // Writable-clean is DBM with AP[2]; dirty is DBM without.
    let format = stage1_tracking();
    let clean = leaf(&format, 0, 0, 0x1000, rw | c);
    assert_eq!(clean, 0x0068_0000_0000_1fc7);
    assert_eq!(format.with_dirty(clean, true), 0x0068_0000_0000_1f47);
}

#[test]
fn arm_stage_2() {
    let format = stage2(12, 40, 40);
    let (rw, c, x) = (Prot::READ_WRITE, Prot::COHERENT, Prot::EXECUTE);
    // Valid page, MemAttr 0b1111, S2AP 0b11, SH inner, AF, XN 0b10.
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, rw | c), 0x0040_0000_1234_57ff);
    assert_eq!(leaf(&format, 0, 0, 0x1000, rw | c | x), 0x0000_0000_0000_17ff);
    assert_eq!(leaf(&format, 0, 0, 0x1000, Prot::READ | c), 0x0040_0000_0000_177f);
    assert_eq!(leaf(&format, 0, 0, 0x1000, Prot::WRITE | c), 0x0040_0000_0000_17bf);
    assert_eq!(leaf(&format, 1, 0, 0x20_0000, rw), 0x0040_0000_0020_06d5);
    assert_eq!(leaf(&format, 0, 0, 0x1000, rw | Prot::DEVICE), 0x0040_0000_0000_16c7);
    // 40 bits: three levels with two root tables. 48 bits with 16 KiB: two root tables, not a
    // fourth level.
    assert_eq!((format.geometry().levels(), format.concatenated_log2()), (3, 1));
    let format = stage2(14, 48, 48);
    assert_eq!((format.geometry().levels(), format.concatenated_log2()), (3, 1));
    let format = stage2(12, 48, 48);
    assert_eq!((format.geometry().levels(), format.concatenated_log2()), (4, 0));
    let format = stage2_tracking();
    let clean = leaf(&format, 0, 0, 0x1000, rw | c);
    assert_eq!(clean, 0x0048_0000_0000_177f);
    assert_eq!(format.with_dirty(clean, true), 0x0048_0000_0000_17ff);
}

#[test]
fn vtd() {
    let format = vtd_second(48);
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, Prot::READ_WRITE), 0x1234_5003);
    assert_eq!(leaf(&format, 0, 0, 0x1000, Prot::WRITE | Prot::COHERENT), 0x1802);
    assert_eq!(leaf(&format, 1, 0, 0x20_0000, Prot::READ), 0x20_0081);
    assert_eq!(leaf(&format, 2, 0, 0x4000_0000, Prot::READ_WRITE), 0x4000_0083);
    assert_eq!(format.table(3, TableAddr::new(0x5000)), 0x5003);
    assert_eq!(format.with_dirty(0x1003, true), 0x1203);
    let format = vtd_first(false);
    // P, R/W, U/S, A, D.
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, Prot::READ_WRITE), 0x1234_5067);
    assert_eq!(leaf(&format, 1, 0, 0x20_0000, Prot::READ), 0x20_00a5);
    assert_eq!(format.table(3, TableAddr::new(0x5000)), 0x5027);
}

#[test]
fn x86() {
    let format = x86_64(false);
    let (rw, x) = (Prot::READ_WRITE, Prot::EXECUTE);
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, rw), 0x8000_0000_1234_5067);
    assert_eq!(leaf(&format, 0, 0, 0x1000, rw | x | Prot::PRIVILEGED), 0x1063);
    assert_eq!(leaf(&format, 1, 0, 0x20_0000, Prot::READ | x), 0x20_00a5);
    assert_eq!(leaf(&format, 0, 0, 0x1000, rw | x | Prot::DEVICE), 0x107f);
    assert_eq!(leaf(&x86_64_tracking(), 0, 0, 0x1000, rw | x), 0x1027);
}

#[test]
fn amd() {
    let format = amd_v1(4);
    let rw = Prot::READ_WRITE;
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, rw), 0x6000_0000_1234_5001);
    assert_eq!(leaf(&format, 0, 0, 0x1000, Prot::READ | Prot::COHERENT), 0x3000_0000_0000_1001);
    // Next level 7; 8 KiB: bit 12 clear. 16 KiB: bit 12 set, 13 clear. 32 KiB: 12, 13 set.
    assert_eq!(leaf(&format, 0, 1, 0x4000, rw), 0x6000_0000_0000_4e01);
    assert_eq!(leaf(&format, 0, 2, 0x4000, rw), 0x6000_0000_0000_5e01);
    assert_eq!(leaf(&format, 0, 3, 0x8000, rw), 0x6000_0000_0000_be01);
    // 2 MiB is a level's own size; 4 MiB is not.
    assert_eq!(leaf(&format, 1, 0, 0x20_0000, rw), 0x6000_0000_0020_0001);
    assert_eq!(leaf(&format, 1, 1, 0x40_0000, rw), 0x6000_0000_005f_fe01);
    // The manual's level 4 leads to a table of its level 3.
    assert_eq!(format.table(3, TableAddr::new(0x5000)), 0x6000_0000_0000_5601);
    assert_eq!(amd_v1(6).geometry().input_bits(), 64);
    // Some hardware cannot translate 512 GiB pages, so they are used only on demand.
    assert_eq!(amd_v1(6).geometry().page_sizes(), (1 << 39) - (1 << 12));
    assert_eq!(amd_v1_large(6).geometry().page_sizes(), (1 << 53) - (1 << 12));
    assert_eq!(leaf(&amd_v1_large(4), 3, 0, 1 << 39, rw), 0x6000_0080_0000_0001);
}

#[test]
fn riscv_() {
    let format = riscv(39);
    let rw = Prot::READ_WRITE;
    // The page number begins at bit 10; V, R, W, U, A, D.
    assert_eq!(leaf(&format, 0, 0, 0x1234_5000, rw), 0x048d_14d7);
    assert_eq!(leaf(&format, 0, 0, 0x1000, Prot::READ | Prot::EXECUTE | Prot::PRIVILEGED), 0x44b);
    assert_eq!(leaf(&format, 1, 0, 0x20_0000, Prot::READ), 0x8_0053);
    // 64 KiB: N, and 0b1000 in the lowest bits of the page number.
    assert_eq!(leaf(&format, 0, 4, 0x1_0000, rw), 0x8000_0000_0000_60d7);
    assert_eq!(leaf(&format, 0, 0, 0x1000, rw | Prot::DEVICE), 0x4000_0000_0000_04d7);
    assert_eq!(format.table(2, TableAddr::new(0x5000)), 0x1401);
    // Reserved: writable but not readable; an entry for a table at the lowest level; misaligned.
    assert_eq!(format.decode(0, 0x5), Entry::Reserved);
    assert_eq!(format.decode(0, 0x1), Entry::Reserved);
    assert_eq!(format.decode(1, 0x403), Entry::Reserved);
}
