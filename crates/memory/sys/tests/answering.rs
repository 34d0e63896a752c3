//! FUSE files on a block device, whose device numbers are those of a disk.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]

use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::thread;

use longshore_sys::answering;

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "../../../devices/vfio-user/tests/server/fuse.rs"]
mod fuse;

/// A loop device. Dropping it detaches the device.
struct Loop(String);

impl Loop {
    fn new(of: &Path) -> Option<Self> {
        File::create(of).unwrap().set_len(1 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(of).output();
        let made = made.ok().filter(|made| made.status.success());
        Some(Self(String::from_utf8(made?.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn fuse_on_a_block_device_is_not_answered_by_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Loop::new(&folder.path().join("disk")) else {
        return println!("SKIPPED: a loop device cannot be made");
    };
    let mounted_at = folder.path().join("mounted");
    std::fs::create_dir(&mounted_at).unwrap();
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
