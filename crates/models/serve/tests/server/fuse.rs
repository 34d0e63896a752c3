//! A FUSE file system that a test mounts, whose daemon answers no request.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// The user that owns the mounts of FUSE.
const USER: u32 = 2002;

/// A mounted file system. Dropping it unmounts the file system.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server may still have files open there.
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Mounts a file system that answers only the first request.
pub(crate) fn mount_hung(at: &Path) -> Option<(Mounted, File)> {
    let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device,
        Err(error) => {
            println!("SKIPPED: FUSE cannot be mounted: {error}");
            return None;
        }
    };
    let fd = device.as_raw_fd();
    let options = format!("fd={fd},rootmode=40755,user_id={USER},group_id={USER},allow_other");
    let options = CString::new(options).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    if let Err(error) = rustix::mount::mount("hung", at, "fuse", flags, options.as_c_str()) {
        println!("SKIPPED: FUSE cannot be mounted: {error}");
        return None;
    }
    let mounted = Mounted(at.to_owned());
    let mut request = [0; 1 << 16];
    let request_bytes = (&device).read(&mut request).unwrap();
    assert!(request_bytes >= 16);
    // The reply to FUSE_INIT: version 7.31, and 64 KiB of readahead.
    let (opcode, unique) = (&request[4..8], &request[8..16]);
    assert_eq!(opcode, 26u32.to_le_bytes());
    let mut answer = [0; 16 + 64];
    answer[..4].copy_from_slice(&80u32.to_le_bytes());
    answer[8..16].copy_from_slice(unique);
    for (at, value) in [(16, 7u32), (20, 31), (24, 1 << 16), (36, 4096), (40, 1)] {
        answer[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    (&device).write_all(&answer).unwrap();
    Some((mounted, device))
}
