//! Which formats are walked by which unit.

use std::rc::Rc;

use longshore_mem::Granule;
use longshore_pagetable::Format;
use longshore_pagetable::format::amd_v1::AmdV1Config;
use longshore_pagetable::format::arm_lpae::Stage1Config;
use longshore_pagetable::format::vtd_second::VtdSecondConfig;
use longshore_pagetable::format::{AmdV1, Stage1, VtdSecond};
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

/// What QEMU's SMMUv3 has for addresses after translation (IDR5.OAS).
const SMMU_OUTPUT_BITS: u32 = 44;
/// The input sizes that the architecture names, as far as QEMU has them.
const INPUT_SIZES: [u32; 7] = [32, 36, 39, 40, 42, 44, 48];

/// Every test.
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

fn test(name: &str, run: impl Fn() -> Outcome + Send + Sync + 'static) -> Test {
    Test { name: format!("{}{name}", expected::WALKERS), run: Box::new(run) }
}

fn stage1(granule: Granule, input_bits: u32, case: Case<Stage1, SmmuV3>) -> Outcome {
    let machine = Rc::new(Machine::arm(&Qemu::system_aarch64().unwrap(), None).unwrap());
    let smmu = match SmmuV3::new(Rc::clone(&machine), Stage::One, granule) {
        Ok(smmu) => smmu,
        Err(why) => return Outcome::Skipped(why),
    };
    let format = Stage1::new(Stage1Config {
        input_bits,
        output_bits: SMMU_OUTPUT_BITS,
        live_size_changes: true,
        ..Stage1Config::new(granule)
    });
    run(format.unwrap(), &machine, &smmu, case)
}

fn vtd_second(input_bits: u32, case: Case<VtdSecond, Vtd>) -> Outcome {
    let device = format!("intel-iommu,aw-bits={input_bits},snoop-control=on");
    let machine = Rc::new(Machine::x86(&Qemu::system().unwrap(), &device).unwrap());
    let format = VtdSecond::new(VtdSecondConfig { input_bits, ..VtdSecondConfig::new() });
    run(format.unwrap(), &machine, &Vtd::new(Rc::clone(&machine)), case)
}

fn amd_v1(levels: u32, case: Case<AmdV1, AmdIommu>) -> Outcome {
    let machine = Rc::new(Machine::x86(&Qemu::system().unwrap(), "amd-iommu").unwrap());
    // QEMU 7.2 reads sizes between two levels' wrong: it looks for the first set bit, not the first
    // clear one.
    let format = AmdV1::new(AmdV1Config { levels, sizes_between: false, ..AmdV1Config::new() });
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
    assert_eq!(mirror.used(), 0, "a table was lost");
    Outcome::Passed
}
