//! Lock files, and the question whether the process that has one is dead.
//!
//! A lock of `flock(2)` lasts until the last descriptor of the open file is closed. The kernel closes the
//! descriptors of a killed process when its last thread has exited, and a thread that waits for a file
//! system (FUSE, NFS) may not exit before that file system answers. A forked child has the lock, too. So a
//! lock that is held does not show that its owner is alive: [`Owner::is_dead`] looks at the threads of the
//! process that the file names.

use std::fmt;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process;

use rustix::io::Errno;

use crate::file;

/// The maximum number of bytes of the content that are read.
const CONTENT_BYTES_MAX: usize = 4096;
/// The flag of a thread that exits, in `/proc/PID/task/TID/stat` (the kernel's `PF_EXITING`).
const EXITING: u64 = 0x4;
/// SIGKILL in the mask of pending signals.
const KILLED: u64 = 1 << (9 - 1);

/// An open lock file.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    /// The process that opened it.
    pid: u32,
}

impl LockFile {
    /// Opens the file at `path` like [`file::open_lock`], without locking it.
    ///
    /// # Errors
    /// Those of [`file::open_lock`].
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::from(file::open_lock(path)?), pid: process::id() })
    }

    /// Returns `true` if this process itself opened it, and not a parent that forked this process.
    pub fn is_of_this_process(&self) -> bool {
        self.pid == process::id()
    }

    /// Locks the file without waiting. Returns `false` if another open file has the lock.
    ///
    /// # Errors
    /// Those of `flock(2)`.
    pub fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Sets a record lock (`fcntl(2)`) on the file without waiting, which is independent of the other
    /// lock. Returns `false` if another process has it. It ends when this process closes any descriptor
    /// of the file.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn try_lock_record(&self) -> io::Result<bool> {
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        match rustix::fs::fcntl_lock(&self.file, operation) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the metadata of the file by `fstat(2)`.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Returns the content, cut off after 4096 bytes.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let mut content = vec![0; CONTENT_BYTES_MAX];
        let len_bytes = self.file.read_at(&mut content, 0)?;
        content.truncate(len_bytes);
        Ok(content)
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// Those of `ftruncate(2)` and `pwrite(2)`.
    pub fn set_content(&self, content: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(content.as_bytes(), 0)
    }
}

/// A process, as a lock file names it: identifier, start, and PID and time namespace. Another process that gets the
/// same identifier later has another start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pid: u32,
    /// The time of the start in clock ticks since the boot, as this time namespace sees it.
    started: u64,
    /// The names of the PID namespace and of the time namespace.
    namespace: String,
}

impl Owner {
    /// Returns this process, or `None` if `/proc` is not available.
    pub fn this_process() -> Option<Self> {
        let pid = process::id();
        let started = Thread::read(Path::new(&format!("/proc/{pid}")))?.started;
        Some(Self { pid, started, namespace: namespaces()? })
    }

    /// Parses the text that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (numbers, namespace) = text.trim_end().split_once(" in ")?;
        let (pid, started) = numbers.split_once(" of ")?;
        let (pid, started) = (pid.parse().ok()?, started.parse().ok()?);
        Some(Self { pid, started, namespace: namespace.to_owned() })
    }

    /// Returns `true` if the process does not exist any more, dumps its core, or if each of its threads
    /// has exited, exits or was killed. Returns `false` for a process of another PID or time namespace.
    pub fn is_dead(&self) -> bool {
        if namespaces().as_deref() != Some(&self.namespace) {
            return false;
        }
        let process = format!("/proc/{}", self.pid);
        match fs::metadata(&process) {
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::NotFound,
        }
        // If the process ends meanwhile, the next look finds that it does not exist.
        if Thread::read(Path::new(&process)).is_some_and(|thread| thread.started != self.started) {
            return true;
        }
        if fs::read_to_string(format!("{process}/status")).is_ok_and(|status| dumps_core(&status)) {
            return true;
        }
        let Ok(threads) = fs::read_dir(format!("{process}/task")) else { return false };
        threads.flatten().all(|thread| is_dead_thread(&thread.path()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} in {}", self.pid, self.started, self.namespace)
    }
}

/// The fields of a `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    state: char,
    flags: u64,
    started: u64,
}

impl Thread {
    fn read(directory: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(directory.join("stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name in parentheses can have any characters.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let state = fields.next()?.chars().next()?;
        // proc_pid_stat(5) numbers the fields from 1; the state is the third.
        let flags = fields.nth(9 - 4)?.parse().ok()?;
        let started = fields.nth(22 - 10)?.parse().ok()?;
        Some(Self { state, flags, started })
    }
}

fn is_dead_thread(directory: &Path) -> bool {
    let stat = match fs::read_to_string(directory.join("stat")) {
        Ok(stat) => stat,
        // A thread that is gone has exited. Any other error does not show that.
        Err(error) => {
            return matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH));
        }
    };
    let Some(thread) = Thread::parse(&stat) else { return false };
    if matches!(thread.state, 'Z' | 'X') || thread.flags & EXITING != 0 {
        return true;
    }
    let status = fs::read_to_string(directory.join("status"));
    status.is_ok_and(|status| is_killed(&status))
}

fn dumps_core(status: &str) -> bool {
    value(status, "CoreDumping:") == Some("1")
}

/// Returns `true` if SIGKILL is pending for the thread with this `status`.
fn is_killed(status: &str) -> bool {
    let pending = value(status, "SigPnd:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    pending.is_some_and(|mask| mask & KILLED != 0)
}

fn value<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns the names of this process's PID and time namespaces, or `None` if `/proc` is not available. A
/// time namespace shifts the starts of processes.
fn namespaces() -> Option<String> {
    let pid = fs::read_link("/proc/self/ns/pid").ok()?;
    // Linux 5.6.
    let time = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", pid.display(), time.display()))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_lock_is_exclusive_and_ends_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let (first, second) = (LockFile::open(&path).unwrap(), LockFile::open(&path).unwrap());
        assert!(first.try_lock().unwrap() && !second.try_lock().unwrap());
        first.set_content("longer than the next").unwrap();
        first.set_content("short").unwrap();
        assert_eq!(second.content().unwrap(), b"short");
        drop(first);
        assert!(second.try_lock().unwrap());
        let (there, open) = (fs::metadata(&path).unwrap(), second.metadata().unwrap());
        assert_eq!((there.ino(), there.uid()), (open.ino(), open.uid()));
        assert!(LockFile::open(&dir.path().join("absent/lock")).is_err());
    }

    #[test]
    fn a_process_is_dead_when_it_is_a_zombie_or_gone_or_has_another_start() {
        let own = Owner::this_process().unwrap();
        assert!(!own.is_dead());
        assert_eq!(Owner::parse(&format!("{own}\n")), Some(own.clone()));
        assert_eq!(Owner::parse("1 in pid:[1]"), None);
        assert!(Owner { started: own.started + 1, ..own.clone() }.is_dead());
        assert!(!Owner { namespace: "pid:[1]".to_owned(), pid: 1, started: 0 }.is_dead());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let started = Thread::read(Path::new(&format!("/proc/{}", child.id()))).unwrap().started;
        let owner = Owner { pid: child.id(), started, ..own };
        assert!(!owner.is_dead());
        child.kill().unwrap();
        let begin = Instant::now();
        while !owner.is_dead() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not exit");
            thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(owner.is_dead());
    }

    #[test]
    fn the_state_of_a_process_is_parsed() {
        assert!(dumps_core("Name:\tx\nState:\tS (sleeping)\nCoreDumping:\t1\n"));
        assert!(!dumps_core("Name:\tx\nState:\tS (sleeping)\nCoreDumping:\t0\n"));
        assert!(is_killed("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(!is_killed("SigPnd:\t0000000000000200\nShdPnd:\t0000000000000100\n"));
        let stat = "7 (a) b) D 1 2 3 4 5 4194308 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22";
        let thread = Thread { state: 'D', flags: 4_194_308, started: 19 };
        assert_eq!(Thread::parse(stat), Some(thread));
    }
}
