//! Where a server listens.

use std::env;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use longshore_sys::{file, packet_socket, service_manager};

use crate::error::{Error, Result};

/// The variable that names the socket where nothing else does.
pub const SOCKET_VARIABLE: &str = "LONGSHORE_SOCKET";
/// The name of the socket that a service manager hands over, where it hands over several.
pub const ACTIVATION_NAME: &str = "longshore";

const SYSTEM_SOCKET: &str = "/run/longshore/serve.sock";
/// Connections that wait to be accepted.
const BACKLOG: u16 = 128;

/// Where a server of this user listens unless it is said: `$LONGSHORE_SOCKET`;
/// `/run/longshore/serve.sock` for root; `$XDG_RUNTIME_DIR/longshore/serve.sock` for anybody else.
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

/// A socket that was made here, and goes with the listener.
#[derive(Debug)]
struct Made {
    path: PathBuf,
    inode: (u64, u64),
    _lock: Lock,
}

/// The right to replace a dead socket, and the sign that this one is alive.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Listener {
    /// Listens at `path`, with the permissions `mode`. A socket of a server that was killed is
    /// replaced; anything else that is there is left alone.
    ///
    /// # Errors
    /// [`Error::AlreadyServed`], [`Error::NotASocket`], [`Error::NoSocketDirectory`],
    /// [`Error::Kernel`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self> {
        let path = std::path::absolute(path).map_err(Error::kernel("finding the socket's path"))?;
        // Two that begin at once: one has the lock, and what the other finds is alive.
        let lock = Lock::take(&path)?;
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Error::kernel(format!("looking at {}", path.display()))(error));
            }
            Ok(there) if !there.file_type().is_socket() => {
                let kind = described(there.file_type());
                return Err(Error::NotASocket { socket: path, kind });
            }
            Ok(_) => remove_if_dead(&path)?,
        }
        let failed = format!("making the socket {}", path.display());
        let socket = packet_socket::listen(&path, mode, BACKLOG).map_err(|source| {
            let operation = match source.kind() {
                ErrorKind::InvalidFilename => {
                    let max = packet_socket::PATH_BYTES_MAX;
                    format!("{failed}, whose path is longer than {max} bytes,")
                }
                _ => failed.clone(),
            };
            Error::Kernel { operation, source }
        })?;
        let inode = inode(&path).map_err(Error::kernel(failed))?;
        Ok(Self { socket, made: Some(Made { path, inode, _lock: lock }) })
    }

    /// Listens at [`default_socket`], in a directory of its own, which is made: open to this user
    /// only, unless `mode` lets others use the socket.
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
                .map_err(Error::kernel(format!("making the directory {}", directory.display())))?;
        }
        Self::bind(&path, mode)
    }

    /// The socket that a service manager handed over, if it did: the only one, or the one that is
    /// called [`ACTIVATION_NAME`]. It stays when the server ends.
    ///
    /// # Errors
    /// [`Error::Kernel`] where what was handed over is no listening socket of the right kind.
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

    /// Ends it: the socket's name goes, and clients that connect find no server. Returns the socket,
    /// with the connections that were not accepted. To close it can take long.
    pub(crate) fn end(self) -> OwnedFd {
        if self.made.is_some() {
            packet_socket::shut_down(&self.socket);
        }
        self.socket
    }

    /// The path it listens at; `None` where a service manager made the socket.
    pub fn path(&self) -> Option<&Path> {
        self.made.as_ref().map(|made| made.path.as_path())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The socket goes, if it is still the one that was made; then its field, the lock.
impl Drop for Made {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // There is nobody to tell.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Lock {
    fn take(socket: &Path) -> Result<Self> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = || Error::kernel(format!("locking {}", path.display()));
        loop {
            let file = file::open_lock(&path).map_err(|source| match path.parent() {
                Some(directory) if source.kind() == ErrorKind::NotFound && !directory.exists() => {
                    Error::NoSocketDirectory { directory: directory.to_owned() }
                }
                _ => failed()(source),
            });
            let file = File::from(file?);
            let locked = file.metadata().map_err(failed())?;
            if !locked.is_file() {
                let kind = described(locked.file_type());
                let reason = format!("it is {kind}, and is left as it is");
                return Err(failed()(io::Error::new(ErrorKind::InvalidInput, reason)));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::AlreadyServed { socket: socket.to_owned() });
                }
                Err(TryLockError::Error(error)) => return Err(failed()(error)),
            }
            // Whoever had it before may have removed it meanwhile: then it locks nothing.
            if inode(&path).is_ok_and(|inode| inode == (locked.dev(), locked.ino())) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

/// A server that is not of this kind may listen there, without a lock.
fn remove_if_dead(path: &Path) -> Result<()> {
    match packet_socket::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(Error::kernel(format!("removing the dead socket {}", path.display()))),
        // It went meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        _ => Err(Error::AlreadyServed { socket: path.to_owned() }),
    }
}

/// Makes a directory with these permissions, which it gets also if it exists. Its name may lead to
/// another directory meanwhile, so the permissions are those of the one that was opened.
fn make_directory(path: &Path, permissions: u32) -> io::Result<()> {
    match DirBuilder::new().mode(permissions).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let directory = File::from(file::open_directory_itself(path)?);
    directory.set_permissions(Permissions::from_mode(permissions))
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let there = fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()))
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
    fn only_a_directory_itself_gets_the_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let (own, other) = (dir.path().join("longshore"), dir.path().join("other"));
        make_directory(&own, 0o711).unwrap();
        assert_eq!(mode(&own), 0o711);
        make_directory(&own, 0o700).unwrap();
        assert_eq!(mode(&own), 0o700, "it was there");

        // Its name leads elsewhere by now.
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
    fn what_stands_where_the_lock_should_be_is_left_alone() {
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

    #[test]
    fn a_path_that_is_too_long_is_told() {
        let path = env::temp_dir().join("x".repeat(120));
        let refused = Listener::bind(&path, 0o600).unwrap_err().to_string();
        assert!(refused.contains("longer than 107 bytes"), "{refused}");
    }
}
