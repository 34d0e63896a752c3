//! The socket on which a server listens.

use std::env;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use longshore_sys::socket_lock::{SocketLock, remove_same};
use longshore_sys::{file, packet_socket, service_manager};

use crate::error::{Error, Result};

/// The variable that names the socket if no argument does.
pub const SOCKET_VARIABLE: &str = "LONGSHORE_SOCKET";
/// The name of the socket among several that a service manager passes.
pub const ACTIVATION_NAME: &str = "longshore";

const SYSTEM_SOCKET: &str = "/run/longshore/serve.sock";
/// The most connections that wait to be accepted.
const BACKLOG: u16 = 128;

/// Returns the socket on which a server of this user listens by default: `$LONGSHORE_SOCKET`; else
/// `/run/longshore/serve.sock` for root and `$XDG_RUNTIME_DIR/longshore/serve.sock` for other users.
///
/// # Errors
/// [`Error::NoDefaultSocket`] if neither variable is set and the user is not root.
pub fn default_socket() -> Result<PathBuf> {
    if let Some(socket) = variable(SOCKET_VARIABLE) {
        return Ok(socket);
    }
    if longshore_sys::effective_uid() == 0 {
        return Ok(SYSTEM_SOCKET.into());
    }
    let directory = variable("XDG_RUNTIME_DIR").ok_or(Error::NoDefaultSocket)?;
    Ok(directory.join("longshore/serve.sock"))
}

/// Returns the socket of the server that a client uses by default: `$LONGSHORE_SOCKET`; else
/// [`default_socket`] if it exists; else the system's socket if that exists; else
/// [`default_socket`].
///
/// # Errors
/// [`Error::NoDefaultServer`] if there is neither a socket of this user nor of the system, and
/// [`default_socket`] fails.
pub fn default_server() -> Result<PathBuf> {
    let system = Path::new(SYSTEM_SOCKET);
    if let Some(socket) = variable(SOCKET_VARIABLE) {
        return Ok(socket);
    }
    match default_socket() {
        Ok(own) if own.exists() || !system.exists() => Ok(own),
        Err(_) if !system.exists() => Err(Error::NoDefaultServer { system: system.to_owned() }),
        _ => Ok(system.to_owned()),
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A socket to serve on.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    made: Option<Made>,
}

/// A socket that this process made, and that is removed with the listener.
#[derive(Debug)]
struct Made {
    path: PathBuf,
    inode: (u64, u64),
    lock: SocketLock,
}

impl Listener {
    /// Listens at `path`, with the permissions `mode`. Replaces the socket of a server that was killed,
    /// and leaves any other file alone.
    ///
    /// A lock file beside the socket belongs to this process: a forked child cannot serve.
    ///
    /// # Errors
    /// [`Error::AlreadyServed`], [`Error::NotASocket`], [`Error::NoSocketDirectory`],
    /// [`Error::SocketPathTooLong`], [`Error::Kernel`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self> {
        let path = std::path::absolute(path).map_err(Error::kernel("finding the socket's path"))?;
        // Of two servers that start at once, one gets the lock, and the other finds a server that is
        // alive.
        let lock = take_lock(&path)?;
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Error::kernel_at("looking at", &path)(error));
            }
            Ok(there) if !there.file_type().is_socket() => {
                let kind = described(there.file_type());
                return Err(Error::NotASocket { socket: path, kind });
            }
            Ok(there) if lock.names(&there) => remove_dead(&path)?,
            Ok(_) => remove_if_dead(&path)?,
        }
        let failed = || Error::kernel_at("making the socket", &path);
        let listening = packet_socket::listen(&path, mode, BACKLOG);
        let socket = listening.map_err(|source| match source.kind() {
            ErrorKind::InvalidFilename => {
                let max_bytes = packet_socket::PATH_BYTES_MAX;
                Error::SocketPathTooLong { socket: path.clone(), max_bytes }
            }
            _ => failed()(source),
        })?;
        let there = fs::symlink_metadata(&path).map_err(failed())?;
        lock.name(&there);
        let inode = (there.dev(), there.ino());
        Ok(Self { socket, made: Some(Made { path, inode, lock }) })
    }

    /// Listens at [`default_socket`], and makes its directory: with access for this user only, unless
    /// `mode` lets others use the socket.
    ///
    /// # Errors
    /// Those of [`Self::bind`] and [`default_socket`]; [`Error::Kernel`] if the directory cannot be
    /// made, or is a symbolic link.
    pub fn bind_default(mode: u32) -> Result<Self> {
        let path = default_socket()?;
        if variable(SOCKET_VARIABLE).is_none()
            && let Some(directory) = path.parent()
        {
            let permissions = if mode & 0o077 == 0 { 0o700 } else { 0o711 };
            make_directory(directory, permissions)
                .map_err(Error::kernel_at("making the directory", directory))?;
        }
        Self::bind(&path, mode)
    }

    /// Returns the socket that a service manager passed, if it did: the only one, or the one with the
    /// name [`ACTIVATION_NAME`]. It stays when the server ends.
    ///
    /// # Errors
    /// [`Error::Kernel`] if it is not a listening socket of the right kind.
    pub fn inherited() -> Result<Option<Self>> {
        let failed = || Error::kernel("taking over the socket of the service manager");
        let mut handed = service_manager::take_descriptors().map_err(failed())?;
        if handed.len() > 1 {
            handed.retain(|(name, _)| name == ACTIVATION_NAME);
            if handed.len() != 1 {
                let reason = format!("of several sockets one must be called '{ACTIVATION_NAME}'");
                return Err(failed()(io::Error::new(ErrorKind::InvalidInput, reason)));
            }
        }
        let Some((_, socket)) = handed.pop() else { return Ok(None) };
        if !packet_socket::is_listening(&socket).unwrap_or(false) {
            let reason =
                "it is no listening Unix socket of sequenced packets (ListenSequentialPacket=)";
            return Err(failed()(io::Error::new(ErrorKind::InvalidInput, reason)));
        }
        packet_socket::set_nonblocking(&socket).map_err(failed())?;
        Ok(Some(Self { socket, made: None }))
    }

    /// Checks that this process took the lock, not one that forked it.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.made.as_ref().is_none_or(|made| made.lock.is_of_this_process()) {
            return Ok(());
        }
        let reason = "another process has made the socket, and forked this one; make it in the \
                      process that serves";
        Err(Error::kernel("serving")(io::Error::other(reason)))
    }

    /// Ends it: removes the socket's name, so that clients that connect find no server. Returns the
    /// socket, with the connections that were not accepted. Closing it can take long.
    pub(crate) fn end(self) -> OwnedFd {
        if self.made.is_some() {
            packet_socket::shut_down(&self.socket);
        }
        self.socket
    }

    /// Returns the path at which it listens, or `None` if a service manager made the socket.
    pub fn path(&self) -> Option<&Path> {
        self.made.as_ref().map(|made| made.path.as_path())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Removes the socket, if it is still the one that was made; then the lock is dropped. A forked child
/// leaves both to the process that made them.
impl Drop for Made {
    fn drop(&mut self) {
        if self.lock.is_of_this_process() {
            remove_same(&self.path, self.inode);
        }
    }
}

fn take_lock(socket: &Path) -> Result<SocketLock> {
    let no_directory = || socket.parent().filter(|directory| !directory.exists());
    SocketLock::take(socket).map_err(|source| match (source.kind(), no_directory()) {
        (ErrorKind::AddrInUse, _) => Error::AlreadyServed { socket: socket.to_owned() },
        (ErrorKind::NotFound, Some(directory)) => {
            Error::NoSocketDirectory { directory: directory.to_owned() }
        }
        _ => Error::kernel_at("locking the lock file of", socket)(source),
    })
}

fn remove_dead(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        // It was removed meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(Error::kernel_at("removing the dead socket", path)),
    }
}

/// Removes a socket that refuses connections. A server that takes no lock may listen there.
fn remove_if_dead(path: &Path) -> Result<()> {
    match packet_socket::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => remove_dead(path),
        // It was removed meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        _ => Err(Error::AlreadyServed { socket: path.to_owned() }),
    }
}

/// Makes a directory, and sets these permissions even if it exists. Its name may meanwhile lead to
/// another directory, so the permissions are set on the opened one.
fn make_directory(path: &Path, permissions: u32) -> io::Result<()> {
    match DirBuilder::new().mode(permissions).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let directory = File::from(file::open_directory_itself(path)?);
    directory.set_permissions(Permissions::from_mode(permissions))
}

pub(crate) fn described(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_file() {
        "a regular file"
    } else {
        "a FIFO or device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_made_once_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path, 0o600).unwrap();
        assert_eq!(listener.path(), Some(path.as_path()));
        let second = Listener::bind(&path, 0o600).unwrap_err();
        assert!(matches!(second, Error::AlreadyServed { .. }), "{second}");
        drop(listener);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "neither socket nor lock");
    }

    #[test]
    fn permissions_are_set_on_the_directory_itself_only() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let (own, other) = (dir.path().join("longshore"), dir.path().join("other"));
        make_directory(&own, 0o711).unwrap();
        assert_eq!(mode(&own), 0o711);
        make_directory(&own, 0o700).unwrap();
        assert_eq!(mode(&own), 0o700, "it existed");

        // The name now leads to another directory.
        fs::remove_dir(&own).unwrap();
        DirBuilder::new().mode(0o755).create(&other).unwrap();
        std::os::unix::fs::symlink(&other, &own).unwrap();
        make_directory(&own, 0o700).unwrap_err();
        assert_eq!(mode(&other), 0o755);
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(packet_socket::listen(&path, 0o600, 1).unwrap());
        assert!(path.exists(), "as after a kill");
        let listener = Listener::bind(&path, 0o600).unwrap();
        drop(listener);
        let alive = packet_socket::listen(&path, 0o600, 1).unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(Error::AlreadyServed { .. })));
        drop(alive);
        fs::remove_file(&path).unwrap();
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(Error::AlreadyServed { .. })));
        drop(other);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"precious").unwrap();
        let refused = Listener::bind(&path, 0o600).unwrap_err().to_string();
        assert!(refused.contains("a regular file") && refused.contains("is left"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no lock is left");
    }

    #[test]
    fn a_socket_that_was_replaced_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::bind(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"another's").unwrap();
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn another_file_in_place_of_the_lock_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, lock) = (dir.path().join("socket"), dir.path().join("socket.lock"));
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &lock).unwrap();
        let refused = Listener::bind(&path, 0o600).unwrap_err();
        assert!(matches!(refused, Error::Kernel { .. }), "{refused}");
        assert!(lock.is_symlink() && !dir.path().join("elsewhere").exists());
        fs::remove_file(&lock).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&lock).unwrap();
        assert!(Listener::bind(&path, 0o600).is_err());
        assert!(lock.exists() && !path.exists());
    }

    /// Listens at `path` without the lock, after `change` has changed a lock file that names the socket.
    fn bind_beside_living(path: &Path, change: impl FnOnce(&Path)) -> Result<Listener> {
        let living = packet_socket::listen(path, 0o600, 1).unwrap();
        let there = fs::symlink_metadata(path).unwrap();
        let lock = SocketLock::take(path).unwrap();
        lock.name(&there);
        // As a killed server leaves it.
        let lock_path = lock.path().to_owned();
        let kept = lock_path.with_extension("kept");
        fs::hard_link(&lock_path, &kept).unwrap();
        drop(lock);
        fs::rename(&kept, &lock_path).unwrap();
        change(&lock_path);
        let bound = Listener::bind(path, 0o600);
        drop(living);
        bound
    }

    #[test]
    fn only_the_lock_file_that_names_a_socket_shows_that_its_server_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let is_replaced = |name: &str, change: &dyn Fn(&Path)| {
            let bound = bind_beside_living(&path(name), change);
            assert!(matches!(bound, Ok(_) | Err(Error::AlreadyServed { .. })), "{bound:?}");
            bound.is_ok()
        };
        assert!(is_replaced("same", &|_| {}));
        let copy = |lock: &Path| {
            fs::copy(lock, path("copy")).unwrap();
            fs::rename(path("copy"), lock).unwrap();
        };
        assert!(!is_replaced("copied", &copy));
        assert!(!is_replaced("emptied", &|lock| fs::write(lock, b"").unwrap()));
        let open = |lock: &Path| fs::set_permissions(lock, Permissions::from_mode(0o622)).unwrap();
        assert!(!is_replaced("open to all", &open));
        if longshore_sys::effective_uid() != 0 {
            return println!("SKIPPED: without being root no file can be another user's");
        }
        let give = |lock: &Path| std::os::unix::fs::chown(lock, Some(2002), None).unwrap();
        assert!(!is_replaced("another user's", &give));
    }

    #[test]
    fn a_file_that_is_no_lock_file_keeps_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("socket"), dir.path().join("other"));
        let lock = dir.path().join("socket.lock");
        for content in ["", "precious"] {
            fs::write(&other, content).unwrap();
            fs::hard_link(&other, &lock).unwrap();
            drop(Listener::bind(&path, 0o600).unwrap());
            assert_eq!(fs::read_to_string(&other).unwrap(), content);
            fs::write(&lock, content).unwrap();
            let listener = Listener::bind(&path, 0o600).unwrap();
            assert_eq!(fs::read_to_string(&lock).unwrap() == content, !content.is_empty());
            drop(listener);
        }
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let path = env::temp_dir().join("x".repeat(120));
        let refused = Listener::bind(&path, 0o600).unwrap_err().to_string();
        assert!(refused.contains("longer than 107 bytes"), "{refused}");
    }
}
