//! What `longshore doctor` says of machines that have, and have not, what it looks for.

use std::env;

use longshore_vm_tests::{Flavor, Iommu, Machine, Task, quick_static_binary, require};
use serde_json::Value;

const LONGSHORE: &str = "/bin/longshore";

/// The kernel gives a device of this kind to the vfio-pci that is built into it.
const EDU: &str = "vfio-pci.ids=1234:11e8";

/// What the doctor finds in the machine, as root.
fn findings(machine: Machine) -> Vec<Value> {
    let program = quick_static_binary("longshore-cli", "longshore").unwrap();
    let doctor = Task::command([LONGSHORE, "doctor", "--json", "/run"]);
    let report = machine.binary(program, LONGSHORE).run(&[doctor]).unwrap();
    assert!(report.commands[0].success(), "{report:?}");
    let found: Value = serde_json::from_str(&report.commands[0].stdout()).unwrap();
    found["findings"].as_array().unwrap().clone()
}

/// That these are among the findings: a name, a state, a part of what was found, and of the advice.
fn assert_among(findings: &[Value], expected: &[(&str, &str, &str, &str)]) {
    for (name, state, found, advice) in expected {
        let finding = findings.iter().find(|finding| finding["name"] == *name);
        let finding = finding.unwrap_or_else(|| panic!("no {name} in {findings:?}"));
        assert_eq!(finding["state"], *state, "{finding}");
        assert!(finding["found"].as_str().unwrap().contains(found), "{found}: {finding}");
        let told = finding["advice"].as_str().unwrap_or_default();
        assert!(told.contains(advice) && told.is_empty() == advice.is_empty(), "{finding}");
    }
}

fn available() -> bool {
    require::or_skip("the doctor in a guest", require::check()).is_some()
}

#[test]
fn without_an_iommu_it_says_how_to_turn_one_on() {
    if !available() {
        return;
    }
    let found = findings(Machine::new("doctor-none").memory_mib(512));
    assert_among(
        &found,
        &[
            ("IOMMU", "no", "none", "intel_iommu=on"),
            ("interrupt remapping", "no", "no IOMMU", "see IOMMU"),
            ("VFIO", "no", "no /dev/vfio/vfio", "modprobe vfio-pci"),
            ("devices for VFIO", "no", "no device", "driver_override"),
            ("iommufd", "no", "no /dev/iommu", "CONFIG_IOMMUFD"),
        ],
    );
}

#[test]
fn behind_vt_d_all_is_there_but_a_device_to_hand_out() {
    if !available() {
        return;
    }
    let machine = Machine::new("doctor-intel")
        .memory_mib(512)
        .iommu(Iommu::Intel)
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .device("edu");
    assert_among(
        &findings(machine),
        &[
            ("IOMMU", "yes", "dmar0; ", ""),
            ("interrupt remapping", "yes", "", ""),
            ("VFIO", "yes", "type 1, 65535 mappings", ""),
            ("devices for VFIO", "no", "no device", "driver_override"),
            ("iommufd", "no", "no /dev/iommu", "CONFIG_IOMMUFD"),
            ("locked memory limit", "yes", "none for this user", ""),
        ],
    );
}

#[test]
fn a_device_is_named_with_its_files_and_interrupts_that_stand_in_its_way() {
    if !available() {
        return;
    }
    if env::var("LONGSHORE_VM_IOMMUFD").as_deref() != Ok("1") {
        require::skip("the doctor on iommufd", &"it is off without LONGSHORE_VM_IOMMUFD=1");
        return;
    }
    let machine = |name, iommu| {
        let machine = Machine::new(name).kernel(Flavor::Iommufd).memory_mib(512).iommu(iommu);
        machine.kernel_arg(EDU).device("edu,addr=06.0")
    };
    let expected = |interrupts| {
        [
            ("IOMMU", "yes", " groups of devices", ""),
            interrupts,
            ("VFIO", "yes", "type 1, 65535 mappings", ""),
            ("devices for VFIO", "yes", "0000:00:06.0 (/dev/vfio/", ""),
            ("iommufd", "yes", "/dev/iommu", ""),
            ("devices for iommufd", "yes", "0000:00:06.0 (/dev/vfio/devices/vfio0)", ""),
        ]
    };
    assert_among(
        &findings(machine("doctor-iommufd", Iommu::Virtio)),
        &expected(("interrupt remapping", "no", "none", "allow_unsafe_interrupts")),
    );
    assert_among(
        &findings(machine("doctor-iommufd", Iommu::Intel)),
        &expected(("interrupt remapping", "yes", "", "")),
    );
}
