//! The formats and the units that walk them.

use std::rc::Rc;

use longshore_mem::Granule;
use longshore_pagetable::format::{
    AmdV1, AmdV1Config, ArmStage1, ArmStage1Config, ArmStage2, ArmStage2Config, Format, VtdFirst,
    VtdFirstConfig, VtdSecond, VtdSecondConfig,
};
use longshore_vm_tests::protocol::Outcome;
use longshore_vm_tests::{Qemu, expected};

use crate::Test;
use crate::amd_iommu::AmdIommu;
use crate::cases::{self, Case};
use crate::machine::Machine;
use crate::mirror::{Backing, Mirror};
use crate::smmu_v3::{SmmuV3, Stage};
use crate::unit::{Rig, Unit};
use crate::vtd::Vtd;
use crate::vtd_scalable::VtdScalable;

/// The size of the output addresses of QEMU's SMMUv3 (IDR5.OAS).
const SMMU_OUTPUT_BITS: u32 = 44;
/// The architecture's input sizes that QEMU supports.
const INPUT_SIZES: [u32; 7] = [32, 36, 39, 40, 42, 44, 48];

/// Returns the tests that run with Debian's QEMU.
pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (granule_log2, size) in [(12, "4k"), (14, "16k"), (16, "64k")] {
        let granule = Granule::new(1 << granule_log2).expect("a power of two");
        for case in cases::all() {
            let name = format!("smmuv3::stage1_{size}::{}", case.0);
            tests.push(test(&name, move || stage1(granule, 48, case)));
        }
        for (case, bits) in
            cases::of_input_size().into_iter().flat_map(|case| INPUT_SIZES.map(|bits| (case, bits)))
        {
            let name = format!("smmuv3::stage1_{size}_{bits}_bits::{}", case.0);
            tests.push(test(&name, move || stage1(granule, bits, case)));
        }
    }
    for case in cases::all() {
        tests.push(test(&format!("vtd::second::{}", case.0), move || vtd_second(48, case)));
    }
    for (case, bits) in
        cases::of_input_size().into_iter().flat_map(|case| [39, 48].map(|bits| (case, bits)))
    {
        let name = format!("vtd::second_{bits}_bits::{}", case.0);
        tests.push(test(&name, move || vtd_second(bits, case)));
    }
    for case in cases::all() {
        tests.push(test(&format!("amd::v1::{}", case.0), move || amd_v1(4, case)));
    }
    for (case, levels) in cases::of_input_size()
        .into_iter()
        .flat_map(|case| [3, 4, 5, 6].map(|levels| (case, levels)))
    {
        let name = format!("amd::v1_{levels}_levels::{}", case.0);
        tests.push(test(&name, move || amd_v1(levels, case)));
    }
    tests
}

/// Returns the tests that need QEMU 11.
pub(crate) fn tests_of_qemu_11() -> Vec<Test> {
    let mut tests = Vec::new();
    for (granule_log2, size) in [(12, "4k"), (14, "16k"), (16, "64k")] {
        let granule = Granule::new(1 << granule_log2).expect("a power of two");
        for case in cases::all() {
            let name = format!("qemu11::smmuv3::stage1_{size}_upper::{}", case.0);
            tests.push(test(&name, move || stage1_upper(granule, 48, case)));
        }
        // The largest size that QEMU supports: see `qemu_walks_stage2`.
        let bits = if granule_log2 == 16 { 42 } else { SMMU_OUTPUT_BITS };
        for case in cases::all() {
            let name = format!("qemu11::smmuv3::stage2_{size}::{}", case.0);
            tests.push(test(&name, move || stage2(granule, bits, case)));
        }
        for bits in INPUT_SIZES {
            for case in cases::of_input_size() {
                let name = format!("qemu11::smmuv3::stage1_{size}_upper_{bits}_bits::{}", case.0);
                tests.push(test(&name, move || stage1_upper(granule, bits, case)));
            }
        }
        for bits in INPUT_SIZES.into_iter().filter(|bits| qemu_walks_stage2(granule, *bits)) {
            for case in cases::of_input_size() {
                let name = format!("qemu11::smmuv3::stage2_{size}_{bits}_bits::{}", case.0);
                tests.push(test(&name, move || stage2(granule, bits, case)));
            }
        }
    }
    for case in cases::all() {
        tests.push(test(&format!("qemu11::vtd::first::{}", case.0), move || vtd_first(case)));
    }
    for case in cases::all() {
        let name = format!("qemu11::amd::v1_sizes_between::{}", case.0);
        tests.push(test(&name, move || amd_v1_sizes_between(case)));
    }
    tests
}

fn test(name: &str, run: impl Fn() -> Outcome + Send + Sync + 'static) -> Test {
    Test { name: format!("{}{name}", expected::WALKERS), run: Box::new(run) }
}

fn stage1(granule: Granule, input_bits: u32, case: Case<ArmStage1, SmmuV3>) -> Outcome {
    let machine = Rc::new(Machine::arm(&Qemu::system_aarch64().unwrap(), None).unwrap());
    let smmu = match SmmuV3::new(Rc::clone(&machine), Stage::One, granule) {
        Ok(smmu) => smmu,
        Err(why) => return Outcome::Skipped(why),
    };
    let format = ArmStage1::new(
        ArmStage1Config::new(granule)
            .with_input_bits(input_bits)
            .with_output_bits(SMMU_OUTPUT_BITS)
            .with_live_size_changes(true),
    );
    run(format.unwrap(), &machine, &smmu, case)
}

fn stage1_upper(granule: Granule, input_bits: u32, case: Case<ArmStage1, SmmuV3>) -> Outcome {
    let machine = Rc::new(Machine::arm(&Qemu::v11_aarch64().unwrap(), Some("1")).unwrap());
    let smmu = SmmuV3::new(Rc::clone(&machine), Stage::One, granule).unwrap();
    let format = ArmStage1::new(
        ArmStage1Config::new(granule)
            .with_input_bits(input_bits)
            .with_output_bits(SMMU_OUTPUT_BITS)
            .with_upper(true)
            .with_live_size_changes(true),
    );
    run(format.unwrap(), &machine, &smmu, case)
}

fn stage2_format(granule: Granule, input_bits: u32) -> ArmStage2 {
    let format = ArmStage2::new(
        ArmStage2Config::new(granule)
            .with_input_bits(input_bits)
            .with_output_bits(SMMU_OUTPUT_BITS)
            .with_live_size_changes(true),
    );
    format.unwrap()
}

/// Returns `true` if QEMU translates such addresses correctly. The input of stage 2 cannot exceed the
/// output of stage 1. Up to 11.1, QEMU finds only the first of several concatenated tables: it adds the
/// index of the table, and then rounds the address down to the size of all of them.
fn qemu_walks_stage2(granule: Granule, input_bits: u32) -> bool {
    input_bits <= SMMU_OUTPUT_BITS && stage2_format(granule, input_bits).concatenated_log2() == 0
}

fn stage2(granule: Granule, input_bits: u32, case: Case<ArmStage2, SmmuV3>) -> Outcome {
    let machine = Rc::new(Machine::arm(&Qemu::v11_aarch64().unwrap(), Some("2")).unwrap());
    let smmu = SmmuV3::new(Rc::clone(&machine), Stage::Two, granule).unwrap();
    run(stage2_format(granule, input_bits), &machine, &smmu, case)
}

fn amd_v1_sizes_between(case: Case<AmdV1, AmdIommu>) -> Outcome {
    let machine = Rc::new(Machine::x86(&Qemu::v11().unwrap(), "amd-iommu,dma-remap=on").unwrap());
    let format = AmdV1::new(AmdV1Config::new()).unwrap();
    run(format, &machine, &AmdIommu::new(Rc::clone(&machine)), case)
}

fn vtd_second(input_bits: u32, case: Case<VtdSecond, Vtd>) -> Outcome {
    let device = format!("intel-iommu,aw-bits={input_bits},snoop-control=on");
    let machine = Rc::new(Machine::x86(&Qemu::system().unwrap(), &device).unwrap());
    let format = VtdSecond::new(VtdSecondConfig::new().with_input_bits(input_bits));
    run(format.unwrap(), &machine, &Vtd::new(Rc::clone(&machine)), case)
}

fn vtd_first(case: Case<VtdFirst, VtdScalable>) -> Outcome {
    let device = "intel-iommu,scalable-mode=on,fsts=on,aw-bits=48";
    let machine = Rc::new(Machine::x86(&Qemu::v11().unwrap(), device).unwrap());
    let format = VtdFirst::new(VtdFirstConfig::new()).unwrap();
    run(format, &machine, &VtdScalable::new(Rc::clone(&machine)), case)
}

fn amd_v1(levels: u32, case: Case<AmdV1, AmdIommu>) -> Outcome {
    let machine = Rc::new(Machine::x86(&Qemu::system().unwrap(), "amd-iommu").unwrap());
    // QEMU 7.2 decodes sizes between those of two levels incorrectly: it looks for the first set bit
    // instead of the first clear one.
    let format = AmdV1::new(AmdV1Config::new().with_levels(levels).with_intermediate_sizes(false));
    run(format.unwrap(), &machine, &AmdIommu::new(Rc::clone(&machine)), case)
}

fn run<F: Format, U: Unit>(
    format: F,
    machine: &Machine,
    unit: &U,
    (_, case): Case<F, U>,
) -> Outcome {
    let backing = Backing::new();
    let mirror = Mirror::new(machine, &backing);
    case(&Rig::new(format, machine, &mirror, unit));
    assert_eq!(mirror.used(), 0, "a table was leaked");
    Outcome::Passed
}
