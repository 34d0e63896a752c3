//! Tests the findings of `longshore doctor` in machines with and without an IOMMU, VFIO and iommufd.

use std::env;

use longshore_vm_tests::{Flavor, Iommu, Machine, Task, quick_static_binary, require};
use serde_json::Value;

const LONGSHORE: &str = "/bin/longshore";

/// Binds devices of this kind to the kernel's built-in vfio-pci.
const EDU: &str = "vfio-pci.ids=1234:11e8";

/// Returns the findings of the doctor in the machine, run as root.
fn findings(machine: Machine) -> Vec<Value> {
    let program = quick_static_binary("longshore-cli", "longshore").unwrap();
    let doctor = Task::command([LONGSHORE, "doctor", "--json", "/run"]);
    let report = machine.binary(program, LONGSHORE).run(&[doctor]).unwrap();
    assert!(report.commands[0].success(), "{report:?}");
    let found: Value = serde_json::from_str(&report.commands[0].stdout()).unwrap();
    found["findings"].as_array().unwrap().clone()
}

/// Asserts that these findings exist: name, state, part of the found text, and part of the advice.
fn assert_among(findings: &[Value], expected: &[(&str, &str, &str, &str)]) {
    for (name, state, found, advice) in expected {
        let finding = findings.iter().find(|finding| finding["name"] == *name);
        let finding = finding.unwrap_or_else(|| panic!("no {name} in {findings:?}"));
        assert_eq!(finding["state"], *state, "{finding}");
        assert!(finding["found"].as_str().unwrap().contains(found), "{found}: {finding}");
        let given = finding["advice"].as_str().unwrap_or_default();
        assert!(given.contains(advice) && given.is_empty() == advice.is_empty(), "{finding}");
    }
}

fn available() -> bool {
    require::or_skip("the doctor in a guest", require::check()).is_some()
}

#[test]
fn without_an_iommu_the_advice_is_to_turn_one_on() {
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
fn behind_vt_d_only_a_device_for_vfio_is_missing() {
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
fn a_device_is_listed_with_its_files_and_interrupt_remapping() {
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
