//! What a service manager hands to a process that it starts: listening sockets, by the variables
//! `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES` (`sd_listen_fds(3)`).
#![expect(unsafe_code, reason = "names descriptors that were there when the process began")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;
/// More than any manager hands over.
const COUNT_MAX: i32 = 64;

/// Returns duplicates of the descriptors that were handed to this process and their names, once: a
/// second call returns none.
///
/// Returns none if the process was started by hand, or if the variables are for another process. The
/// descriptors themselves stay open for as long as the process runs, since something else in it may
/// own them, but are closed on exec from here on. A descriptor that is closed on exec already cannot
/// have been handed over, and is refused.
///
/// # Errors
/// `InvalidInput` if the variables make no sense; `EBADF` if a descriptor is not open, or was opened
/// by this process.
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
        // SAFETY: only passed to calls of this function, which fail if it is not open.
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

    /// The variables name a process by its number, so this test runs in one that its shell has made.
    #[test]
    fn descriptors_that_this_process_opened_are_not_taken_from_their_owners() {
        if std::env::var_os(CHILD).is_some() {
            let files: Vec<File> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
            assert!(files.iter().any(|file| (FIRST..FIRST + 4).contains(&file.as_raw_fd())));
            // Duplicates that are not closed on exec have owners, too.
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
