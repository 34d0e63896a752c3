//! A gigabyte, as a range of the disk and as a file; and the example program.

use std::fs;
use std::process::Command;

use longshore_heap::Heap;
use longshore_nvme::{DiskRange, ExtentList, Interface, Options, load};
use longshore_vm_tests::{fixture, pattern};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::Value;

use super::rig::{self, Result};
use crate::outcome::{Passed, TestResult, ensure};

const FOLDER: &str = "/disk/nvme-file";

pub(super) fn raw(interface: Interface) -> TestResult {
    let (disk_offset, len_bytes) = (1 << 20, 1 << 30);
    rig::drive(
        interface,
        fixture::DRIVEN_RAW,
        Options::default(),
        |domain, controller, namespace| {
            let buffer = Heap::Memfd.allocate(len_bytes)?;
            let range = DiskRange { disk_offset, offset: 0, len_bytes };
            let mut told = Vec::new();
            let buffer =
                load(controller, &namespace, 64, &[range], buffer, |done| told.push(done))?;
            rig::expect(fixture::DRIVEN_SEED, disk_offset, &buffer.read()?)?;
            ensure!(told.last() == Some(&len_bytes) && told.is_sorted(), "{:?}", told.last());
            let counters = domain.counters();
            ensure!(counters.bounced == 0 && counters.copied_bytes == 0, "{counters:?}");
            Ok(Passed::Yes)
        },
    )
}

pub(super) fn file(interface: Interface) -> TestResult {
    let odd = fixture::DRIVEN_ODD_BYTES;
    let lists = with_file_system(|| {
        let content = ExtentList::from_file(format!("{FOLDER}/{}", fixture::DRIVEN_FILE).as_ref())?;
        let odd = ExtentList::from_file(format!("{FOLDER}/{}", fixture::file_name(odd)).as_ref())?;
        Ok([content, odd])
    })?;
    let [content, small] = &lists;
    ensure!(content.len_bytes == fixture::DRIVEN_BYTES, "{} bytes", content.len_bytes);
    ensure!(content.extents.len() > 100, "{} extents are few", content.extents.len());
    ensure!(small.len_bytes == odd, "{} bytes", small.len_bytes);
    let address = fixture::DRIVEN_DISK_OF_FILE;
    rig::drive(interface, address, Options::default(), |_, controller, namespace| {
        for (list, seed) in [(content, fixture::DRIVEN_SEED), (small, odd)] {
            let buffer = Heap::Memfd.allocate(list.memory_bytes(&namespace)?)?;
            let ranges = list.disk_ranges(&namespace)?;
            let buffer = load(controller, &namespace, 64, &ranges, buffer, |_| {})?;
            let bytes = buffer.read()?;
            rig::expect(seed, 0, &bytes[..list.len_bytes as usize])?;
        }
        Ok(Passed::Yes)
    })
}

/// Runs `work` with the disk bound to the kernel's driver and the file system mounted, and unmounts it
/// afterwards.
fn with_file_system<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    let is_mounted = fs::exists(format!("{FOLDER}/{}", fixture::DRIVEN_FILE))?;
    if !is_mounted {
        rig::set_driver(fixture::DRIVEN_DISK_OF_FILE, Some("nvme"))?;
        mount()?;
    }
    let result = work();
    rustix::mount::unmount(FOLDER, UnmountFlags::empty())?;
    result
}

/// Waits for the disk, which the kernel probes in the background, and mounts it.
fn mount() -> Result<()> {
    let started = std::time::Instant::now();
    loop {
        for entry in fs::read_dir("/sys/class/nvme")? {
            let folder = entry?.path();
            let serial = fs::read_to_string(folder.join("serial")).unwrap_or_default();
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let disk = format!("/dev/{name}n1");
            if serial.trim() == "nvme-file" && fs::exists(&disk)? {
                rustix::mount::mount(disk, FOLDER, "ext4", MountFlags::RDONLY, None)?;
                return Ok(());
            }
        }
        ensure!(started.elapsed().as_secs() < 20, "the kernel does not find the disk");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Tests the program: a file's extents, the range of a disk, a small bench.
pub(super) fn program(interface: Interface) -> TestResult {
    const LIST: &str = "/tmp/list.json";
    let backend = match interface {
        Interface::Vfio => "vfio",
        Interface::Iommufd => "iommufd",
    };
    let run = |args: &[&str]| -> Result<(bool, String, String)> {
        let output = Command::new("/bin/nvme").args(args).output()?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.success(), text(&output.stdout), text(&output.stderr)))
    };
    let must = |args: &[&str]| -> Result<String> {
        let (is_good, out, error) = run(args)?;
        if is_good { Ok(out) } else { Err(format!("{args:?}: {error}").into()) }
    };
    let odd = fixture::DRIVEN_ODD_BYTES;
    let file = format!("{FOLDER}/{}", fixture::file_name(odd));
    let list = with_file_system(|| must(&["extents", &file]))?;
    fs::write(LIST, list)?;
    let address = fixture::DRIVEN_DISK_OF_FILE;
    let device = ["--device", address, "--backend", backend];
    let with = |before: &[&str], after: &[&str]| -> Vec<String> {
        before.iter().chain(&device).chain(after).map(|word| (*word).to_owned()).collect()
    };
    let run_with = |before: &[&str], after: &[&str]| {
        let words = with(before, after);
        must(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };

    rig::set_driver(address, Some("nvme"))?;
    let (is_good, _, error) = run(&["info", "--device", address, "--backend", backend])?;
    ensure!(!is_good && error.contains("driver_override"), "{error}");
    must(&["bind", "--device", address, "vfio-pci", "--allow-unsafe-interrupts"])?;
    let info: Value = serde_json::from_str(&run_with(&["info"], &["--json"])?)?;
    ensure!(info["serial"] == "nvme-file", "{info}");

    let loaded = run_with(&["load"], &["--extents", LIST, "--output", "/tmp/out", "--json"])?;
    let loaded: Value = serde_json::from_str(&loaded)?;
    ensure!(loaded["len_bytes"] == odd, "{loaded}");
    let mut content = vec![0; odd as usize];
    pattern::fill(odd, 0, &mut content);
    ensure!(fs::read("/tmp/out")? == content, "the file differs");

    let rows = run_with(
        &["bench", "--json", "--block", "8K", "--depth", "16", "--rounds", "1"],
        &["--ios", "200"],
    )?;
    let rows: Vec<Value> =
        rows.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    ensure!(rows[0]["environment"]["device_model"] == "QEMU NVMe Ctrl", "{}", rows[0]);
    for (row, (scheme, [bounced, maps, flushes])) in rows[1..].iter().zip([
        ("map", [0, 200, 200]),
        ("bounce", [200, 200, 0]),
        ("static", [0, 0, 0]),
    ]) {
        ensure!(row["scheme"] == scheme && row["ios"] == 200, "{row}");
        let counts = ["bounced", "maps", "unmaps", "flushes"].map(|name| row[name].as_u64());
        ensure!(counts == [bounced, maps, maps, flushes].map(Some), "{row}");
        let bytes = if scheme == "bounce" { 200 * 8192 } else { 0 };
        ensure!(row["copied_bytes"] == bytes, "{row}");
    }
    let schemes: Vec<_> =
        rows[1..].iter().map(|row| row["scheme"].as_str().unwrap_or("")).collect();
    ensure!(schemes[3..] == ["policy", "map, batched"], "{schemes:?}");
    ensure!(rows[5]["flushes"].as_u64().is_some_and(|n| (1..100).contains(&n)), "{}", rows[5]);
    Ok(Passed::Yes)
}
