//! The memory of another process (`pidfd_open(2)`, `process_vm_readv(2)`, `process_vm_writev(2)`) and
//! its user (`PIDFD_GET_INFO`).
//!
//! The two calls take a process ID, which the kernel may reuse after the process has ended and was
//! waited for. So each call checks the pidfd, which always refers to the same process, before and after:
//! before, so that no other process is accessed; after, so that the result is discarded if the process
//! ended meanwhile. (In theory the ID could be reused between the two checks. But the kernel assigns IDs
//! in ascending order and wraps around, so all others come first.)
#![expect(unsafe_code, reason = "hands addresses of two processes to the kernel")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use longshore_mem::{VolatileSlice, VolatileSliceMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::opcode;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::ioctl;
use crate::user::User;

/// `PIDFD_GET_INFO` of `linux/pidfd.h`.
const GET_INFO: libc::Ioctl = opcode::read_write::<Info>(0xff, 11) as libc::Ioctl;
/// `PIDFD_INFO_CREDS`.
const CREDENTIALS: u64 = 1 << 1;

/// `struct pidfd_info` of `linux/pidfd.h`, in its first version.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    control_group: u64,
    /// The process, its thread group, and its parent.
    pids: [u32; 3],
    real_uid: u32,
    /// The other user and group IDs.
    ids: [u32; 7],
    exit_code: i32,
}

/// A process whose memory can be read and written.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    pid: libc::pid_t,
    identity: Identity,
}

/// The identity of a process, which is equal for all [`Process`] values of the same process.
///
/// Since Linux 6.9 no two processes have the same identity. Before, a process can have the identity of
/// an earlier one that had the same ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The inode of the pidfd. Before Linux 6.9 all pidfds have the same.
    inode: u64,
    pid: libc::pid_t,
}

/// The direction of a transfer.
#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

impl Identity {
    /// Returns an identity that no process has, for tests.
    #[doc(hidden)]
    pub fn for_tests(number: u64) -> Self {
        Self { inode: number, pid: 0 }
    }
}

/// Returns `true` if an error means that there is no such process, or that it has ended.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

impl Process {
    /// Returns the process that has the ID `pid` now.
    ///
    /// # Errors
    /// `ESRCH` if there is none, `EINVAL` if `pid` is not a valid process ID.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Self::new(pidfd, pid.as_raw_nonzero().get())
    }

    /// Returns the process that `pidfd` refers to, for example one from `SO_PEERPIDFD`.
    ///
    /// # Errors
    /// `ESRCH` if it has ended, `EINVAL` if the descriptor is not a pidfd or is one of a thread;
    /// `Unsupported` if `/proc` belongs to another PID namespace than this process.
    pub fn from_pidfd(pidfd: OwnedFd) -> io::Result<Self> {
        // The kernel writes -1 for a process that has ended, and 0 for one of another PID namespace.
        let number = number_in_proc(pidfd.as_fd())?;
        if number <= 0 {
            return Err(gone());
        }
        let pid = Pid::from_raw(number).ok_or_else(gone)?;
        // The ID is one of the PID namespace of `/proc`, but the calls take one of this process's
        // namespace.
        let other_namespace = || {
            let reason = "/proc is of another namespace of process numbers than this process is in";
            io::Error::new(io::ErrorKind::Unsupported, reason)
        };
        let same = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(same) => number_in_proc(same.as_fd())? == number,
            Err(Errno::SRCH) => false,
            Err(error) => return Err(error.into()),
        };
        let process = Self::new(pidfd, number)?;
        // If it is still alive, no other process had its ID meanwhile.
        process.check_alive()?;
        if same { Ok(process) } else { Err(other_namespace()) }
    }

    fn new(pidfd: OwnedFd, pid: libc::pid_t) -> io::Result<Self> {
        let inode = rustix::fs::fstat(&pidfd)?.st_ino;
        Ok(Self { pidfd, pid, identity: Identity { inode, pid } })
    }

    /// Returns the identity of the process.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the real user of the process, as a user ID in this process's namespace. Returns `None` if
    /// the kernel does not report it (before Linux 6.13) or the process has ended. Unlike reading
    /// `/proc`, this does not wait for other processes.
    pub fn user(&self) -> Option<User> {
        let mut info = Info { mask: CREDENTIALS, ..Info::default() };
        // SAFETY: the kernel reads and writes a structure of the size that the request states.
        let got = unsafe { ioctl::exchange(self.pidfd.as_fd(), GET_INFO, (&raw mut info).cast()) };
        let is_there = got.is_ok() && info.mask & CREDENTIALS != 0;
        is_there.then(|| User::from_uid(info.real_uid))
    }

    /// Returns the process ID, which is valid while the process is alive.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Checks that the process has not ended.
    ///
    /// # Errors
    /// `ESRCH` if it has ended.
    pub fn check_alive(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        crate::retry_interrupted(|| Ok(poll(&mut fds, Some(&now))?))?;
        if fds[0].revents().is_empty() { Ok(()) } else { Err(gone()) }
    }

    /// Reads from `address` in the process into `into`. Returns the number of bytes, which is smaller
    /// than requested if the rest is not mapped.
    ///
    /// # Errors
    /// `ESRCH` if the process has ended, `EPERM` if this process may not access its memory, `EFAULT` if
    /// nothing is mapped at `address`. The content of `into` is unspecified then.
    pub fn read(&self, address: u64, mut into: VolatileSliceMut<'_>) -> io::Result<usize> {
        self.call(Way::Read, address, into.as_mut_ptr(), into.len())
    }

    /// Writes `from` to `address` in the process. Returns the number of bytes, like
    /// [`read`](Self::read).
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    ///
    /// # Safety
    /// Rust code of this process must not have references to any byte that is written. So the memory
    /// must not be this process's own; its threads and `CLONE_VM` children share it. Nor may it be a
    /// shared mapping that this process uses through references: until it calls `exec`, a forked child
    /// has every shared mapping of its parent, such as a buffer's memfd.
    pub unsafe fn write(&self, address: u64, from: VolatileSlice<'_>) -> io::Result<usize> {
        self.call(Way::Write, address, from.as_ptr().cast_mut(), from.len())
    }

    fn call(&self, way: Way, address: u64, own: *mut u8, len_bytes: usize) -> io::Result<usize> {
        self.check_alive()?;
        let local = libc::iovec { iov_base: own.cast(), iov_len: len_bytes };
        let there = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
        let remote =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(there), iov_len: len_bytes };
        let done = match way {
            // SAFETY: `local` is a view that may be written for its length; addresses of the other
            // process are only read, and the kernel checks them.
            Way::Read => unsafe {
                libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
            },
            // SAFETY: as above; `local` is only read, and the caller of `write` promises the rest.
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

/// Returns the ID of the process that a pidfd refers to, in the PID namespace of `/proc`.
fn number_in_proc(pidfd: BorrowedFd<'_>) -> io::Result<libc::pid_t> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    let number = number.and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::ptr::NonNull;

    use super::*;

    fn own_bytes(bytes: &mut [u8]) -> VolatileSliceMut<'_> {
        let len_bytes = bytes.len();
        // SAFETY: the view borrows the bytes.
        unsafe { VolatileSliceMut::from_raw_parts(NonNull::from(bytes).cast(), len_bytes) }
    }

    #[test]
    fn memory_of_this_process_is_read() {
        let process = Process::open(std::process::id()).unwrap();
        let pidfd = process.as_fd().try_clone_to_owned().unwrap();
        let again = Process::from_pidfd(pidfd.try_clone().unwrap()).unwrap();
        assert_eq!(again.identity(), process.identity());
        let there = *b"what is there";
        let address = (&raw const there).expose_provenance() as u64;
        for process in [process, Process::from_pidfd(pidfd).unwrap()] {
            let mut here = [0; 13];
            assert_eq!(process.read(address, own_bytes(&mut here)).unwrap(), 13);
            assert_eq!(&here, b"what is there");
            let error = process.read(8, own_bytes(&mut here)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        }
    }

    #[test]
    fn the_user_of_a_process_is_the_one_that_runs_it() {
        let own = Process::open(std::process::id()).unwrap();
        let Some(user) = own.user() else {
            return println!("SKIPPED: this kernel does not report the user of a process");
        };
        assert_eq!(user, User::own());
        let mut command = Command::new("cat");
        let child = command.stdin(Stdio::piped()).uid(1234).spawn();
        let Ok(mut child) = child else {
            return println!("SKIPPED: this process may not change its user");
        };
        let process = Process::open(child.id()).unwrap();
        assert_eq!(process.user(), Some(User::from_uid(1234)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process.user(), None);
    }

    /// `unshare --pid` leaves the old `/proc` mounted, in which a process has another ID.
    #[test]
    fn a_number_of_another_namespace_is_not_used() {
        const INSIDE: &str = "LONGSHORE_TEST_IN_PID_NAMESPACE";
        let name = "process_memory::tests::a_number_of_another_namespace_is_not_used";
        if std::env::var_os(INSIDE).is_none() {
            let mut unshare = Command::new("unshare");
            let program = std::env::current_exe().unwrap();
            unshare.args(["--pid", "--fork"]).arg(program).args(["--exact", name, "--nocapture"]);
            let output = unshare.env(INSIDE, "1").output();
            match output {
                Ok(output) if output.status.success() => {}
                Ok(output) => {
                    let errors = String::from_utf8_lossy(&output.stderr);
                    assert!(errors.contains("unshare failed"), "{errors}");
                    println!("SKIPPED: {errors}");
                }
                Err(error) => println!("SKIPPED: no unshare: {error}"),
            }
            return;
        }
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let pidfd = process.as_fd().try_clone_to_owned().unwrap();
        assert_ne!(number_in_proc(pidfd.as_fd()).unwrap().unsigned_abs(), child.id());
        let refused = Process::from_pidfd(pidfd).map(|process| process.pid());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn memory_of_another_process_is_read_and_written() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let end = stack.split([' ', '-']).nth(1).unwrap();
        let address = u64::from_str_radix(end, 16).unwrap() - 64;
        let (mut new, mut here) = (*b"is now", [0; 6]);
        let new = own_bytes(&mut new);
        // SAFETY: it is the stack of another program, which shares no memory with this one.
        assert_eq!(unsafe { process.write(address, new.as_readable()) }.unwrap(), 6);
        assert_eq!(process.read(address, own_bytes(&mut here)).unwrap(), 6);
        assert_eq!(&here, b"is now");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn accesses_to_a_process_that_has_ended_fail() {
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
