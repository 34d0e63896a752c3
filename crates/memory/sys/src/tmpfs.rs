//! Files in a tmpfs: unnamed files that get their name later, their pages, and mounting a tmpfs.
//!
//! A tmpfs that is mounted with `huge=always` or `huge=within_size` has its files in huge pages, and
//! every program that maps such a file gets huge mappings, whatever `shmem_enabled` is.

use std::ffi::CString;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::file::{self, FileSystem};
use crate::retry_interrupted;

/// The option `huge=` of a mounted tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugeOption {
    /// Huge pages wherever they are free.
    Always,
    /// Huge pages that lie within the length of the file.
    WithinSize,
    /// Huge pages in mappings with `MADV_HUGEPAGE`.
    Advise,
    /// No huge pages.
    Never,
}

/// The room that is left in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The number of free bytes; `None` if there is no limit.
    pub free_bytes: Option<u64>,
    /// The number of free inodes; `None` if there is no limit.
    pub free_inodes: Option<u64>,
}

/// Returns `true` if the file or directory is in a tmpfs.
///
/// # Errors
/// Those of `fstatfs(2)`.
pub fn contains(file: impl AsFd) -> io::Result<bool> {
    Ok(file::file_system(file)? == FileSystem::Shmem)
}

/// Makes an unnamed file in a directory (`O_TMPFILE`), which only this user can access.
///
/// # Errors
/// `EOPNOTSUPP` or `EISDIR` if the file system has no such files; those of `open(2)`.
pub fn create_unnamed(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    retry_interrupted(|| Ok(rustix::fs::open(directory, flags, mode)?))
}

/// Allocates the pages of a range without changing the file's length (`fallocate`).
///
/// # Errors
/// `StorageFull` if the file system is full; those of `fallocate(2)`.
pub fn allocate(file: impl AsFd, range: Range<u64>) -> io::Result<()> {
    let Some(len_bytes) = range.end.checked_sub(range.start).filter(|len| *len > 0) else {
        return Ok(());
    };
    let file = file.as_fd();
    retry_interrupted(|| {
        Ok(rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, range.start, len_bytes)?)
    })
}

/// Gives an unnamed file a name. An existing name is not replaced.
///
/// # Errors
/// `EEXIST` if the name exists; `ENOENT` if the file was made with `O_EXCL`, or if `/proc` is not
/// mounted and this process lacks CAP_DAC_READ_SEARCH; those of `linkat(2)`.
pub fn link(file: impl AsFd, directory: impl AsFd, name: &Path) -> io::Result<()> {
    let (file, directory) = (file.as_fd(), directory.as_fd());
    match rustix::fs::linkat(file, "", directory, name, AtFlags::EMPTY_PATH) {
        // Before Linux 6.10, this needs CAP_DAC_READ_SEARCH.
        Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {
            let path = path_of(file);
            Ok(rustix::fs::linkat(CWD, &path, directory, name, AtFlags::SYMLINK_FOLLOW)?)
        }
        linked => Ok(linked?),
    }
}

/// Returns the room that is left in the file system of a file or directory.
///
/// # Errors
/// Those of `fstatvfs(3)`.
pub fn room(file: impl AsFd) -> io::Result<Room> {
    let found = rustix::fs::fstatvfs(file)?;
    Ok(Room {
        free_bytes: (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)),
        free_inodes: (found.f_files > 0).then_some(found.f_favail),
    })
}

/// Returns the option `huge=` of the mounted file system that has the file or directory. A file system
/// without that option has no huge pages.
///
/// # Errors
/// Those of `statx(2)` and of reading `/proc/thread-self/mountinfo`; `NotFound` if the mount is not there.
pub fn huge_option(file: impl AsFd) -> io::Result<HugeOption> {
    let answer = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")?;
    option_of(&mounts, answer.stx_mnt_id).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn option_of(mounts: &str, mount: u64) -> Option<HugeOption> {
    let line = mounts
        .lines()
        .find(|line| line.split_once(' ').and_then(|(id, _)| id.parse().ok()) == Some(mount))?;
    // The options of the file system are the last field.
    let option = line.rsplit(' ').next()?.split(',').find_map(|word| word.strip_prefix("huge="));
    Some(match option {
        Some("always") => HugeOption::Always,
        Some("within_size") => HugeOption::WithinSize,
        Some("advise") => HugeOption::Advise,
        _ => HugeOption::Never,
    })
}

/// Mounts a tmpfs over a directory, with huge pages if the kernel has them, without devices, set-user-ID
/// programs and executables. Its root has mode 0755. The size is half of the machine's memory if it is
/// `None`.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN in the user namespace that owns the mount namespace; those of
/// `mount(2)`.
pub fn mount(directory: impl AsFd, size_bytes: Option<u64>) -> io::Result<()> {
    let target = path_of(directory.as_fd());
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let size = size_bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
    let mount = |options: String| {
        let options = CString::new(options).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount("longshore", &target, "tmpfs", flags, options.as_c_str())
    };
    match mount(format!("mode=0755,huge=always{size}")) {
        // A kernel without transparent huge pages does not have the option.
        Err(Errno::INVAL) => Ok(mount(format!("mode=0755{size}"))?),
        mounted => Ok(mounted?),
    }
}

fn path_of(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_huge_option_is_that_of_the_mount() {
        let mounts = "\
30 1 0:26 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1k,inode64
31 1 0:27 / /models rw shared:5 - tmpfs longshore rw,size=64m,huge=always
32 1 0:28 / /m\\040n rw - tmpfs x rw,huge=within_size,uid=5
33 1 0:29 / /a rw - tmpfs x rw,huge=advise
";
        let options = [(30, HugeOption::Never), (31, HugeOption::Always)];
        for (mount, option) in
            options.into_iter().chain([(32, HugeOption::WithinSize), (33, HugeOption::Advise)])
        {
            assert_eq!(option_of(mounts, mount), Some(option));
        }
        assert_eq!(option_of(mounts, 3), None);
    }
}
