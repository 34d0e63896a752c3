//! The device and other processes: of users without permission, of users with a limit of locked memory,
//! and one that is killed. Also a device that shares its group with one that the kernel uses.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::thread;

use longshore_domain::Direction;
use longshore_domain::backend::OpenError;
use longshore_heap::Heap;
use longshore_mem::Iova;
use longshore_sys::memfd::{self, Backing};
use serde_json::{Value, json};

use super::edu::{self, COPY_BYTES, COPY_TIME};
use super::owner::{BEGUN, OPEN, PIN, TARGET_BYTES, TRANSFER, TRANSFER_BYTES};
use super::rig::Interface;
use crate::outcome::{Passed, TestResult, ensure};
use crate::peer::{self, ORDINARY_USER};

/// Returns the device files that an ordinary user needs.
fn nodes(interface: Interface, folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    Ok(match interface {
        Interface::Vfio => {
            let group = fs::read_link(folder.join("iommu_group"))?;
            vec![Path::new("/dev/vfio").join(group.file_name().ok_or("the group has no number")?)]
        }
        Interface::Iommufd => {
            let mut numbers = fs::read_dir(folder.join("vfio-dev"))?;
            let number = numbers.next().ok_or("the device has no number")??.file_name();
            vec!["/dev/iommu".into(), Path::new("/dev/vfio/devices").join(number)]
        }
    })
}

fn own(nodes: &[PathBuf], user: u32) -> std::io::Result<()> {
    nodes.iter().try_for_each(|node| chown(node, Some(user), Some(user)))
}

fn told(interface: Interface, folder: &Path) -> Value {
    json!({"interface": interface.name(), "address": edu::address(folder)})
}

/// Runs an ordinary user's process in that role, and returns its output.
fn play(role: &str, told: &Value) -> Result<Output, Box<dyn Error>> {
    let peer = peer::start(role, told, None, Some(ORDINARY_USER))?;
    Ok(peer.wait_with_output()?)
}

fn ensure_succeeded(output: &Output) -> Result<(), Box<dyn Error>> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} ({})", said.trim(), output.status);
    Ok(())
}

/// For a user without permission the error names the file to open, and the owner of the files can open
/// the device.
pub(super) fn may_not(interface: Interface) -> TestResult {
    let folder = interface.prepare()?;
    let told = told(interface, &folder);
    let nodes = nodes(interface, &folder)?;
    // Grants the files one by one: each missing one is reported.
    for node in &nodes {
        let refused = play(OPEN, &told)?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(!refused.status.success(), "{} was not needed", node.display());
        let expected = format!("{} may not be opened by this user: chown", node.display());
        ensure!(said.contains(&expected), "{said}");
        own(std::slice::from_ref(node), ORDINARY_USER)?;
    }
    let opened = play(OPEN, &told);
    own(&nodes, 0)?;
    ensure_succeeded(&opened?)?;
    Ok(Passed::Yes)
}

/// A device that cannot be isolated from one that the kernel uses is refused, and the error names that
/// one.
pub(super) fn neighbour(interface: Interface) -> TestResult {
    const DRIVER: &str = "serial";
    let folder = interface.prepare()?;
    let address = edu::address(&folder);
    let other = edu::neighbour(&folder);
    drop(interface.open(&address)?);
    edu::set_driver(&other, Some(DRIVER))?;
    let refused = interface.open(&address);
    edu::set_driver(&other, None)?;
    let refused = refused.err().ok_or("it was opened beside a device of the kernel's")?;
    let text = refused.to_string();
    let OpenError::Neighbour { neighbour, driver, .. } = refused else { return Err(text.into()) };
    ensure!(neighbour == edu::address(&other) && driver == DRIVER, "{text}");
    ensure!(text.contains(&format!("{neighbour}/driver/unbind")), "{text}");
    interface.open(&address)?;
    Ok(Passed::Yes)
}

/// Memory that cannot be locked is refused with the reason, and everything else continues to work.
pub(super) fn limit(interface: Interface) -> TestResult {
    let folder = interface.prepare()?;
    let mut told = told(interface, &folder);
    told["limit_bytes"] = (1 << 20).into();
    let nodes = nodes(interface, &folder)?;
    own(&nodes, ORDINARY_USER)?;
    let output = play(PIN, &told);
    own(&nodes, 0)?;
    ensure_succeeded(&output?)?;
    // The first process no longer counts against the user's limit.
    own(&nodes, ORDINARY_USER)?;
    let output = play(PIN, &told);
    own(&nodes, 0)?;
    ensure_succeeded(&output?)?;
    Ok(Passed::Yes)
}

/// Returns the number of pages that drivers have pinned and not released.
fn pinned_pages() -> Result<i64, Box<dyn Error>> {
    // Each processor has its own counter; writing this adds them up.
    fs::write("/proc/sys/vm/stat_refresh", "1")?;
    let all = fs::read_to_string("/proc/vmstat")?;
    let count = |name: &str| -> Result<i64, Box<dyn Error>> {
        let line = all.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.ok_or("the kernel does not count pinned pages")?.trim().parse()?)
    };
    Ok(count("nr_foll_pin_acquired ")? - count("nr_foll_pin_released ")?)
}

fn is_bus_master(folder: &Path) -> Result<bool, Box<dyn Error>> {
    const COMMAND: u64 = 0x04;
    const BUS_MASTER: u8 = 1 << 2;
    let mut command = [0; 2];
    File::open(folder.join("config"))?.read_exact_at(&mut command, COMMAND)?;
    Ok(command[0] & BUS_MASTER != 0)
}

/// A process that is killed while the device copies leaves nothing: the device stops writing, and the
/// next process can use it at once, with all addresses.
pub(super) fn killed(interface: Interface) -> TestResult {
    const TARGET: u8 = 0x11;
    const NEW: u8 = 0xe7;
    let folder = interface.prepare()?;
    // Opens and closes once, because the kernel pins some pages of its own at the first time.
    drop(interface.domain_and_device()?);
    for is_awaited in [true, false] {
        let file = memfd::create("target", Backing::Shmem)?;
        memfd::set_len(&file, TRANSFER_BYTES)?;
        let file = File::from(file);
        file.write_all_at(&[TARGET; TARGET_BYTES], 0)?;
        file.write_all_at(&[NEW; TARGET_BYTES], TARGET_BYTES as u64)?;
        let target = || -> Result<Vec<u8>, Box<dyn Error>> {
            let mut bytes = vec![0; TARGET_BYTES];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let pinned_before = pinned_pages()?;
        let mut owner = peer::start(TRANSFER, &told(interface, &folder), Some(file.as_fd()), None)?;
        let iova = match begun(&mut owner) {
            Ok(iova) => iova,
            Err(reason) => {
                let output = owner.wait_with_output()?;
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("{reason}: {}", said.trim()).into());
            }
        };
        if is_awaited {
            // Without the kill the transfer arrives, so in the other turn the kill stops it.
            thread::sleep(COPY_TIME * 3);
        } else {
            ensure!(target()? == [TARGET; TARGET_BYTES], "the transfer has ended before the kill");
        }
        ensure!(is_bus_master(&folder)?, "the device is not set up");
        ensure!(pinned_pages()? > pinned_before, "nothing is pinned");
        owner.kill()?;
        owner.wait()?;

        let after = target()?;
        let written = if is_awaited { NEW } else { TARGET };
        ensure!(after[..COPY_BYTES] == [written; COPY_BYTES], "awaited: {is_awaited}");
        ensure!(after[COPY_BYTES..].iter().all(|byte| *byte == TARGET), "written beyond the end");
        ensure!(!is_bus_master(&folder)?, "the device may still do DMA");
        ensure!(pinned_pages()? == pinned_before, "pages are still pinned");
        thread::sleep(COPY_TIME * 10);
        ensure!(target()? == after, "the device has written after the kill");

        // The next process can open it at once, with all of its addresses; nothing is mapped at the old
        // one.
        let (builder, device) = interface.domain_and_device()?;
        let domain = builder.build();
        ensure!(domain.iovas().free_bytes() == domain.iovas().all_bytes(), "addresses are taken");
        device.store(Iova::new(iova), &[0x99; 64]);
        ensure!(target()? == after, "the mapping of the killed process still exists");
        let buffer = Heap::Memfd.allocate(TRANSFER_BYTES)?;
        let mapping = domain.map_at(Iova::new(iova), buffer, Direction::Bidirectional)?;
        device.store(mapping.iova(), b"mine");
        let buffer = mapping.unmap().map_err(|failed| failed.error)?;
        ensure!(buffer.read()?[..5] == *b"mine\0", "the address is not free for the next");
        ensure!(target()? == after, "the memory of another process changed");
    }
    Ok(Passed::Yes)
}

/// Waits until the device has begun to write, and returns the address.
fn begun(owner: &mut Child) -> Result<u64, Box<dyn Error>> {
    let output = owner.stdout.as_mut().ok_or("its output is not caught")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let iova = line.trim().strip_prefix(BEGUN).ok_or("the device has not begun")?;
    Ok(iova.trim().parse()?)
}
