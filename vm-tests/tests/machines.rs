//! Tests that machines match their descriptions, as the kernel that runs in them reports.

use std::{env, fs};

use longshore_vm_tests::{
    Attach, Disk, FileSystem, Flavor, Iommu, Kernel, Machine, Qemu, Task, fixture, guest_init,
    make_image, require,
};
use serde_json::Value;

/// Boots the machine and returns the facts that its guest reports.
fn facts(machine: &Machine) -> Value {
    let report = machine.run(&[Task::command(["/init", "--facts"])]).unwrap();
    assert!(report.commands[0].success(), "{report:?}");
    serde_json::from_str(&report.commands[0].stdout()).unwrap()
}

fn available(what: &str) -> bool {
    require::or_skip(what, require::check()).is_some()
}

#[test]
fn memory_processors_modules_and_disks_are_as_ordered() {
    if !available("an ordered machine") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fixture::write_file(&tree.join("file"), 1, 10_000).unwrap();
    let image = dir.path().join("image");
    make_image(FileSystem::Ext4, &tree, &image, 16 << 20).unwrap();
    let machine = Machine::new("ordered")
        .memory_mib(512)
        .cpus(3)
        .kernel_arg("longshore.word=7")
        .module("overlay")
        .disk(Disk::null("null", 1 << 30))
        .disk(Disk::xfs_from_dir("xfs", &tree, 300 << 20))
        .disk(Disk::erofs_from_dir("erofs", &tree).attach(Attach::Nvme))
        .disk(Disk::file("image", &image).mount("/mnt/image", FileSystem::Ext4));
    let facts = facts(&machine);
    assert_eq!(facts["kernel"], Kernel::obtain(Flavor::Debian).unwrap().release());
    assert_eq!(facts["cpus"], 3);
    let memory = facts["memory_bytes"].as_u64().unwrap();
    assert!((400 << 20..512 << 20).contains(&memory), "{memory}");
    assert!(facts["command_line"].as_str().unwrap().contains("longshore.word=7"));
    assert_eq!(facts["disks"], serde_json::json!(["erofs", "image", "null", "xfs"]));
    let mounts = facts["mounts"].as_str().unwrap();
    for mounted in [" /disk/xfs xfs rw", " /disk/erofs erofs ro", " /mnt/image ext4 ro"] {
        assert!(mounts.contains(mounted), "{mounted} is not in\n{mounts}");
    }
}

#[test]
fn programs_and_files_are_where_they_were_put() {
    if !available("files in the guest") {
        return;
    }
    let machine =
        Machine::new("files").binary(guest_init().unwrap(), "/opt/tool").file("/etc/note", "text");
    let report = machine
        .run(&[Task::command(["/opt/tool", "--list"]), Task::command(["/etc/note"])])
        .unwrap();
    assert!(report.commands[0].stdout().contains("kernel::io_uring_is_allowed\n"));
    // The file exists but is not executable.
    let exit = format!("{:?}", report.commands[1].exit);
    assert!(exit.contains("Permission denied"), "{exit}");
}

#[test]
fn an_intel_iommu_serves_the_devices() {
    if !available("an Intel IOMMU") {
        return;
    }
    let disk = Disk::null("null", 1 << 20).attach(Attach::Nvme);
    let facts = facts(&Machine::new("intel-iommu").iommu(Iommu::Intel).disk(disk));
    assert_eq!(facts["iommus"], serde_json::json!(["dmar0"]));
    assert!(facts["iommu_groups"].as_u64().unwrap() > 0);
}

#[test]
fn a_virtio_iommu_serves_the_devices() {
    if !available("a virtio-iommu") {
        return;
    }
    let disk = Disk::null("null", 1 << 20).attach(Attach::Nvme);
    let facts = facts(&Machine::new("virtio-iommu").iommu(Iommu::Virtio).disk(disk));
    assert_eq!(facts["iommus"].as_array().unwrap().len(), 1, "{facts}");
    assert!(facts["iommu_groups"].as_u64().unwrap() > 0);
}

#[test]
fn a_machine_that_counts_instructions_repeats_its_times() {
    if !available("a machine that counts instructions") {
        return;
    }
    let machine = Machine::new("counting").cpus(2).counting_instructions();
    let [first, second] = [(); 2].map(|()| facts(&machine));
    assert_eq!(first["cpus"], 1);
    let times = [first, second].map(|facts| facts["computing_nanoseconds"].as_f64().unwrap());
    assert!((times[0] / times[1] - 1.0).abs() < 0.01, "{times:?}");
}

#[test]
fn qemu_11_boots_the_guest() {
    let what = "QEMU 11";
    if env::var("LONGSHORE_VM_QEMU11").as_deref() != Ok("1") {
        require::skip(what, &"it downloads 48 MB; set LONGSHORE_VM_QEMU11=1 to run it");
        return;
    }
    let qemu = require::check().and_then(|()| Qemu::v11());
    let Some(qemu) = require::or_skip(what, qemu) else { return };
    let version = qemu.version().unwrap();
    assert!(version.starts_with("QEMU emulator version 11."), "{version}");
    let disk = Disk::null("null", 1 << 20).attach(Attach::Nvme);
    let facts = facts(&Machine::new("qemu-11").qemu(qemu).disk(disk));
    assert_eq!(facts["disks"], serde_json::json!(["null"]));
}
