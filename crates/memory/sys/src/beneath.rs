//! Files beneath a directory (`openat2(2)`), and the identity of files behind descriptors of other
//! processes.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::file::{self, Identity, Kind};
use crate::openat2::openat2;
use crate::retry_interrupted;

/// The maximum number of symbolic links that [`locate`] follows from one name, as in the kernel.
pub const LINKS_MAX: u32 = 40;

/// The files that a name may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Files beneath the directory and on the same mount, because the file system of another mount may
    /// not answer.
    ///
    /// Only the last component may be a symbolic link, whose target may begin with `..`. No other `..`
    /// or link is resolved. Otherwise a name such as `private/sub/../../model` would reveal that
    /// `private/sub` exists to a user who may not search `private`.
    Beneath,
    /// All files, through every `..` and symbolic link, except the magic links of `/proc`.
    Anywhere,
}

/// The state of a descriptor, as far as the kernel knows it without asking the file system. The server
/// of that may answer late or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The kind of the file.
    pub kind: Kind,
    /// The file's device, inode number and time of birth ([`crate::file::Version::identity`]).
    pub identity: Identity,
    /// `true` if the file can be read through this descriptor; then the kernel has permitted its opener
    /// to read it.
    pub is_readable: bool,
}

/// Opens a directory as a starting point for [`locate`].
///
/// # Errors
/// Those of `open(2)`.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_interrupted(|| Ok(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Finds the file `name` in `directory` without opening it (`O_PATH`), which has no effect on FIFOs and
/// devices. While the descriptor is open, the inode stays in use and its number is not given to another
/// file.
///
/// # Errors
/// `EXDEV` if the name leads out of the directory or into another mount; `ELOOP` if it has a `..` or a
/// symbolic link where [`Reach::Beneath`] permits none; `Unsupported` if the kernel (before Linux 5.6) or a
/// seccomp filter does not support `openat2`; those of `open(2)` and `readlink(2)`.
pub fn locate(directory: impl AsFd, name: &Path, reach: Reach) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    if reach == Reach::Anywhere {
        return find(directory, name, OFlags::empty(), ResolveFlags::NO_MAGICLINKS);
    }
    locate_counted(directory, name, LINKS_MAX).map(|(located, _)| located)
}

/// Finds a file as [`locate`] does with [`Reach::Beneath`], through at most `links_max` symbolic links, and
/// returns the number of them.
///
/// # Errors
/// `ELOOP` if there are more links; those of [`locate`].
pub fn locate_counted(
    directory: impl AsFd,
    name: &Path,
    links_max: u32,
) -> io::Result<(OwnedFd, u32)> {
    let directory = directory.as_fd();
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let mut name = joined(Path::new(""), name)?;
    for links in 0..=links_max {
        let located = find(directory, &name, OFlags::NOFOLLOW, resolve)?;
        if !is_link(located.as_fd())? {
            return Ok((located, links));
        }
        // Read the link through its descriptor, because its name may be another file by now.
        let target = rustix::fs::readlinkat(&located, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        name = joined(name.parent().unwrap_or(Path::new("")), target)?;
    }
    Err(Errno::LOOP.into())
}

/// Returns the present path of an open file or directory; for a file that was deleted, with ` (deleted)` at
/// the end.
///
/// # Errors
/// `ENOENT` if `/proc` is not mounted; those of `readlink(2)`.
pub fn path_of(file: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// Returns `true` if [`locate`] failed with `ELOOP`.
pub fn is_loop(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Returns `true` if [`locate`] failed because the name leads out of the directory, into another mount,
/// or through a symbolic link that is not permitted.
pub fn leads_out(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::LOOP | Errno::XDEV))
}

/// Finds a file without opening it.
fn find(
    directory: BorrowedFd<'_>,
    name: &Path,
    extra: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | extra;
    openat2(directory, name, flags, Mode::empty(), resolve)
}

fn is_link(located: BorrowedFd<'_>) -> io::Result<bool> {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let answer = rustix::fs::statx(located, "", how, StatxFlags::TYPE)?;
    Ok(FileType::from_raw_mode(answer.stx_mode.into()) == FileType::Symlink)
}

/// Returns the relative path of `name` in `base`, which is `.` for the directory itself. No component
/// is a symbolic link, except perhaps the last one of `name`.
///
/// Each `..` at the beginning of `name` takes a component off `base`. The kernel does the same because
/// `base` has no links. After another component, the kernel's answer would depend on that directory.
///
/// # Errors
/// `ENOENT` if `name` is empty, `EXDEV` if it leads out or is absolute, `ELOOP` if it has a `..` after
/// another component.
fn joined(base: &Path, name: &Path) -> io::Result<PathBuf> {
    if name.as_os_str().is_empty() {
        return Err(Errno::NOENT.into());
    }
    let mut path = base.to_owned();
    let mut is_beginning = true;
    for component in name.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(component) => {
                is_beginning = false;
                path.push(component);
            }
            Component::ParentDir if !is_beginning => return Err(Errno::LOOP.into()),
            Component::ParentDir if path.pop() => {}
            _ => return Err(Errno::XDEV.into()),
        }
    }
    Ok(if path.as_os_str().is_empty() { ".".into() } else { path })
}

/// Opens the regular file at `path` for reading. It never opens a file of another kind, because opening
/// a device can have side effects.
///
/// # Errors
/// Those of `open(2)` and [`open_located`].
pub fn open_regular(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let located = retry_interrupted(|| Ok(rustix::fs::open(path, flags, Mode::empty())?))?;
    open_located(&located).map_err(|error| match can_open_located(&located) {
        true => error,
        false => io::Error::other("/proc is not mounted, by which files are opened"),
    })
}

/// Opens for reading a regular file that [`locate`] found: that inode, even if its name is another file
/// by now. It does not wait for a lease (`F_SETLEASE`) of another process.
///
/// It opens the descriptor's link in `/proc/self/fd`, which needs `/proc`. There is no fallback, because
/// the file's own name may be a FIFO by now, and opening that has side effects.
///
/// # Errors
/// `InvalidInput` if it is not a regular file, `ENOENT` if `/proc` is not mounted; those of `open(2)`.
pub fn open_located(located: impl AsFd) -> io::Result<OwnedFd> {
    let located = located.as_fd();
    let kind = file::status(located)?.kind;
    if kind != Kind::Regular {
        let message = format!("it is {}, not a regular file", kind.described());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let link = link_of(located);
    retry_interrupted(|| Ok(rustix::fs::open(link.as_str(), flags, Mode::empty())?))
}

/// Returns `true` if [`open_located`] works in this process, which needs a mounted `/proc`.
pub fn can_open_located(located: impl AsFd) -> bool {
    rustix::fs::lstat(link_of(located.as_fd()).as_str()).is_ok()
}

fn link_of(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Returns the state of a descriptor that came from another process. It does not block.
///
/// # Errors
/// Those of `statx(2)` and `fcntl(2)`.
pub fn examine(handed: impl AsFd) -> io::Result<Handed> {
    let handed = handed.as_fd();
    let flags = rustix::fs::fcntl_getfl(handed)?;
    let access = flags & OFlags::RWMODE;
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::BTIME;
    let answer = rustix::fs::statx(handed, "", how, wanted)?;
    Ok(Handed {
        kind: file::kind_of(FileType::from_raw_mode(answer.stx_mode.into())),
        identity: Identity::of(&answer),
        is_readable: !flags.contains(OFlags::PATH)
            && (access == OFlags::RDONLY || access == OFlags::RDWR),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_name_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), b"secret").unwrap();
        fs::write(root.join("model"), b"model").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("../model", root.join("sub/in")).unwrap();
        symlink(root.join("model"), root.join("absolute")).unwrap();
        symlink("sub/../../secret", root.join("down and out")).unwrap();
        let from = open_directory(&root).unwrap();
        let beneath = |name: &str| locate(&from, Path::new(name), Reach::Beneath);
        for name in ["model", "sub/in", "./model", ".", "sub/"] {
            assert!(beneath(name).is_ok(), "{name}");
        }
        for name in ["..", "../secret", "out", "absolute", "/etc/passwd"] {
            let refused = beneath(name).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EXDEV), "{name}");
        }
        for name in ["sub/../../secret", "down and out"] {
            assert!(is_loop(&beneath(name).unwrap_err()), "{name}");
        }
        assert_eq!(beneath("absent").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(locate(&from, Path::new("out"), Reach::Anywhere).is_ok());
        assert!(locate(&from, Path::new("/proc/self/fd/0"), Reach::Anywhere).is_err());
    }

    #[test]
    fn only_the_last_component_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["blobs", "snapshots/1", "private/sub"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        fs::write(dir.path().join("blobs/hash"), b"model").unwrap();
        for (target, name) in [
            ("../../blobs/hash", "snapshots/1/model"),
            ("./1/model", "snapshots/twice"),
            ("snapshots", "folder"),
            ("folder/1/model", "through"),
            ("private/sub/../../blobs/hash", "probe"),
            ("private/absent/../../blobs/hash", "absent"),
            ("loop", "loop"),
        ] {
            symlink(target, dir.path().join(name)).unwrap();
        }
        let from = open_directory(dir.path()).unwrap();
        let found = |name: &str| {
            let located = locate(&from, Path::new(name), Reach::Beneath)?;
            file::status(located).map(|found| found.version)
        };
        let model = found("blobs/hash").unwrap();
        for name in ["snapshots/1/model", "snapshots/twice"] {
            assert_eq!(found(name).unwrap(), model, "{name}");
        }
        for name in [
            "folder/1/model",
            "through",
            "probe",
            "absent",
            "private/sub/../../blobs/hash",
            "private/absent/../../blobs/hash",
            "loop",
        ] {
            assert!(is_loop(&found(name).unwrap_err()), "{name}");
        }
        let last = format!("link{LINKS_MAX}");
        symlink("blobs/hash", dir.path().join("link1")).unwrap();
        for number in 1..=LINKS_MAX {
            let name = dir.path().join(format!("link{}", number + 1));
            symlink(format!("link{number}"), name).unwrap();
        }
        assert_eq!(found(&last).unwrap(), model);
        let more = found(&format!("link{}", LINKS_MAX + 1)).unwrap_err();
        assert!(is_loop(&more));
        let counted = |max| locate_counted(&from, Path::new("link2"), max);
        assert_eq!(counted(2).unwrap().1, 2);
        assert!(is_loop(&counted(1).unwrap_err()));
    }

    #[test]
    fn no_name_leads_into_another_mount() {
        let from = open_directory(Path::new("/")).unwrap();
        let root = file::status(&from).unwrap().version.identity().device;
        let proc = file::status(open_directory(Path::new("/proc")).unwrap()).unwrap();
        if proc.version.identity().device == root {
            println!("SKIPPED: /proc is not a mount of its own");
            return;
        }
        for name in ["proc", "proc/self/status", "proc/absent"] {
            let refused = locate(&from, Path::new(name), Reach::Beneath).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EXDEV), "{name}");
        }
        assert!(locate(&from, Path::new("proc"), Reach::Anywhere).is_ok());
    }

    #[test]
    fn the_inode_that_was_located_is_opened_and_only_if_it_is_regular() {
        let dir = tempfile::tempdir().unwrap();
        let from = open_directory(dir.path()).unwrap();
        assert!(can_open_located(&from));
        let located = |name: &str| locate(&from, Path::new(name), Reach::Beneath).unwrap();
        fs::write(dir.path().join("model"), b"model").unwrap();
        let first = located("model");
        fs::rename(dir.path().join("model"), dir.path().join("moved")).unwrap();
        fs::write(dir.path().join("model"), b"another").unwrap();
        let opened = open_located(&first).unwrap();
        assert_eq!(
            file::status(&opened).unwrap().version,
            file::status(&first).unwrap().version,
            "the name leads to another file by now"
        );
        assert_eq!(file::status(&opened).unwrap().version.len_bytes(), 5);
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        for name in ["fifo", "."] {
            let refused = open_located(located(name)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }

    #[test]
    fn a_descriptor_proves_access_only_if_it_is_readable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        fs::write(&path, b"model").unwrap();
        let readable = examine(file::open(&path).unwrap()).unwrap();
        assert!(readable.is_readable);
        assert_eq!(readable.kind, Kind::Regular);
        let status = file::status(file::open(&path).unwrap()).unwrap();
        assert_eq!(readable.identity, status.version.identity());
        let open = |flags| rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        assert!(!examine(open(OFlags::PATH)).unwrap().is_readable);
        assert!(!examine(open(OFlags::WRONLY)).unwrap().is_readable);
        assert!(examine(open(OFlags::RDWR)).unwrap().is_readable);
    }
}
