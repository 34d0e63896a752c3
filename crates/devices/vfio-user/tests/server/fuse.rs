//! A file system that a test serves itself. Tests of other packages include this module, too.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// Numbers of `linux/fuse.h`.
const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const INIT: u32 = 26;

/// Returns the bytes of a reply, from the numbers at their offsets.
fn answer(len_bytes: usize, numbers: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    for (at, number) in numbers {
        bytes[*at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Answers the requests that opening a file needs, and no others. Passes the opcodes of the other
/// requests to `unanswered`.
pub(crate) fn serve_opens(mut device: &File, mut unanswered: impl FnMut(u32)) {
    let mut request = [0; 1 << 17];
    while let Ok(24..) = device.read(&mut request) {
        let opcode = u32::from_le_bytes(request[4..8].try_into().unwrap());
        let body = match opcode {
            // Version 7.31, and writes of up to 4 KiB.
            INIT => answer(64, &[(0, 7), (4, 31), (20, 4096), (24, 1)]),
            // Inode 2, valid for long, a regular file of 1 MiB that every user may read and write.
            LOOKUP => answer(
                128,
                &[
                    (0, 2),
                    (16, 9999),
                    (24, 9999),
                    (40, 2),
                    (48, 1 << 20),
                    (100, 0o100_666),
                    (104, 1),
                ],
            ),
            OPEN => answer(16, &[]),
            other => {
                unanswered(other);
                continue;
            }
        };
        let mut reply = answer(16, &[(0, 16 + body.len() as u32)]);
        reply[8..16].copy_from_slice(&request[8..16]);
        reply.extend(body);
        device.write_all(&reply).unwrap();
    }
}

/// A mounted file system. When it is dropped, all requests that wait for its daemon fail.
pub(crate) struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

/// Mounts a file system at `at`, or returns `None` if that is not possible.
pub(crate) fn mount(at: &Path) -> Option<(Mounted, File)> {
    mount_as(at, "hostile", "fuse")
}

/// Mounts a file system of type `kind`, with or without a block device, at `at`.
pub(crate) fn mount_as(at: &Path, source: &str, kind: &str) -> Option<(Mounted, File)> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mounted = OpenOptions::new().read(true).write(true).open("/dev/fuse").and_then(|device| {
        let options = format!("fd={},rootmode=40777,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        rustix::mount::mount(source, at, kind, flags, options.as_c_str())?;
        Ok(device)
    });
    match mounted {
        Ok(device) => Some((Mounted(at.to_owned()), device)),
        Err(error) => {
            println!("SKIPPED: FUSE cannot be mounted: {error}");
            None
        }
    }
}
