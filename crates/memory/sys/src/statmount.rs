//! `statmount(2)`: the file system of a mount, without a list of all mounts.
//!
//! The numbers and layouts are those of `linux/mount.h` and `linux/stat.h`. rustix and libc do not
//! define them.
#![expect(unsafe_code, reason = "makes a system call that rustix does not have")]

use std::io;

use rustix::fs::StatxFlags;

/// Makes `statx(2)` return the unique ID of a mount, which is never reused and which [`magic`] takes
/// (Linux 6.8). An older kernel returns the other ID and [`StatxFlags::MNT_ID`].
pub(crate) const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The system call number on x86-64, AArch64 and all other architectures with common numbers. Elsewhere
/// it is unused, and the call fails with `ENOSYS`.
const NUMBER: libc::c_long = 457;
/// `STATMOUNT_SB_BASIC`: basic properties of the file system.
const SB_BASIC: u64 = 1;

/// `struct mnt_id_req` in its first version.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    mask: u64,
}

/// `struct statmount` up to its strings, which are not requested.
#[repr(C)]
struct Answer {
    size: u32,
    options: u32,
    mask: u64,
    device: [u32; 2],
    magic: u64,
    others: [u64; 60],
}

const _: () = assert!(size_of::<Request>() == 24 && size_of::<Answer>() == 512);

/// Returns the magic number (`linux/magic.h`) of the file system of a mount, given by its [`UNIQUE_ID`].
/// The kernel answers without asking the file system or its server.
///
/// No privilege is needed for a mount that this process can reach from its root.
///
/// # Errors
/// `ENOENT` if the mount is not in this process's mount namespace; `EPERM` if it is, but this process
/// can neither reach it from its root nor has CAP_SYS_ADMIN; `ENOSYS` before Linux 6.8. A security
/// module or a seccomp filter may refuse the call with another error.
pub(crate) fn magic(mount: u64) -> io::Result<u64> {
    let request = Request { size: size_of::<Request>() as u32, spare: 0, mount, mask: SB_BASIC };
    let mut answer =
        Answer { size: 0, options: 0, mask: 0, device: [0; 2], magic: 0, others: [0; 60] };
    // SAFETY: the kernel reads one structure, and writes at most as many bytes as the other has.
    let asked = unsafe {
        libc::syscall(NUMBER, &raw const request, &raw mut answer, size_of::<Answer>(), 0)
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    if answer.mask & SB_BASIC == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(answer.magic)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;

    use rustix::fs::{AtFlags, statx};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn the_magic_is_that_of_the_file_system() {
        let proc = File::open("/proc/self/status").unwrap();
        let status = statx(&proc, "", AtFlags::EMPTY_PATH, UNIQUE_ID).unwrap();
        if !StatxFlags::from_bits_retain(status.stx_mask).contains(UNIQUE_ID) {
            return println!("SKIPPED: the kernel has no unique ids of mounts");
        }
        match magic(status.stx_mnt_id) {
            Ok(magic) => assert_eq!(magic, 0x9fa0, "PROC_SUPER_MAGIC"),
            Err(error) => return println!("SKIPPED: statmount cannot be called: {error}"),
        }
        let gone = magic(u64::MAX - 1).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    }
}
