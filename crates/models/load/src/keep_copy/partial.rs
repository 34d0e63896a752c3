//! A directory that gets its name when it is complete.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};
use std::process;

use longshore_sys::directory::{self, Attributes, EntryKind};
use longshore_sys::effective_uid;

use crate::error::Error;

const PREFIX: &str = ".longshore.";
const SUFFIX: &str = ".partial";
/// The name of a file that marks such a directory.
const MARK: &str = ".longshore.copy";
/// The name of the directory in it.
const MODEL: &str = "model";
/// The number of names that are tried.
const ATTEMPTS_MAX: u32 = 100;
/// The number of entries of a directory in which leftovers are searched for.
const ENTRIES_MAX: usize = 4096;

/// The mode bits that let other users access a file.
const ACCESS_OF_OTHERS: u32 = 0o077;
/// The mode bits that let other users make, remove and rename entries, and the one that limits this to their own.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// A directory with a hidden name, which is closed to other users, and a directory in it that is to get another name.
/// Dropping it removes both.
///
/// They and the one above are used by their descriptors, so that nothing is written elsewhere if another user, who
/// owns the directory above, replaces names meanwhile.
#[derive(Debug)]
pub(super) struct Partial {
    above: OwnedFd,
    name: OsString,
    outer: OwnedFd,
    folder: OwnedFd,
}

impl Partial {
    /// Makes a directory in `above`, and removes those of processes that were killed.
    pub(super) fn create(above: OwnedFd) -> io::Result<Self> {
        remove_leftovers(&above);
        for _ in 0..ATTEMPTS_MAX {
            // Other users may make entries in some directories, and must not guess the name.
            let random = RandomState::new().hash_one(0);
            let name = OsString::from(format!("{PREFIX}{}-{random}{SUFFIX}", process::id()));
            let outer = match directory::create_in(&above, Path::new(&name)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                outer => outer?,
            };
            return match begin_in(&above, &outer) {
                Ok(folder) => Ok(Self { above, name, outer, folder }),
                Err(error) => {
                    let _ = directory::remove_empty(&above, Path::new(&name));
                    Err(error)
                }
            };
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "all temporary names are in use"))
    }

    /// Returns the directory in which the hidden one is.
    pub(super) fn above(&self) -> &OwnedFd {
        &self.above
    }

    /// Returns the directory that is to get another name.
    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Gives the directory its name, which must be free.
    pub(super) fn complete(self, name: &Path) -> io::Result<()> {
        sync(&self.folder);
        directory::move_new(&self.outer, Path::new(MODEL), &self.above, name)?;
        sync(&self.above);
        match directory::has_name(&self.above, name, &self.folder) {
            true => Ok(()),
            false => Err(io::Error::other("another process has replaced the directory")),
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let name = Path::new(&self.name);
        // The next copy removes the rest.
        let _ = remove(&self.above, name, &self.outer);
    }
}

/// Locks and marks a hidden directory that was just made, and returns a new directory in it.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if another user has given its name to another directory before it was opened.
fn begin_in(above: &OwnedFd, outer: &OwnedFd) -> io::Result<OwnedFd> {
    // Another process removes it if it is not locked.
    directory::try_lock(outer)?;
    // If this fails, the directory is not a new one, and gets no mark.
    let folder = directory::make_new_in(outer, Path::new(MODEL))?;
    let marked = mark(above, outer).inspect_err(|_| {
        let _ = directory::remove_file(outer, Path::new(MARK));
        let _ = directory::remove_empty(outer, Path::new(MODEL));
    });
    marked.map(|()| folder)
}

/// Marks a hidden directory, and checks that it is one of this user.
fn mark(above: &OwnedFd, outer: &OwnedFd) -> io::Result<()> {
    let mark = directory::write_new(outer, Path::new(MARK), b"")?;
    // A file system of another machine can give new files another owner than this user.
    let own = directory::attributes(&mark)?.owner;
    let Attributes { owner, mode, .. } = directory::attributes(outer)?;
    if owner == own && (mode & ACCESS_OF_OTHERS == 0 || keeps_names(above, own)?) {
        return Ok(());
    }
    let reason = "another user can rename the entries of the directory in which it is to be written; use a directory \
                  that only you can write to";
    Err(io::Error::new(ErrorKind::PermissionDenied, reason))
}

/// Returns `true` if no other user can rename the entries of a directory that belong to `own`.
fn keeps_names(directory: impl AsFd, own: u32) -> io::Result<bool> {
    let Attributes { owner, mode, .. } = directory::attributes(directory)?;
    Ok([0, own].contains(&owner) && (mode & WRITABLE_BY_OTHERS == 0 || mode & STICKY != 0))
}

/// Removes a hidden directory, which is open, and all that this module makes in it.
///
/// Another user who owns the directory above can give its name to another directory meanwhile. So the content is
/// removed by the descriptor, and the name only if it is that of an empty directory.
fn remove(above: &OwnedFd, name: &Path, outer: &OwnedFd) -> io::Result<()> {
    directory::remove_all(outer, Path::new(MODEL))?;
    directory::remove_all(outer, Path::new(MARK))?;
    directory::remove_empty(above, name)
}

/// Opens the directory that contains a file, and makes it if it is missing. Returns it with the name of the file.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if the path leads out of `folder`; those of [`directory::make_in`].
pub(super) fn open_parent<'p>(folder: &OwnedFd, path: &'p Path) -> io::Result<(OwnedFd, &'p Path)> {
    let mut parent = folder.try_clone()?;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { break };
        if parts.peek().is_none() {
            return Ok((parent, Path::new(name)));
        }
        parent = directory::make_in(&parent, Path::new(name))?;
    }
    Err(ErrorKind::InvalidInput.into())
}

/// Writes a directory to the disk, where its file system can.
pub(super) fn sync(folder: &OwnedFd) {
    let _ = folder.try_clone().map(File::from).and_then(|folder| folder.sync_all());
}

/// Returns `true` for the name of a hidden directory of a copy. A model that is published has no such name.
fn is_partial(name: &str) -> bool {
    let numbers = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = numbers.and_then(|numbers| numbers.split_once('-'));
    parts.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// Removes the directories of processes that were killed.
fn remove_leftovers(above: &OwnedFd) {
    let Ok(entries) = directory::entries_up_to(above, ENTRIES_MAX) else { return };
    for (name, kind) in entries {
        if kind != EntryKind::Directory || !is_partial(&name.to_string_lossy()) {
            continue;
        }
        let name = Path::new(&name);
        let Ok(folder) = directory::open_in(above, name) else { continue };
        // Another user who owns the directory above can give this name to any directory in it, and the name of the
        // mark to any file of this user. But the other user has no access to the entries of a directory like this.
        let is_private = directory::attributes(&folder)
            .is_ok_and(|it| it.owner == effective_uid() && it.mode & ACCESS_OF_OTHERS == 0);
        let is_marked = directory::read_in(&folder, Path::new(MARK), 0)
            .is_ok_and(|(mark, _)| mark.owner == effective_uid());
        if is_private && is_marked && directory::try_lock(&folder).is_ok_and(|is_locked| is_locked)
        {
            let _ = remove(above, name, &folder);
        }
    }
}

/// Returns the error for a path that cannot be written.
pub(super) fn write_error(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Write { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Begins in a directory of another user, or that other users may enter, as if it had just been made.
    #[test]
    fn a_directory_that_another_user_has_put_in_place_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outer");
        let try_with = |above_mode, mode, owner| {
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(dir.path(), Permissions::from_mode(above_mode)).unwrap();
            let owned = std::os::unix::fs::chown(&path, owner, None);
            let [above, outer] =
                [dir.path(), &path].map(|it| directory::open_followed(it).unwrap());
            let begun = begin_in(&above, &outer).map(drop).map_err(|error| error.kind());
            let entries = fs::read_dir(&path).unwrap().count();
            fs::remove_dir_all(&path).unwrap();
            owned.map(|()| (begun, entries))
        };
        let refused = Ok((Err(ErrorKind::PermissionDenied), 0));
        let permitted = Ok((Ok(()), 2));
        let tried = |above_mode, mode, owner| {
            try_with(above_mode, mode, owner).map_err(|error| error.kind())
        };
        assert_eq!(tried(0o777, 0o700, None), permitted);
        assert_eq!(tried(0o777, 0o777, None), refused);
        // Names cannot be replaced here, so it is the new directory, on a file system without permissions.
        assert_eq!(tried(0o1777, 0o777, None), permitted);
        assert_eq!(tried(0o755, 0o777, None), permitted);
        match tried(0o777, 0o700, Some(65534)) {
            Err(ErrorKind::PermissionDenied) => {
                println!("SKIPPED: another owner cannot be tried without being root");
            }
            of_other => assert_eq!(of_other, refused),
        }
        // A directory of this user that has such an entry already gets no mark.
        fs::create_dir_all(path.join(MODEL)).unwrap();
        let [above, outer] = [dir.path(), &path].map(|it| directory::open_followed(it).unwrap());
        assert_eq!(begin_in(&above, &outer).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(!path.join(MARK).exists());
    }
}
