//! A Unix socket that clients connect to.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longshore_sys::closing::Disposable;
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::client::stop::Stop;

/// How long to wait before `accept(2)` is tried again that failed for a lack of descriptors or memory.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A Unix socket that clients connect to. Its name is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    /// Its close also closes the connections that were not accepted, with what is queued on them.
    listener: Disposable<UnixListener>,
    path: PathBuf,
    /// Device and inode of the name.
    identity: (u64, u64),
}

impl Listener {
    /// Makes a socket at `path`, and replaces a socket there on which no process listens.
    ///
    /// # Errors
    /// Those of `bind(2)`: `AddrInUse` if a process listens there, or a file is there that is no socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let bound = UnixListener::bind(path).or_else(|error| {
            let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
            let is_deaf = || {
                // Connections that nobody accepts may fill the backlog.
                let tried = unix_socket::connect_at_once(path);
                tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            };
            if error.kind() != io::ErrorKind::AddrInUse || !is_socket || !is_deaf() {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        })?;
        bound.set_nonblocking(true)?;
        let name = fs::symlink_metadata(path)?;
        let listener = Disposable::new(bound);
        Ok(Self { listener, path: path.to_owned(), identity: (name.dev(), name.ino()) })
    }

    /// Waits for the next client and returns its connection, or `None` when `stop` is used. While the
    /// process has no free descriptor, clients wait.
    ///
    /// # Errors
    /// Those of `accept(2)`.
    pub fn accept(&self, stop: &Stop) -> io::Result<Option<UnixStream>> {
        loop {
            if stop.is_stopped() {
                return Ok(None);
            }
            match self.listener.accept() {
                Ok((stream, _)) => return Ok(Some(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The client closed it before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if unix_socket::is_for_now(&error) => {
                    unix_socket::wait(
                        stop.as_fd(),
                        Interest::Receive,
                        &[],
                        Some(Instant::now() + RETRY_AFTER),
                    )?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let listener = self.listener.as_fd();
            if let Ready::Event(_) =
                unix_socket::wait(listener, Interest::Receive, &[stop.as_fd()], None)?
            {
                return Ok(None);
            }
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another one may have taken its name.
        let ours = fs::symlink_metadata(&self.path);
        if ours.is_ok_and(|it| (it.dev(), it.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A test fails when this is over.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_socket_whose_backlog_is_full_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match unix_socket::connect_at_once(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let (bound, is_bound) = mpsc::channel();
        thread::spawn(move || bound.send(Listener::bind(&path).map(drop)));
        let refused = is_bound.recv_timeout(PATIENCE).expect("it waits for room").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}
