//! A directory that gets its name when it is complete.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_sys::directory::{self, EntryKind};

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

/// The number of the next directory.
static NUMBER: AtomicU64 = AtomicU64::new(0);

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
    /// Makes a directory in `parent`, and removes those of processes that were killed.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        let above = OwnedFd::from(File::open(parent)?);
        remove_leftovers(&above);
        for _ in 0..ATTEMPTS_MAX {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = OsString::from(format!("{PREFIX}{}-{number}{SUFFIX}", process::id()));
            let outer = match directory::create_in(&above, Path::new(&name)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                outer => outer?,
            };
            // Another process removes it if it is not locked.
            directory::try_lock(&outer)?;
            directory::write_new(&outer, Path::new(MARK), b"")?;
            let folder = directory::make_in(&outer, Path::new(MODEL))?;
            return Ok(Self { above, name, outer, folder });
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "all temporary names are in use"))
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
        // Another user who owns the directory above can give this name to a directory of this user, but not the mark.
        let is_own = directory::read_in(&folder, Path::new(MARK), 0)
            .is_ok_and(|(mark, _)| mark.owner == longshore_sys::effective_uid());
        if is_own && directory::try_lock(&folder).is_ok_and(|is_locked| is_locked) {
            let _ = remove(above, name, &folder);
        }
    }
}

/// Returns the error for a path that cannot be written.
pub(super) fn write_error(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Write { path: path.to_owned(), source }
}
