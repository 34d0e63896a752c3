//! Checks the formats against other sources on the same hardware.
//!
//! Each table has numbers, page sizes and bits from at least two places: the manual that the
//! format's module names, and the sources named here, whose numbers are facts and whose text is not
//! used. A change of a format must not change these without such a source.

use longshore_mem::BusAddr;
use longshore_pagetable::Prot;
use longshore_pagetable::format::*;
use longshore_pagetable::table_memory::TableAddr;

use crate::setup::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn sizes(all: &[u64]) -> u64 {
    all.iter().sum()
}

fn bit_of<F: Format>(format: &F, level: u32, entry: u64, name: &str) -> (u32, u32) {
    let fields = format.fields(level, entry).iter().flat_map(|group| group.iter());
    let found = fields.into_iter().find(|field| field.name == name);
    let field = found.unwrap_or_else(|| panic!("{} has no {name}", F::NAME));
    (field.high, field.low)
}

/// Block sizes: DDI 0487, the pseudocode function `AArch64.BlockDescSupported`; 4 KiB granules have
/// blocks at level 0, and 16 KiB at level 1, with DS only; 64 KiB at level 1 with 52-bit addresses
/// only; QEMU `target/arm/ptw.c`, `lpae_block_desc_valid`. Runs: DDI 0487, D8.6.1; the series for Linux
/// of `drivers/iommu/generic_pt/fmt/armv8.h`, `armv8pt_contig_count_lg2` and `armv8pt_can_have_leaf`.
#[test]
fn arm_page_sizes() {
    let k4 = [4 * KIB, 64 * KIB, 2 * MIB, 32 * MIB, GIB, 16 * GIB];
    let k16 = [16 * KIB, 2 * MIB, 32 * MIB, GIB];
    let k64 = [64 * KIB, 2 * MIB, 512 * MIB, 16 * GIB];
    for (granule, bits, expected) in [
        (12, 48, sizes(&k4)),
        (12, 52, sizes(&k4) + 512 * GIB),
        (14, 48, sizes(&k16)),
        (14, 52, sizes(&k16) + 64 * GIB),
        (16, 48, sizes(&k64)),
        (16, 52, sizes(&k64) + 4 * TIB),
    ] {
        let found = stage1(granule, bits, bits).geometry().page_sizes();
        assert_eq!(found, expected, "stage 1, 2^{granule}, {bits} bits");
        let found = stage2(granule, bits, bits).geometry().page_sizes();
        assert_eq!(found, expected, "stage 2, 2^{granule}, {bits} bits");
    }
}

/// The levels of a walk and the concatenated tables at its root. Stage 2: DDI 0487, D8.2, the tables
/// of initial lookup levels; QEMU `target/arm/ptw.c`, `check_s2_mmu_setup`: at most 16 concatenated
/// tables, and with 4 KiB no walk that begins at level 3 without FEAT_TTST; QEMU
/// `hw/arm/smmu-internal.h`, `get_start_level`; Linux `drivers/iommu/io-pgtable-arm.c`
/// (`arm_lpae_concat_mandatory`: 4 KiB with 40 and 42 bits, 16 KiB with 40 and 48 bits).
#[test]
fn arm_levels_and_concatenated_roots() {
    for (granule, bits, levels, concatenated) in [
        (12, 25, 2, 0),
        (12, 30, 2, 0),
        (12, 31, 3, 0),
        (12, 34, 3, 0),
        (12, 35, 3, 0),
        (12, 39, 3, 0),
        (12, 40, 3, 1),
        (12, 42, 3, 3),
        (12, 43, 3, 4),
        (12, 44, 4, 0),
        (12, 48, 4, 0),
        (12, 52, 4, 4),
        (14, 25, 1, 0),
        (14, 26, 2, 0),
        (14, 29, 2, 0),
        (14, 36, 2, 0),
        (14, 37, 2, 1),
        (14, 40, 2, 4),
        (14, 41, 3, 0),
        (14, 47, 3, 0),
        (14, 48, 3, 1),
        (14, 51, 3, 4),
        (14, 52, 4, 0),
        (16, 29, 1, 0),
        (16, 30, 2, 0),
        (16, 33, 2, 0),
        (16, 42, 2, 0),
        (16, 43, 2, 1),
        (16, 46, 2, 4),
        (16, 47, 3, 0),
        (16, 52, 3, 0),
    ] {
        let format = stage2(granule, bits, if bits > 48 { 52 } else { 48 });
        let found = (format.geometry().levels(), format.concatenated_log2());
        assert_eq!(found, (levels, concatenated), "2^{granule}, {bits} bits");
    }
    // Wide addresses have larger blocks, which a concatenated root would not have.
    for (granule, bits, levels) in [(12, 40, 4), (12, 43, 4), (14, 37, 3), (14, 40, 3), (16, 46, 3)]
    {
        let format = stage2(granule, bits, 52);
        let found = (format.geometry().levels(), format.concatenated_log2());
        assert_eq!(found, (levels, 0), "2^{granule}, {bits} bits to 52");
    }
    for (granule, bits, levels) in
        [(12, 39, 3), (12, 40, 4), (12, 48, 4), (12, 49, 5), (14, 47, 3), (14, 48, 4), (16, 48, 3)]
    {
        let format = stage1(granule, bits, if bits > 48 { 52 } else { 48 });
        assert_eq!(format.geometry().levels(), levels, "2^{granule}, {bits} bits");
    }
}

/// Linux `drivers/iommu/io-pgtable-arm.c` (`ARM_LPAE_PTE_*`, `paddr_to_iopte`), the same in
/// `drivers/iommu/generic_pt/fmt/armv8.h` (`ARMV8PT_FMT_*`, dirty as `armv8pt_check_is_dirty_s1` and
/// `_s2` have it). Bits 53 and 54 are as in DDI 0487: PXN, then UXN.
#[test]
fn arm_bits() {
    let s1 = stage1(12, 48, 48);
    for (name, bits) in [
        ("valid", (0, 0)),
        ("type", (1, 1)),
        ("AttrIndx", (4, 2)),
        ("NS", (5, 5)),
        ("AP[2:1]", (7, 6)),
        ("SH", (9, 8)),
        ("AF", (10, 10)),
        ("nG", (11, 11)),
        ("DBM", (51, 51)),
        ("Contiguous", (52, 52)),
        ("PXN", (53, 53)),
        ("UXN", (54, 54)),
    ] {
        assert_eq!(bit_of(&s1, 0, 3, name), bits, "{name}");
    }
    assert_eq!(bit_of(&s1, 1, 3, "NSTable"), (63, 63));
    assert_eq!(bit_of(&s1, 1, 3, "APTable"), (62, 61));
    let s2 = stage2(12, 48, 48);
    for (name, bits) in [("MemAttr", (5, 2)), ("S2AP", (7, 6)), ("XN[1:0]", (54, 53))] {
        assert_eq!(bit_of(&s2, 0, 3, name), bits, "{name}");
    }
    // 52-bit addresses with 64 KiB: 51:48 in 15:12. With 4 and 16 KiB: 51:50 in 9:8, no SH.
    assert_eq!(bit_of(&stage1(16, 48, 52), 0, 3, "OA[51:48]"), (15, 12));
    assert_eq!(bit_of(&stage1(14, 48, 52), 0, 3, "OA[51:50]"), (9, 8));
    assert_eq!(bit_of(&stage2(12, 52, 48), 0, 3, "OA[49:12]"), (49, 12));
    let dirty = stage1_tracking().dirty_test().unwrap();
    assert!(dirty.matches(1 << 51 | 1) && !dirty.matches(1 << 51 | 1 << 7 | 1));
    let dirty = stage2_tracking().dirty_test().unwrap();
    assert!(dirty.matches(1 << 51 | 1 << 7 | 1) && !dirty.matches(1 << 51 | 1));
    // The memory attributes: write-back, non-cacheable, device-nGnRE of both stages.
    assert_eq!(ArmStage1::MAIR, 0x04_ff_44);
    let config = ArmStage2Config::new(longshore_mem::Granule::SIZE_4K);
    let format = ArmStage2::new(config).unwrap();
    let attribute = |prot| format.attributes(prot).unwrap() >> 2 & 0xf;
    assert_eq!(attribute(Prot::READ | Prot::COHERENT), 0xf);
    assert_eq!(attribute(Prot::READ), 0x5);
    assert_eq!(attribute(Prot::READ | Prot::DEVICE), 0x1);
}

/// Linux `drivers/iommu/generic_pt/fmt/vtdss.h` (`VTDSS_FMT_*`, levels, `vtdss_pt_can_have_leaf`,
/// where widths above 30, 39 and 48 bits take 3, 4 and 5 levels); QEMU
/// `hw/i386/intel_iommu_internal.h`: bit 7 is reserved in level 4 and bit 11 wherever a table
/// follows.
#[test]
fn vtd_second_stage() {
    let format = vtd_second(57);
    for (name, bits) in [
        ("R", (0, 0)),
        ("W", (1, 1)),
        ("X", (2, 2)),
        ("A", (8, 8)),
        ("D", (9, 9)),
        ("SNP", (11, 11)),
        ("ADDR", (51, 12)),
        ("TM", (62, 62)),
    ] {
        assert_eq!(bit_of(&format, 0, 3, name), bits, "{name}");
    }
    assert_eq!(bit_of(&format, 1, 3, "PS"), (7, 7));
    assert_eq!(format.geometry().page_sizes(), sizes(&[4 * KIB, 2 * MIB, GIB]));
    for (bits, levels) in [(31, 3), (39, 3), (40, 4), (48, 4), (49, 5), (57, 5)] {
        assert_eq!(vtd_second(bits).geometry().levels(), levels, "{bits} bits");
    }
    assert_eq!(format.decode(3, 0x83), Entry::Reserved);
    assert_eq!(format.decode(4, 0x83), Entry::Reserved);
    let table = format.table(3, TableAddr::new(0x1000));
    assert_eq!(table & (1 << 11 | 1 << 7), 0);
    // Bit 7 has no meaning in an entry of a 4 KiB page.
    assert!(matches!(format.decode(0, 0x1083), Entry::Leaf(_)));
}

/// Linux `drivers/iommu/generic_pt/fmt/x86_64.h` (`X86_64_FMT_*`),
/// `arch/x86/include/asm/pgtable_types.h` (bits of PAT, global and protection keys). Both are for
/// CPUs, AMD version 2 and VT-d first stage.
#[test]
fn x86_64_and_vtd_first_stage() {
    let format = x86_64(true);
    for (name, bits) in [
        ("P", (0, 0)),
        ("R/W", (1, 1)),
        ("U/S", (2, 2)),
        ("PWT", (3, 3)),
        ("PCD", (4, 4)),
        ("A", (5, 5)),
        ("D", (6, 6)),
        ("PAT", (7, 7)),
        ("G", (8, 8)),
        ("address", (51, 12)),
        ("protection key", (62, 59)),
        ("XD", (63, 63)),
    ] {
        assert_eq!(bit_of(&format, 0, 1, name), bits, "{name}");
    }
    assert_eq!(bit_of(&format, 1, 0x81, "PS"), (7, 7));
    assert_eq!(bit_of(&format, 1, 0x81, "PAT"), (12, 12));
    // With the PAT bit set, a block still maps the same address.
    let leads = |entry| match format.decode(1, entry) {
        Entry::Leaf(leaf) => leaf.bus,
        other => panic!("{other:?}"),
    };
    assert_eq!(leads(0x4020_0083), BusAddr::new(0x4020_0000));
    assert_eq!(leads(0x4020_1083), BusAddr::new(0x4020_0000));
    assert_eq!(format.geometry().page_sizes(), sizes(&[4 * KIB, 2 * MIB, GIB]));
    assert_eq!(format.decode(3, 0x81), Entry::Reserved);
    let table = format.table(1, TableAddr::new(0x1000));
    assert_eq!(table, 0x1027);
    // For VT-d devices, execute disable is always clear.
    let format = vtd_first(false);
    assert_eq!(format.attributes(Prot::READ_WRITE).unwrap(), 0x67);
    assert_eq!(format.table(1, TableAddr::new(0x1000)), 0x1027);
}

/// Linux `drivers/iommu/generic_pt/fmt/amdv1.h` (`AMDV1PT_FMT_*`; `amdv1pt_possible_sizes`: every
/// power of two except 512 GiB, because of a hardware erratum, as `AMD_IOMMU_PGSIZES` of the driver
/// before it; the topmost of six levels has 7 bits and no pages).
#[test]
fn amd() {
    let format = amd_v1(6);
    for (name, bits) in [
        ("PR", (0, 0)),
        ("A", (5, 5)),
        ("D", (6, 6)),
        ("Next Level", (11, 9)),
        ("address", (51, 12)),
        ("U", (59, 59)),
        ("FC", (60, 60)),
        ("IR", (61, 61)),
        ("IW", (62, 62)),
    ] {
        assert_eq!(bit_of(&format, 0, 1, name), bits, "{name}");
    }
    assert_eq!(format.geometry().slots_log2(5), 7);
    assert_eq!(format.geometry().page_sizes() & (512 * GIB), 0);
    // The lowest clear bit of the address encodes the size, 4 MiB by bit 21.
    for size_log2 in (13..39).filter(|log2| ![21, 30].contains(log2)) {
        let (level, shift) = ((size_log2 - 12) / 9, (size_log2 - 12) / 9 * 9 + 12);
        let entry = format.leaf(level, size_log2 - shift, BusAddr::new(0), 1);
        assert_eq!(entry, 1 | 7 << 9 | ((1 << (size_log2 - 1)) - 1) >> 12 << 12, "2^{size_log2}");
    }
    for level in 1..6 {
        let table = format.table(level, TableAddr::new(0x1000));
        assert_eq!(table, 0x6000_0000_0000_1001 | u64::from(level) << 9);
    }
}

/// Linux `drivers/iommu/generic_pt/fmt/riscv.h` (`RISCVPT_*`; Svnapot: bit 63 and bit 13, with bits
/// 12:10 clear). QEMU `target/riscv/cpu_helper.c`: the reserved bits that it refuses, with and
/// without the extensions.
#[test]
fn risc_v() {
    let format = riscv(57);
    for (name, bits) in [
        ("V", (0, 0)),
        ("R", (1, 1)),
        ("W", (2, 2)),
        ("X", (3, 3)),
        ("U", (4, 4)),
        ("G", (5, 5)),
        ("A", (6, 6)),
        ("D", (7, 7)),
        ("RSW", (9, 8)),
        ("PPN", (53, 10)),
        ("PBMT", (62, 61)),
        ("N", (63, 63)),
    ] {
        assert_eq!(bit_of(&format, 0, 1, name), bits, "{name}");
    }
    let all = [4 * KIB, 64 * KIB, 2 * MIB, GIB, 512 * GIB, 256 * TIB];
    assert_eq!(format.geometry().page_sizes(), sizes(&all));
    let read = format.attributes(Prot::READ).unwrap();
    assert_eq!(format.leaf(0, 4, BusAddr::new(0x1_0000), read), 0x8000_0000_0000_6053);
    // I/O is 2; non-cacheable, 1, is never written.
    let io = format.attributes(Prot::READ | Prot::DEVICE).unwrap();
    assert_eq!(io >> 61 & 3, 2);

    let is_leaf = |format: &RiscV, entry| matches!(format.decode(0, entry), Entry::Leaf(_));
    let page = 0x4c3;
    assert!(is_leaf(&format, page | 1 << 61));
    let config = RiscVConfig::new(RiscVMode::Sv57).with_svnapot(false).with_svpbmt(false);
    let plain = RiscV::new(config).unwrap();
    assert!(is_leaf(&plain, page));
    assert!(is_leaf(&format, 1 << 63 | 1 << 13 | 0xc3));
    // Reserved without the extension.
    for entry in [1 << 61 | page, 2 << 61 | page, 1 << 63 | 1 << 13 | 0xc3] {
        assert_eq!(plain.decode(0, entry), Entry::Reserved, "{entry:#x}");
    }
    // Always reserved: other sizes, runs above the pages, both memory types at once, bits 60 to 54.
    for entry in [1 << 63 | 1 << 12 | 0xc3, 1 << 63 | 3 << 12 | 0xc3, 3 << 61 | page] {
        assert_eq!(format.decode(0, entry), Entry::Reserved, "{entry:#x}");
    }
    assert_eq!(format.decode(1, 1 << 63 | 1 << 13 | 0xc3), Entry::Reserved);
    for bit in 54..=60 {
        assert_eq!(format.decode(0, 1 << bit | page), Entry::Reserved, "bit {bit}");
        assert_eq!(format.decode(1, 1 << bit | 0x401), Entry::Reserved, "bit {bit}");
    }
    // An entry that leads to a table has no U, A, D, PBMT or N.
    assert_eq!(format.decode(1, 0x401), Entry::Table(TableAddr::new(0x1000)));
    for bit in [4, 6, 7, 61, 62, 63] {
        assert_eq!(format.decode(1, 1 << bit | 0x401), Entry::Reserved, "bit {bit}");
    }
}

/// The fields of an entry do not overlap, and every bit that this crate writes has a name.
#[test]
fn every_bit_written_has_one_name() {
    fn check<F: Format>(format: F) {
        let geometry = format.geometry();
        let named = |level: u32, entry: u64| {
            let mut named = 0;
            for field in format.fields(level, entry).iter().flat_map(|group| group.iter()) {
                assert_eq!(named & field.mask(), 0, "{} {}", F::NAME, field.name);
                assert!(field.meanings.len() <= 2 << (field.high - field.low), "{}", field.name);
                named |= field.mask();
            }
            named
        };
        for level in 0..geometry.levels() {
            for entry in [0, u64::MAX, 0x81, 0x03] {
                named(level, entry);
            }
            for prot in Prot::all() {
                let Some(attributes) = format.attributes(prot) else { continue };
                for run_log2 in (0..32).filter(|run| geometry.runs(level) >> run & 1 != 0) {
                    let bus = BusAddr::new(1 << (geometry.shift(level) + run_log2).min(51));
                    let entry = format.leaf(level, run_log2, bus, attributes);
                    assert_eq!(entry & !named(level, entry), 0, "{} {entry:#x}", F::NAME);
                }
            }
            if level > 0 {
                let entry = format.table(level, TableAddr::new(1 << 30));
                assert_eq!(entry & !named(level, entry), 0, "{} {entry:#x}", F::NAME);
            }
        }
    }
    for (granule, bits) in [(12, 48), (12, 52), (14, 48), (14, 52), (16, 48), (16, 52)] {
        check(stage1(granule, bits, bits));
        check(stage2(granule, bits, bits));
    }
    check(stage1_tracking());
    check(stage2_tracking());
    check(vtd_second_tracking());
    check(vtd_second(57));
    check(vtd_first_tracking());
    check(x86_64_tracking());
    check(x86_64(true));
    check(amd_v1_tracking());
    check(amd_v1_large(6));
    check(riscv_tracking());
    check(riscv(57));
}

/// Configurations that no hardware has are refused.
#[test]
fn unsupported_configurations_are_refused() {
    let granule = |log2| longshore_mem::Granule::new(1u64 << log2).unwrap();
    for log2 in (0..64).filter(|log2| ![12, 14, 16].contains(log2)) {
        assert!(ArmStage1::new(ArmStage1Config::new(granule(log2))).is_err(), "2^{log2}");
        assert!(ArmStage2::new(ArmStage2Config::new(granule(log2))).is_err(), "2^{log2}");
    }
    let with_bits = |granule_log2, input_bits, output_bits| {
        let granule = granule(granule_log2);
        let config =
            ArmStage1Config::new(granule).with_input_bits(input_bits).with_output_bits(output_bits);
        let stage1 = ArmStage1::new(config).is_ok();
        let config =
            ArmStage2Config::new(granule).with_input_bits(input_bits).with_output_bits(output_bits);
        assert_eq!(ArmStage2::new(config).is_ok(), stage1, "{input_bits} {output_bits}");
        stage1
    };
    for (input_bits, output_bits) in [(24, 48), (53, 48), (48, 31), (48, 53)] {
        assert!(!with_bits(12, input_bits, output_bits), "{input_bits} {output_bits}");
    }
    // The sizes of physical addresses: DDI 0487, ID_AA64MMFR0_EL1.PARange; IHI 0070, SMMU_IDR5.OAS.
    // (56 bits belong to another format, with descriptors of 128 bits.)
    for granule_log2 in [12, 14, 16] {
        for output_bits in 0..=64 {
            let has = [32, 36, 40, 42, 44, 48, 52].contains(&output_bits);
            assert_eq!(with_bits(granule_log2, 40, output_bits), has, "{output_bits}");
        }
    }
}
