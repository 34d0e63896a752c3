//! Lock files that are unlocked immediately when their process is killed.
//!
//! A lock of `flock(2)` lasts until the last descriptor of the open file is closed. The kernel closes
//! the descriptors of a killed process when the last thread that uses their table has exited, and a
//! thread that waits for a file system (FUSE, NFS) may not exit before that file system answers. So a
//! thread opens the lock file in a descriptor table of its own, and waits only for requests of this
//! process:
//!
//! ```text
//!   table of the process: sockets, files        table of the lock's thread: the lock file, nothing else
//!   stays until its slowest thread has exited   ends with this thread, which SIGKILL ends at once
//! ```
//!
//! If the thread cannot get its own table (in a sandbox, or before Linux 5.9), the lock lasts as long as
//! the table of the process. A forked child does not share the lock.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};

use crate::{disposal, file, signals};

/// The stack of the thread, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// The maximum number of bytes of the content that are read.
const CONTENT_BYTES_MAX: usize = 4096;

type Request = Box<dyn FnOnce(&File) + Send>;

/// A lock file that is held open by a thread. Dropping it closes the file.
#[derive(Debug)]
pub struct LockFile {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    /// The process that started the thread.
    pid: u32,
}

impl LockFile {
    /// Opens the file at `path` like [`file::open_lock`], without locking it.
    ///
    /// # Errors
    /// Those of [`file::open_lock`], and those of starting a thread.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (requests, to_do) = mpsc::channel();
        let (opened, is_opened) = mpsc::sync_channel(1);
        let path = path.to_owned();
        let thread = thread::Builder::new().name("longshore-lock".to_owned());
        let thread = thread.stack_size(STACK_BYTES).spawn(move || hold(&path, &opened, &to_do))?;
        is_opened.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Self { requests: Some(requests), thread: Some(thread), pid: process::id() })
    }

    /// Returns `true` if this process itself opened it, and not a parent that forked this process.
    pub fn is_of_this_process(&self) -> bool {
        self.pid == process::id()
    }

    /// Locks the file without waiting. Returns `false` if another process has locked it.
    ///
    /// # Errors
    /// Those of `flock(2)`.
    pub fn try_lock(&self) -> io::Result<bool> {
        self.ask(|file| match file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        })
    }

    /// Returns the metadata of the file by `fstat(2)`.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.ask(File::metadata)
    }

    /// Returns the content, cut off after 4096 bytes.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        self.ask(|file| {
            let mut content = vec![0; CONTENT_BYTES_MAX];
            let len_bytes = file.read_at(&mut content, 0)?;
            content.truncate(len_bytes);
            Ok(content)
        })
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// Those of `ftruncate(2)` and `pwrite(2)`.
    pub fn set_content(&self, content: &str) -> io::Result<()> {
        let content = content.to_owned();
        self.ask(move |file| {
            file.set_len(0)?;
            file.write_all_at(content.as_bytes(), 0)
        })
    }

    /// Runs `act` with the file on the thread, and waits for the result.
    fn ask<T: Send + 'static>(
        &self,
        act: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let gone = || io::Error::other("the thread that has the lock file is in another process");
        let requests = self.requests.as_ref().filter(|_| self.is_of_this_process());
        let (answer, answered) = mpsc::sync_channel(1);
        let request = move |file: &File| _ = answer.send(act(file));
        requests.ok_or_else(gone)?.send(Box::new(request)).map_err(|_| gone())?;
        answered.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let (requests, thread) = (self.requests.take(), self.thread.take());
        if !self.is_of_this_process() {
            // A forked child does not have the thread, and would wait for it for ever.
            return mem::forget((requests, thread));
        }
        // The thread ends when there can be no more requests.
        drop(requests);
        if let Some(thread) = thread {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// Opens the file in a descriptor table without other files, and runs requests on it.
fn hold(path: &Path, opened: &SyncSender<io::Result<()>>, requests: &Receiver<Request>) {
    if signals::block_all().is_ok() {
        // If this fails, the file is in the table of the process.
        let _ = disposal::leave_table_empty();
    }
    let file = match file::open_lock(path) {
        Ok(file) => File::from(file),
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    if opened.send(Ok(())).is_ok() {
        requests.iter().for_each(|request| request(&file));
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

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
    fn the_file_is_in_no_table_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("lock");
        let lock = LockFile::open(&path).unwrap();
        assert!(lock.try_lock().unwrap());
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let is_lock = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to == path);
        assert_eq!(open.filter(is_lock).count(), 0);
    }
}
