//! Directories by descriptor: names that no other user can redirect by a symbolic link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags,
    StatxFlags,
};
use rustix::io::Errno;

use crate::openat2::openat2;
use crate::{beneath, effective_uid, file_use};

mod access;

pub use access::{
    Access, Attributes, GivenAccess, access, attributes, given_access, remove_access_lists,
    set_access, set_group, set_mode,
};

/// The number of nested directories that [`remove_all`] has open at most.
const DEPTH_MAX: u32 = 64;

/// The kind of an entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A file of any other kind.
    File,
}

/// Opens a directory. No component of the path may be a symbolic link.
///
/// # Errors
/// `ELOOP` if a component is a symbolic link, `ENOTDIR` if it is not a directory, `Unsupported` if the kernel
/// or a seccomp filter does not support `openat2`; those of `open(2)`.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    open_by(CWD, path, ResolveFlags::NO_SYMLINKS)
}

/// Opens a directory. Symbolic links are followed.
///
/// # Errors
/// `ENOTDIR` if it is not a directory, also for a FIFO, which is not waited for; those of `open(2)`.
pub fn open_followed(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a directory by its name in another one. The name may not be a symbolic link or a mount point.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` for a symbolic link, `EXDEV` for a mount point; those of `openat2(2)`.
pub fn open_in(directory: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    open_by(directory.as_fd(), name, resolve)
}

/// Opens a directory as a starting point for other calls (`O_PATH`), for which it need not be readable. No
/// component of the path may be a symbolic link.
///
/// # Errors
/// `ELOOP` if a component is a symbolic link, `ENOTDIR` if it is not a directory; those of `openat2(2)`.
pub fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

/// Returns the attributes of all directories above an open file or directory, from the root on.
///
/// The directories are opened one in the other by the file's present path, and the last name must be that
/// of the file. So a user who renames some of them meanwhile can cause an error, but no attributes of other
/// directories.
///
/// # Errors
/// `NotFound` if the path does not lead to the file, also in a few tries.
pub fn above(file: impl AsFd) -> io::Result<Vec<Access>> {
    const TRIES_MAX: u32 = 5;
    let file = file.as_fd();
    for _ in 0..TRIES_MAX {
        if let Some(found) = walk_to(file)? {
            return Ok(found);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the directories above it change"))
}

/// Walks to a file by its present path. Returns `None` if the path leads to another file by now.
fn walk_to(file: BorrowedFd<'_>) -> io::Result<Option<Vec<Access>>> {
    let path = beneath::path_of(file)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::open("/", flags, Mode::empty())?;
    let mut found = Vec::new();
    for name in path.iter().skip(1) {
        found.push(access(&at)?);
        at = match rustix::fs::openat(&at, name, flags, Mode::empty()) {
            Ok(next) => next,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    }
    Ok(is_same(&at, file)?.then_some(found))
}

fn open_by(at: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(at, path, flags, Mode::empty(), resolve)
}

/// Makes a directory that only this user can access, and opens it.
///
/// # Errors
/// `EEXIST` if the name exists; those of `mkdirat(2)` and [`open_in`].
pub fn create_in(directory: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    rustix::fs::mkdirat(directory, name, Mode::RWXU)?;
    open_in(directory, name)
}

/// Writes a new file that only this user can access, and returns it.
///
/// # Errors
/// `EEXIST` if the name exists, `StorageFull` if the file system is full; those of `openat2(2)`.
pub fn write_new(directory: impl AsFd, name: &Path, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let (mode, resolve) = (Mode::RUSR | Mode::WUSR, ResolveFlags::BENEATH);
    let directory = directory.as_fd();
    let made = openat2(directory, name, flags, mode, resolve)?;
    let mut file = File::from(made);
    file.write_all(content)?;
    Ok(file.into())
}

/// Creates a new file for writing, with the permissions that the umask leaves.
///
/// # Errors
/// `EEXIST` if the name exists; those of `openat2(2)`.
pub fn create_file_in(directory: impl AsFd, name: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let (directory, mode) = (directory.as_fd(), Mode::from_raw_mode(0o666));
    let made = openat2(directory, name, flags, mode, resolve)?;
    Ok(made.into())
}

/// Opens a directory by its name in another one, and makes it if it is missing, with the permissions that the
/// umask leaves. The name may not be a symbolic link or a mount point.
///
/// # Errors
/// Those of `mkdirat(2)` and [`open_in`].
pub fn make_in(directory: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => open_in(directory, name),
        Err(error) => Err(error.into()),
    }
}

/// Makes a directory, with the permissions that the umask leaves, and opens it.
///
/// # Errors
/// `EEXIST` if the name exists; those of `mkdirat(2)` and [`open_in`].
pub fn make_new_in(directory: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o777))?;
    open_in(directory, name)
}

/// Makes a symbolic link.
///
/// # Errors
/// `EEXIST` if the name exists; those of `symlinkat(2)`.
pub fn link_in(directory: impl AsFd, name: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::fs::symlinkat(target, directory, name)?)
}

/// Moves an entry to a name in another directory. An existing file or link of this name is replaced.
///
/// # Errors
/// Those of `renameat(2)`.
pub fn move_to(from: impl AsFd, name: &Path, to: impl AsFd, new_name: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat(from, name, to, new_name)?)
}

/// Moves an entry to a name in another directory that must not exist.
///
/// # Errors
/// `EEXIST` if the name exists; those of `renameat2(2)`.
pub fn move_new(from: impl AsFd, name: &Path, to: impl AsFd, new_name: &Path) -> io::Result<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    match rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE) {
        // A file system without this flag, such as NFS. An empty directory of this name would be replaced.
        Err(Errno::INVAL | Errno::NOSYS) if !exists(to, new_name) => {
            Ok(rustix::fs::renameat(from, name, to, new_name)?)
        }
        moved => Ok(moved?),
    }
}

/// Opens a lock file in a directory, and makes it if it is missing, with access for this user only.
///
/// # Errors
/// `ELOOP` for a symbolic link; those of `openat2(2)`.
pub fn open_lock_in(directory: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::NOFOLLOW
        | OFlags::CLOEXEC;
    let (mode, resolve) = (Mode::RUSR | Mode::WUSR, ResolveFlags::BENEATH);
    let directory = directory.as_fd();
    openat2(directory, name, flags, mode, resolve)
}

/// Reads a regular file in a directory, and returns its attributes and content. The name may not be a
/// symbolic link.
///
/// # Errors
/// `InvalidData` if it is not a regular file or has more than `max_bytes`; those of `openat2(2)`.
pub fn read_in(
    directory: impl AsFd,
    name: &Path,
    max_bytes: u64,
) -> io::Result<(Attributes, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = directory.as_fd();
    let opened = openat2(directory, name, flags, Mode::empty(), resolve)?;
    let status = rustix::fs::fstat(&opened)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let attributes = attributes(&opened)?;
    let mut content = Vec::new();
    File::from(opened).take(max_bytes + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max_bytes {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((attributes, content))
}

/// Returns the names in a directory with their kinds, without `.` and `..`.
///
/// # Errors
/// Those of `getdents64(2)` and `fstatat(2)`.
pub fn entries(directory: impl AsFd) -> io::Result<Vec<(OsString, EntryKind)>> {
    entries_up_to(directory, usize::MAX)
}

/// Returns the first `max` names in a directory, as [`entries`] does.
///
/// # Errors
/// Those of [`entries`].
pub fn entries_up_to(directory: impl AsFd, max: usize) -> io::Result<Vec<(OsString, EntryKind)>> {
    let directory = directory.as_fd();
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        if found.len() == max {
            break;
        }
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let name = OsString::from_vec(name.to_vec());
        let kind = match entry.file_type() {
            // Looking at a mount point could fail, or wait for its file system.
            FileType::Unknown => match kind_of(directory, &name) {
                Ok(kind) => kind,
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            },
            kind => EntryKind::of(kind),
        };
        found.push((name, kind));
    }
    Ok(found)
}

impl EntryKind {
    fn of(kind: FileType) -> Self {
        match kind {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            _ => Self::File,
        }
    }
}

fn kind_of(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<EntryKind> {
    let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(EntryKind::of(FileType::from_raw_mode(status.st_mode)))
}

/// Returns the time of the last modification of an entry, which is not followed if it is a symbolic link.
///
/// # Errors
/// Those of `statx(2)`.
pub fn modified_in(directory: impl AsFd, name: &Path) -> io::Result<SystemTime> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let status = rustix::fs::statx(directory, name, flags, StatxFlags::MTIME)?;
    Ok(file_use::system_time(status.stx_mtime))
}

/// Returns `true` if no other user than root can put another directory in the place of this one: this user
/// or root owns it and all directories above it, and other users may not write to them, except to those
/// with the sticky bit.
///
/// # Errors
/// Those of [`above`].
pub fn has_safe_path(directory: impl AsFd) -> io::Result<bool> {
    let is_safe = |it: &Attributes| {
        let is_closed = it.mode & 0o022 == 0 || it.mode & Mode::SVTX.bits() > 0;
        is_closed && [0, effective_uid()].contains(&it.owner)
    };
    let above = above(&directory)?;
    Ok(is_safe(&attributes(&directory)?) && above.iter().all(|it| is_safe(&it.attributes)))
}

/// Finds a file in a directory without opening it (`O_PATH`). No component of the name may be a symbolic
/// link or a mount point.
///
/// # Errors
/// `ELOOP` for a symbolic link, `EXDEV` for a mount point; those of `openat2(2)`.
pub fn find_in(directory: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let at = directory.as_fd();
    openat2(at, name, flags, Mode::empty(), resolve)
}

/// Locks a directory or a file without waiting (`flock`). The lock lasts until the descriptor is closed, also if
/// the process is killed. Returns `false` if it is locked already.
///
/// # Errors
/// Those of `flock(2)`.
pub fn try_lock(file: impl AsFd) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Locks a file or directory together with other processes, for as long as this process or one that inherits
/// the descriptor has it open.
///
/// # Errors
/// `EWOULDBLOCK` if a process has the lock for itself; those of `flock(2)`.
pub fn lock_shared(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::NonBlockingLockShared)?)
}

/// Returns `true` if `name` in the directory refers to this file, and not to another one or to none.
pub fn has_name(directory: impl AsFd, name: &Path, file: impl AsFd) -> bool {
    let named = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    let (Ok(named), Ok(file)) = (named, rustix::fs::fstat(file)) else { return false };
    (named.st_dev, named.st_ino) == (file.st_dev, file.st_ino)
}

/// Returns `true` if both descriptors are of one file or directory.
///
/// # Errors
/// Those of `fstat(2)`.
pub fn is_same(one: impl AsFd, other: impl AsFd) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Returns `true` if the directory has an entry of this name.
pub fn exists(directory: impl AsFd, name: &Path) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Renames an entry to a name that does not exist.
///
/// # Errors
/// `EEXIST` if the name exists; those of `renameat2(2)`.
pub fn rename_new(directory: impl AsFd, from: &Path, to: &Path) -> io::Result<()> {
    rename(directory.as_fd(), from, to, RenameFlags::NOREPLACE)
}

/// Exchanges two names at once.
///
/// # Errors
/// `ENOENT` if one of them does not exist; those of `renameat2(2)`.
pub fn exchange(directory: impl AsFd, one: &Path, other: &Path) -> io::Result<()> {
    rename(directory.as_fd(), one, other, RenameFlags::EXCHANGE)
}

fn rename(at: BorrowedFd<'_>, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(at, from, at, to, flags)?)
}

/// Removes an entry, with all that is in it if it is a directory. Symbolic links are removed, and not
/// followed. It is not an error if the entry does not exist.
///
/// # Errors
/// Those of `unlinkat(2)`, `renameat2(2)` and [`open_in`].
pub fn remove_all(directory: impl AsFd, name: &Path) -> io::Result<()> {
    let directory = directory.as_fd();
    let Some(inner) = remove_or_open(directory, name)? else { return Ok(()) };
    let mut top = Top { directory: inner.as_fd(), moved: 0 };
    loop {
        let found = entries(&inner)?;
        if found.is_empty() {
            break;
        }
        for (entry, _) in found {
            remove_nested(inner.as_fd(), Path::new(&entry), 1, &mut top)?;
        }
    }
    remove_empty(directory, name)
}

/// The directory that is removed. Directories that are nested too deeply are moved into it.
struct Top<'a> {
    directory: BorrowedFd<'a>,
    moved: u64,
}

fn remove_nested(
    directory: BorrowedFd<'_>,
    name: &Path,
    depth: u32,
    top: &mut Top<'_>,
) -> io::Result<()> {
    let Some(inner) = remove_or_open(directory, name)? else { return Ok(()) };
    if depth == DEPTH_MAX {
        loop {
            top.moved += 1;
            let moved = top.moved.to_string();
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(directory, name, top.directory, &*moved, flags) {
                Err(Errno::EXIST) => {}
                moved => return Ok(moved?),
            }
        }
    }
    for (entry, _) in entries(&inner)? {
        remove_nested(inner.as_fd(), Path::new(&entry), depth + 1, top)?;
    }
    remove_empty(directory, name)
}

/// Removes an entry, or opens it if it is a directory. Returns `None` if it does not exist any more.
fn remove_or_open(directory: BorrowedFd<'_>, name: &Path) -> io::Result<Option<OwnedFd>> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let inner = match open_in(directory, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    // If this fails, so does the removal.
    let _ = set_mode(&inner, 0o700);
    Ok(Some(inner))
}

/// Removes a file or a symbolic link.
///
/// # Errors
/// `EISDIR` for a directory; those of `unlinkat(2)`.
pub fn remove_file(directory: impl AsFd, name: &Path) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
}

/// Removes an empty directory. It is not an error if it does not exist.
///
/// # Errors
/// `ENOTEMPTY` if it has entries; those of `unlinkat(2)`.
pub fn remove_empty(directory: impl AsFd, name: &Path) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_symbolic_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("real")).unwrap();
        fs::write(dir.path().join("real/secret"), "secret").unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        symlink("secret", dir.path().join("real/alias")).unwrap();
        let loops = |error: io::Error| error.raw_os_error() == Some(libc::ELOOP);
        assert!(loops(open(&dir.path().join("link")).unwrap_err()));
        let top = open(dir.path()).unwrap();
        assert!(loops(open_in(&top, Path::new("link")).unwrap_err()));
        assert!(open_in(&top, Path::new("..")).is_err());
        let real = open_in(&top, Path::new("real")).unwrap();
        assert!(loops(read_in(&real, Path::new("alias"), 9).unwrap_err()));
        assert_eq!(read_in(&real, Path::new("secret"), 6).unwrap().1, b"secret");
        assert!(read_in(&real, Path::new("secret"), 5).is_err());
        assert!(read_in(&top, Path::new("real"), 9).is_err());
        remove_all(&top, Path::new("link")).unwrap();
        assert!(has_name(&top, Path::new("real"), &real));
    }

    #[test]
    fn a_directory_is_removed_with_all_in_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        fs::write(dir.path().join("kept"), "kept").unwrap();
        symlink("../../kept", dir.path().join("a/b/link")).unwrap();
        let top = open(dir.path()).unwrap();
        let deep: std::path::PathBuf = (0..200).map(|_| "d").collect();
        fs::create_dir_all(dir.path().join("a").join(deep)).unwrap();
        fs::write(dir.path().join("a/1"), "a name of a directory that is moved").unwrap();
        remove_all(&top, Path::new("a")).unwrap();
        remove_all(&top, Path::new("a")).unwrap();
        let left: Vec<_> = entries(&top).unwrap();
        assert_eq!(left, [("kept".into(), EntryKind::File)]);
    }

    #[test]
    fn the_directories_above_a_file_are_those_that_lead_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir_all(real.join("a/b")).unwrap();
        fs::write(real.join("a/b/file"), "x").unwrap();
        set_mode(File::open(real.join("a")).unwrap(), 0o711).unwrap();
        let file = File::open(real.join("a/b/file")).unwrap();
        let found = above(&file).unwrap();
        assert_eq!(found.len(), real.iter().count() + 2);
        assert_eq!(found[found.len() - 2].attributes.mode & 0o777, 0o711);
        // The directory was renamed after it was opened.
        fs::rename(real.join("a"), real.join("c")).unwrap();
        fs::create_dir_all(real.join("a/b")).unwrap();
        fs::write(real.join("a/b/file"), "another").unwrap();
        let found = above(&file).unwrap();
        assert_eq!(
            found[found.len() - 2].attributes.mode & 0o777,
            0o711,
            "those of the renamed directory"
        );
        fs::remove_file(real.join("c/b/file")).unwrap();
        assert_eq!(above(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn names_are_taken_once_and_exchanged() {
        let dir = tempfile::tempdir().unwrap();
        let top = open(dir.path()).unwrap();
        let (a, b) = (Path::new("a"), Path::new("b"));
        let made = create_in(&top, a).unwrap();
        assert_eq!(create_in(&top, a).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        write_new(&top, b, b"file").unwrap();
        assert_eq!(rename_new(&top, a, b).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        exchange(&top, a, b).unwrap();
        assert!(has_name(&top, b, &made) && exists(&top, a));
        assert!(try_lock(&made).unwrap());
        assert!(!try_lock(open_in(&top, b).unwrap()).unwrap());
    }

    #[test]
    fn the_entries_of_a_directory_are_found_without_looking_at_them() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("f"), "").unwrap();
        symlink("f", dir.path().join("l")).unwrap();
        let mut found = entries(open(dir.path()).unwrap()).unwrap();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        let kinds: Vec<_> = found.into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(kinds, [EntryKind::Directory, EntryKind::File, EntryKind::Link]);
    }
}
