//! Another process's memory: `pidfd_open(2)`, `process_vm_readv(2)`, `process_vm_writev(2)`.
//!
//! The two calls take a process's number, which the kernel may give to another process once this
//! one is gone and was waited for. So each call asks the pidfd, which means one process for ever,
//! before and after: before, so that nothing is touched of a process that is gone; after, so that
//! what was done is not believed if it went meanwhile. (Between the two questions the number could
//! in theory be given anew; the kernel hands out numbers in a circle, so all others come first.)
#![expect(unsafe_code, reason = "hands addresses of two processes to the kernel")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use longshore_mem::volatile::{VolatileSlice, VolatileSliceMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process whose memory is read and written.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    pid: libc::pid_t,
}

/// Which way bytes go.
#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

impl Process {
    /// The process that has the number `pid` now.
    ///
    /// # Errors
    /// `ESRCH` where there is none, `EINVAL` for a number that is none.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pidfd, pid: pid.as_raw_nonzero().get() })
    }

    /// The process that `pidfd` means, as from `SO_PEERPIDFD`.
    ///
    /// # Errors
    /// `ESRCH` where it is gone, `EINVAL` where the descriptor is no pidfd.
    pub fn from_pidfd(pidfd: OwnedFd) -> io::Result<Self> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let pid: libc::pid_t = pid
            .and_then(|pid| pid.trim().parse().ok())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // The kernel writes -1 for one that is gone, 0 for one of another namespace.
        if pid <= 0 {
            return Err(gone());
        }
        Ok(Self { pidfd, pid })
    }

    /// The process's number, while it is alive.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Fails once the process has ended.
    ///
    /// # Errors
    /// `ESRCH` then.
    pub fn check_alive(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        crate::retry_interrupted(|| Ok(poll(&mut fds, Some(&now))?))?;
        if fds[0].revents().is_empty() { Ok(()) } else { Err(gone()) }
    }

    /// Reads from `address` of the process into `into`. Returns how many bytes: fewer than asked for
    /// where the rest is not mapped there.
    ///
    /// # Errors
    /// `ESRCH` once the process is gone, `EPERM` where it may not be looked into, `EFAULT` where
    /// nothing is mapped at `address`. What was written to `into` is unspecified then.
    pub fn read(&self, address: u64, mut into: VolatileSliceMut<'_>) -> io::Result<usize> {
        self.call(Way::Read, address, into.as_mut_ptr(), into.len_bytes())
    }

    /// Writes `from` to `address` of the process. Returns how many bytes, as [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, address: u64, from: VolatileSlice<'_>) -> io::Result<usize> {
        self.call(Way::Write, address, from.as_ptr().cast_mut(), from.len_bytes())
    }

    fn call(&self, way: Way, address: u64, own: *mut u8, len_bytes: usize) -> io::Result<usize> {
        self.check_alive()?;
        let local = libc::iovec { iov_base: own.cast(), iov_len: len_bytes };
        let there = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
        let remote =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(there), iov_len: len_bytes };
        let done = match way {
            // SAFETY: `local` is a view that may be written for its length; the other list holds
            // addresses of another process, which the kernel checks.
            Way::Read => unsafe {
                libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
            },
            // SAFETY: as above; `local` is only read.
            Way::Write => unsafe {
                libc::process_vm_writev(self.pid, &raw const local, 1, &raw const remote, 1, 0)
            },
        };
        let done = usize::try_from(done).map_err(|_| io::Error::last_os_error());
        self.check_alive()?;
        done
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::ptr::NonNull;

    use super::*;

    fn own_bytes(bytes: &mut [u8]) -> VolatileSliceMut<'_> {
        let len_bytes = bytes.len();
        // SAFETY: the view borrows the bytes.
        unsafe { VolatileSliceMut::from_raw_parts(NonNull::from(bytes).cast(), len_bytes) }
    }

    #[test]
    fn own_memory_is_read_and_written_by_the_same_calls() {
        let process = Process::open(std::process::id()).unwrap();
        let mut there = *b"what is there";
        let address = (&raw mut there).expose_provenance() as u64;
        let mut here = [0; 13];
        assert_eq!(process.read(address, own_bytes(&mut here)).unwrap(), 13);
        assert_eq!(&here, b"what is there");
        let mut new = *b"is now";
        process.write(address, own_bytes(&mut new).as_readable()).unwrap();
        assert_eq!(&there, b"is nows there");
        let error = process.read(8, own_bytes(&mut here)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn a_process_that_is_gone_is_refused_even_before_it_is_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        process.check_alive().unwrap();
        let fd = process.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Process::from_pidfd(fd).unwrap().pid(), child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut byte = [0];
        let error = process.read(0x1000, own_bytes(&mut byte)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        let fd = process.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Process::from_pidfd(fd).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(Process::open(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
