//! Tests of the program without a device.

use std::fs;
use std::process::{Command, Output};

fn run(args: &[&str]) -> (Output, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_longshore-nvme-example")).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn help_names_every_command() {
    let (output, _) = run(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for command in ["info", "load", "write", "extents", "bind", "bench"] {
        assert!(text.contains(command), "{text}");
        assert!(run(&[command, "--help"]).0.status.success(), "{command}");
    }
}

#[test]
fn the_error_for_a_missing_device_names_it() {
    for backend in ["vfio", "iommufd"] {
        let (output, said) = run(&["info", "--device", "ffff:ff:1f.7", "--backend", backend]);
        assert!(!output.status.success());
        assert!(said.contains("ffff:ff:1f.7") && said.contains("/sys/bus/pci/devices"), "{said}");
    }
    let (output, said) = run(&["bind", "--device", "../../etc", "vfio-pci"]);
    assert!(!output.status.success() && said.contains("../../etc"), "{said}");
}

#[test]
fn arguments_that_are_not_valid_are_refused() {
    for args in [
        &["load", "--device", "0000:00:05.0", "--len", "much"][..],
        &["load", "--device", "0000:00:05.0", "--extents", "x", "--offset", "1"],
        &["bench"],
        &["read"],
    ] {
        assert_eq!(run(args).0.status.code(), Some(2), "{args:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list.json");
    fs::write(&list, "[]").unwrap();
    let (_, said) = run(&["load", "--device", "x", "--extents", list.to_str().unwrap()]);
    assert!(said.contains("is not a list of extents"), "{said}");
}

#[test]
fn a_file_without_a_disk_has_no_extents() {
    let (output, said) = run(&["extents", "/proc/self/status"]);
    assert!(!output.status.success() && said.contains("no disk of its own"), "{said}");
    let (output, said) = run(&["extents", "/proc/self"]);
    assert!(!output.status.success() && said.contains("is not a regular file"), "{said}");
}
