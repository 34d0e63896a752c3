//! Files on block devices that another process can serve: FUSE on a block device, partitions of loop
//! devices, and Btrfs on a loop device.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]

use std::fs::{self, File, OpenOptions};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::thread;

use longshore_sys::answering;
use rustix::mount::{MountFlags, UnmountFlags};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "../../../devices/vfio-user/tests/server/fuse.rs"]
mod fuse;

/// A loop device. Dropping it detaches the device.
struct Loop(String);

impl Loop {
    /// Makes a loop device of 256 MiB, or returns `None` if that is not possible.
    fn new(of: &Path) -> Option<Self> {
        File::create(of).unwrap().set_len(256 << 20).unwrap();
        let path = of.to_str().unwrap();
        let made = run("losetup", &["--find", "--show", "--partscan", path]);
        made.map(Self).map_err(|why| println!("SKIPPED: {why}")).ok()
    }

    /// Adds a partition, which needs no partition table, and returns its path.
    fn add_partition(&self) -> Result<String, String> {
        run("addpart", &[&self.0, "1", "2048", "409600"])?;
        Ok(format!("{}p1", self.0))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0]);
    }
}

/// A device in memory. Dropping it removes it.
struct Zram(String);

impl Zram {
    const CONTROL: &str = "/sys/class/zram-control";

    /// Makes a device of 256 MiB.
    fn new() -> Result<Self, String> {
        let hot_add = format!("{}/hot_add", Self::CONTROL);
        let number = fs::read_to_string(&hot_add).map_err(|error| format!("{hot_add}: {error}"))?;
        let device = Self(number.trim().to_owned());
        let size = format!("/sys/block/zram{}/disksize", device.0);
        fs::write(&size, "256M").map_err(|error| format!("{size}: {error}"))?;
        Ok(device)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write(format!("{}/hot_remove", Self::CONTROL), &self.0);
    }
}

/// A mounted file system. Dropping it unmounts the file system.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, UnmountFlags::empty());
    }
}

/// Runs a program for at most 60 seconds, and returns its output.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let ended = Command::new("timeout").args(["60", program]).args(arguments).output();
    let ended = ended.map_err(|error| format!("timeout: {error}"))?;
    match ended.status.success() {
        true => Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&ended.stderr).trim())),
    }
}

/// Makes a file system of type `kind` on a device, and returns whether the kernel answers for a file in
/// it.
fn is_answered_on(device: &str, kind: &str) -> Result<bool, String> {
    run(&format!("mkfs.{kind}"), &["-q", device])?;
    let folder = tempfile::tempdir().unwrap();
    rustix::mount::mount(device, folder.path(), kind, MountFlags::empty(), None)
        .map_err(|error| format!("mounting {kind}: {error}"))?;
    let _mounted = Mounted(folder.path());
    let file = File::create_new(folder.path().join("memory")).unwrap();
    let is_answered = answering::is_answered_by_kernel(&file).unwrap();
    assert_eq!(answering::may_be_passed_on(&file), is_answered);
    Ok(is_answered)
}

#[test]
fn fuse_on_a_block_device_is_not_answered_by_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Loop::new(&folder.path().join("disk")) else { return };
    let mounted_at = folder.path().join("mounted");
    fs::create_dir(&mounted_at).unwrap();
    let Some((mounted, device)) = fuse::mount_as(&mounted_at, &disk.0, "fuseblk") else { return };
    let daemon = thread::spawn(move || fuse::serve_opens(&device, |_| {}));
    let open = OpenOptions::new().read(true).write(true).open(mounted_at.join("memory"));
    // Closing it waits for the daemon.
    let file = ManuallyDrop::new(open.unwrap());
    let is_answered = answering::is_answered_by_kernel(&*file);
    let may_be_passed_on = answering::may_be_passed_on(&*file);
    drop(mounted);
    drop(ManuallyDrop::into_inner(file));
    daemon.join().unwrap();
    assert!(!is_answered.unwrap() && !may_be_passed_on);
}

#[test]
fn files_on_a_loop_device_are_not_answered_by_the_kernel() {
    for kind in ["ext4", "btrfs"] {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = Loop::new(&folder.path().join("disk")) else { return };
        match is_answered_on(&disk.0, kind) {
            Ok(is_answered) => assert!(!is_answered, "{kind}"),
            Err(why) => println!("SKIPPED: {why}"),
        }
        match disk.add_partition().and_then(|partition| is_answered_on(&partition, kind)) {
            Ok(is_answered) => assert!(!is_answered, "{kind} on a partition"),
            Err(why) => println!("SKIPPED: {why}"),
        }
    }
}

#[test]
fn files_on_a_device_in_memory_are_answered_by_the_kernel() {
    for kind in ["ext4", "btrfs"] {
        match Zram::new().and_then(|device| is_answered_on(&format!("/dev/zram{}", device.0), kind))
        {
            Ok(is_answered) => assert!(is_answered, "{kind}"),
            Err(why) => println!("SKIPPED: {why}"),
        }
    }
}
