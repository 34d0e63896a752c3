//! The use of a file by other processes: whether it is open (`F_SETLEASE`), and when it was read last.
#![expect(unsafe_code, reason = "fcntl with F_SETLEASE has no safe function")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, StatxFlags, StatxTimestamp, Timespec, Timestamps, UTIME_OMIT};

/// Returns `true` if the regular file is open elsewhere: by another process, or by another `open(2)` of
/// this one. A mapping keeps its file open. `file` must be open for reading only.
///
/// It takes a write lease, which the kernel gives only if the file is not open elsewhere, and returns it
/// at once. An `open(2)` of another process waits for the moment between, and one with `O_NONBLOCK` fails
/// then with `EWOULDBLOCK`.
///
/// # Errors
/// `EACCES` if the file belongs to another user and this process lacks CAP_LEASE; `EINVAL` if
/// `/proc/sys/fs/leases-enable` is 0, or if the file system has no leases.
pub fn is_open_elsewhere(file: impl AsFd) -> io::Result<bool> {
    let file = file.as_fd();
    // The kernel signals this process if a file is opened while it has the lease. The default signal,
    // SIGIO, ends a process that does not handle it. SIGURG is ignored.
    control(file, F_SETSIG, libc::SIGURG)?;
    match control(file, libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => control(file, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// `F_SETSIG` of `include/uapi/asm-generic/fcntl.h`, which the `libc` crate does not have for this
/// target.
const F_SETSIG: libc::c_int = 10;

fn control(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: these commands take an integer, so the kernel accesses no memory of this process.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the time of the last access, by `read(2)` or `mmap(2)`, and makes the kernel update it at the
/// next one.
///
/// A mount with `relatime`, which is the default, updates the time only if it is not later than the last
/// change of the file. So this sets the time to what it is, which changes the file's `ctime`. Without
/// permission for that, or on a mount with `noatime`, later accesses may not be seen.
///
/// # Errors
/// Those of `statx(2)`.
pub fn note_access(file: impl AsFd) -> io::Result<SystemTime> {
    let file = file.as_fd();
    let wanted = StatxFlags::ATIME | StatxFlags::CTIME;
    let status = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let (last, changed) = (status.stx_atime, status.stx_ctime);
    if (last.tv_sec, last.tv_nsec) > (changed.tv_sec, changed.tv_nsec) {
        let times = Timestamps {
            last_access: Timespec { tv_sec: last.tv_sec, tv_nsec: last.tv_nsec.into() },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        // It belongs to another user.
        let _ = rustix::fs::futimens(file, &times);
    }
    Ok(system_time(last))
}

pub(crate) fn system_time(time: StatxTimestamp) -> SystemTime {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(time.tv_nsec.into())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;
    use std::thread;
    use std::time::Instant;

    use longshore_mem::Granule;

    use super::*;
    use crate::mapping::{Access, Mapping};

    /// A file of a megabyte in a tmpfs, or `None`.
    fn in_tmpfs() -> Option<(tempfile::TempDir, PathBuf)> {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
            println!("SKIPPED: /dev/shm is missing");
            return None;
        };
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        Some((folder, path))
    }

    /// Waits until the file is not open elsewhere. Other tests of this program fork, and a child has all
    /// descriptors for a moment.
    fn wait_until_unused(file: &File) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_open_elsewhere(file).unwrap() {
            assert!(Instant::now() < deadline, "the file stays open");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_file_that_is_open_or_mapped_is_in_use() {
        let Some((_folder, path)) = in_tmpfs() else { return };
        let file = File::open(&path).unwrap();
        if let Err(error) = is_open_elsewhere(&file) {
            println!("SKIPPED: no leases: {error}");
            return;
        }
        wait_until_unused(&file);
        let other = File::open(&path).unwrap();
        assert!(is_open_elsewhere(&file).unwrap());
        let view = Mapping::of_file(&other, 1 << 20, Granule::SIZE_4K, Access::Read).unwrap();
        drop(other);
        assert!(is_open_elsewhere(&file).unwrap(), "a mapping");
        drop(view);
        wait_until_unused(&file);
        let writer = File::options().write(true).open(&path).unwrap();
        assert!(is_open_elsewhere(&file).unwrap(), "a writer");
        drop(writer);
        // A duplicate is the same open file.
        let duplicate = file.try_clone().unwrap();
        wait_until_unused(&duplicate);
    }

    #[test]
    fn opening_the_file_during_the_check_ends_neither_process() {
        let Some((_folder, path)) = in_tmpfs() else { return };
        let file = File::open(&path).unwrap();
        if let Err(error) = is_open_elsewhere(&file) {
            println!("SKIPPED: no leases: {error}");
            return;
        }
        thread::scope(|scope| {
            let opener = scope.spawn(|| {
                for _ in 0..2000 {
                    File::open(&path).unwrap();
                }
            });
            while !opener.is_finished() {
                is_open_elsewhere(&file).unwrap();
            }
        });
    }

    #[test]
    fn each_access_is_noted() {
        let Some((_folder, path)) = in_tmpfs() else { return };
        let file = File::open(&path).unwrap();
        let mut last = note_access(&file).unwrap();
        assert_eq!(note_access(&file).unwrap(), last);
        for _ in 0..3 {
            // The clock of file systems ticks every few milliseconds.
            thread::sleep(Duration::from_millis(20));
            fs::read(&path).unwrap();
            let now = note_access(&file).unwrap();
            if now == last {
                println!("SKIPPED: /dev/shm is mounted with noatime");
                return;
            }
            assert!(now > last);
            thread::sleep(Duration::from_millis(20));
            assert_eq!(note_access(&file).unwrap(), now, "opening it is no access");
            last = now;
        }
    }
}
