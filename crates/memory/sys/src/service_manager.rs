//! Listening sockets that a service manager passes to a process, by the variables `LISTEN_PID`,
//! `LISTEN_FDS` and `LISTEN_FDNAMES` (`sd_listen_fds(3)`).
#![expect(unsafe_code, reason = "uses descriptors that the process inherited by their numbers")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

/// The first descriptor that is passed.
const FIRST: RawFd = 3;
/// The maximum number of descriptors that is believed. No known manager passes more.
const COUNT_MAX: i32 = 64;

/// Returns duplicates of the descriptors that were passed to this process, and their names. Only the
/// first call returns them.
///
/// Returns none if the process was not started by a service manager, or if the variables are for another
/// process. The original descriptors stay open while the process runs, because other code may own them,
/// but become close-on-exec. A descriptor that is close-on-exec already cannot have been passed, and is
/// refused.
///
/// # Errors
/// `InvalidInput` if the variables are invalid; `EBADF` if a descriptor is not open, or was opened by
/// this process.
pub fn take_descriptors() -> io::Result<Vec<(String, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let read = |name| std::env::var(name).ok();
    let for_us = read("LISTEN_PID").and_then(|pid| pid.parse().ok()) == Some(std::process::id());
    if !for_us || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let nonsense = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let count: i32 = read("LISTEN_FDS")
        .and_then(|count| count.parse().ok())
        .filter(|count| (0..=COUNT_MAX).contains(count))
        .ok_or_else(|| nonsense("LISTEN_FDS is no number of descriptors"))?;
    let names = read("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let handed: Vec<BorrowedFd<'_>> = (FIRST..FIRST + count)
        // SAFETY: it is only passed to system calls in this function, which fail if it is not open.
        .map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
        .collect();
    for fd in &handed {
        if rustix::io::fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC) {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
    }
    let mut taken = Vec::new();
    for fd in handed {
        let duplicate = rustix::io::fcntl_dupfd_cloexec(fd, FIRST)?;
        rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        taken.push((names.next().unwrap_or_default().to_owned(), duplicate));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "LONGSHORE_TEST_OWN_DESCRIPTORS";

    /// The variables contain the process ID, so a shell sets them and then executes this test.
    #[test]
    fn descriptors_that_this_process_opened_are_not_taken_from_their_owners() {
        if std::env::var_os(CHILD).is_some() {
            let files: Vec<File> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
            assert!(files.iter().any(|file| (FIRST..FIRST + 4).contains(&file.as_raw_fd())));
            // Descriptors that are not close-on-exec have owners, too.
            let keep = std::env::var(CHILD).unwrap() == "keep";
            let named = files.iter().filter(|file| file.as_raw_fd() < FIRST + 4);
            named.filter(|_| keep).for_each(|file| {
                rustix::io::fcntl_setfd(file, FdFlags::empty()).unwrap();
            });
            match take_descriptors() {
                Ok(taken) => assert!(keep && taken.len() == 4),
                Err(refused) => {
                    assert_eq!((keep, refused.raw_os_error()), (false, Some(libc::EBADF)));
                }
            }
            assert!(files.iter().all(|file| file.metadata().is_ok()), "none was closed");
            return;
        }
        let script = "LISTEN_PID=$$ LISTEN_FDS=4 exec \"$0\" --exact \"$1\"";
        let name = "service_manager::tests::\
                    descriptors_that_this_process_opened_are_not_taken_from_their_owners";
        for way in ["close", "keep"] {
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(name);
            let ran = command.env(CHILD, way).output().unwrap();
            let told = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && told.contains("1 passed"), "{way}: {ran:?}");
        }
    }
}
