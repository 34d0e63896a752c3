//! The lock file beside the socket of a server.
//!
//! The kernel keeps the listening socket of a killed process open while one of its threads hangs. Then
//! connecting does not show that the server is dead, and the kernel keeps the lock as well. So the lock file
//! names the process and the socket. The next server takes over if it can lock the file, or if that process
//! is dead ([`Owner::is_dead`]):
//!
//! ```text
//!   longshore socket DEVICE INODE SECONDS NANOSECONDS, lock INODE, process PID of START in PID-NAMESPACE
//! ```

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::bounded;
use crate::lock_file::{LockFile, Owner};

/// The beginning of a lock file's content.
const RECORD: &str = "longshore socket";
/// The time between two looks at a process that seems to be dead. A process that has just locked the file
/// writes its own record meanwhile.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The right to listen at a path, for as long as this exists.
///
/// It belongs to the process that took it: a forked child neither has the lock nor removes the file.
#[derive(Debug)]
pub struct SocketLock {
    path: PathBuf,
    file: LockFile,
    locked: Metadata,
    /// The lock file of the former server, which can be this one, and its content.
    former: (Metadata, Vec<u8>),
}

impl SocketLock {
    /// Locks the file whose path is that of the socket and `.lock`.
    ///
    /// # Errors
    /// `AddrInUse` if another process has the lock; `InvalidInput` if there is another kind of file;
    /// those of [`LockFile`].
    pub fn take(socket: &Path) -> io::Result<Self> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        // A record lock excludes other processes, but not other threads.
        static TAKING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut former = None;
        loop {
            let file = LockFile::open(&path)?;
            let locked = file.metadata()?;
            if !locked.is_file() {
                let reason = "it is not a regular file, and is left as it is";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
            let id = (locked.dev(), locked.ino());
            if !file.try_lock()? {
                if !is_own(&locked) || !is_left_by_dead(&file) || !file.try_lock_record()? {
                    let reason = "the socket is in use: another server has locked its lock file";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
                }
                // Other servers do not remove it meanwhile, because this one has the record lock.
                former = file.content().ok().map(|content| (locked, content));
                remove_same(&path, id);
                continue;
            }
            // The former owner may have removed the file meanwhile; then its lock has no effect.
            if inode(&path).is_ok_and(|inode| inode == id) {
                let content = file.content().unwrap_or_default();
                let former = former.unwrap_or_else(|| (locked.clone(), content));
                let lock = Self { path, file, locked, former };
                lock.write("-");
                return Ok(lock);
            }
        }
    }

    /// Returns the path of the lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if this process itself took the lock, and not a parent that forked this process.
    pub fn is_of_this_process(&self) -> bool {
        self.file.is_of_this_process()
    }

    /// Returns `true` if the former server named this socket. That server had the lock, so it is dead. This
    /// is believed only of a file that no other user can have written.
    pub fn names(&self, socket: &Metadata) -> bool {
        let (locked, content) = &self.former;
        is_own(locked) && content.starts_with(record(&identity(socket), locked).as_bytes())
    }

    /// Writes the name of the socket that listens now. If that fails, the next server connects to it to
    /// find out whether this one is alive.
    pub fn name(&self, socket: &Metadata) {
        self.write(&identity(socket));
    }

    fn write(&self, socket: &str) {
        // A hard link to another kind of file is not written to.
        let content = self.file.content().unwrap_or_default();
        let is_lock = content.is_empty() || content.starts_with(RECORD.as_bytes());
        if self.locked.nlink() == 1 && is_lock {
            let owner = bounded::look(Owner::this_process).flatten().map(|owner| owner.to_string());
            let (record, owner) = (record(socket, &self.locked), owner.unwrap_or_default());
            let _ = self.file.set_content(&format!("{record}{owner}\n"));
        }
    }
}

/// Returns the content of a lock file up to the process. A later socket can have the same inode number, but
/// not the same time. A copy of the lock file has another inode number than the content says.
fn record(socket: &str, locked: &Metadata) -> String {
    format!("{RECORD} {socket}, lock {}, process ", locked.ino())
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if self.is_of_this_process() {
            remove_same(&self.path, (self.locked.dev(), self.locked.ino()));
        }
    }
}

/// Removes a file if it still has this device and inode.
pub fn remove_same(path: &Path, same: (u64, u64)) {
    if inode(path).is_ok_and(|inode| inode == same) {
        // An error here has no consequence.
        let _ = fs::remove_file(path);
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let there = fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()))
}

fn identity(socket: &Metadata) -> String {
    let (device, inode) = (socket.dev(), socket.ino());
    format!("{device} {inode} {} {}", socket.mtime(), socket.mtime_nsec())
}

/// Returns `true` if no other user can have written the file.
fn is_own(locked: &Metadata) -> bool {
    locked.uid() == crate::effective_uid() && locked.mode() & 0o022 == 0
}

/// Returns `true` if the process that the lock file names is dead, although it has the lock.
fn is_left_by_dead(file: &LockFile) -> bool {
    let look =
        || file.content().ok().filter(|content| names_dead(&String::from_utf8_lossy(content)));
    let Some(content) = look() else { return false };
    thread::sleep(LOOK_AGAIN_AFTER);
    look() == Some(content)
}

/// Returns `true` if a lock file's content names a dead process.
fn names_dead(content: &str) -> bool {
    let process = content.strip_prefix(RECORD).and_then(|rest| rest.rsplit_once(", process "));
    let owner = process.and_then(|(_, owner)| Owner::parse(owner));
    // Without an answer the process counts as alive.
    owner.and_then(|owner| bounded::look(move || owner.is_dead())).unwrap_or(false)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn take_beside(content: &str) -> (bool, io::Result<()>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let old = LockFile::open(&dir.path().join("socket.lock")).unwrap();
        assert!(old.try_lock().unwrap());
        old.set_content(content).unwrap();
        let taken = SocketLock::take(&socket);
        let is_replaced = old.metadata().unwrap().nlink() == 0;
        (is_replaced, taken.map(drop))
    }

    #[test]
    fn a_lock_that_a_dead_process_still_has_is_taken_over() {
        let alive = Owner::this_process().unwrap().to_string();
        // A process that has the same identifier now is another one.
        let dead = alive.replacen(" of ", " of 1", 1);
        let record = |owner: &str| format!("{RECORD} 1 2 3 4, lock 5, process {owner}\n");
        let (is_replaced, taken) = take_beside(&record(&dead));
        assert!(is_replaced && taken.is_ok(), "{taken:?}");
        let elsewhere = dead.replacen("pid:[", "pid:[1", 1);
        let other = format!("other {}", record(&dead));
        for content in [record(&alive), record(&elsewhere), String::new(), other] {
            let (is_replaced, taken) = take_beside(&content);
            assert!(!is_replaced, "{content}");
            assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse, "{content}");
        }
    }

    #[test]
    fn a_lock_names_the_socket_of_the_server_that_had_it() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        fs::write(&socket, b"").unwrap();
        let there = fs::metadata(&socket).unwrap();
        let lock = SocketLock::take(&socket).unwrap();
        assert!(!lock.names(&there));
        assert_eq!(SocketLock::take(&socket).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        lock.name(&there);
        // As a killed server leaves it.
        let kept = dir.path().join("kept");
        fs::hard_link(lock.path(), &kept).unwrap();
        let path = lock.path().to_owned();
        drop(lock);
        assert!(!path.exists());
        fs::rename(&kept, &path).unwrap();
        assert!(SocketLock::take(&socket).unwrap().names(&there));
    }
}
