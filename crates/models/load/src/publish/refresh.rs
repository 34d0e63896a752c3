//! The access to a model that is published already: it follows that to its source, and nothing is read.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use longshore_sys::file::{self, Kind};
use longshore_sys::{beneath, directory, effective_uid};

use super::access::{Access, CopyAccess};
use super::record::{self, Record};
use super::tree::{Tree, TreeFile, open_error, write_error};
use crate::error::Result;

/// The access to a file that only the publisher may read.
const CLOSED_FILE: CopyAccess = closed(0o400);
/// The access to a directory that only the publisher may use.
const CLOSED_FOLDER: CopyAccess = closed(0o700);

const fn closed(mode: u32) -> CopyAccess {
    CopyAccess { mode, group: None, user: None, owner: None }
}

/// Gives the files and directories of a published model the access that they would get if they were
/// published now. If the model belongs to another user, that is, to root, it stays as it is. Returns `true`
/// if something was changed.
///
/// # Errors
/// [`Error::Open`](crate::Error::Open), [`Error::Changed`](crate::Error::Changed),
/// [`Error::Write`](crate::Error::Write).
pub(crate) fn refresh(tree: &Tree, model: BorrowedFd<'_>, mode: Option<u32>) -> Result<bool> {
    let mut is_changed = false;
    // Only the file that was published may give its copy permissions.
    let find = |file: &TreeFile| tree.find(file);
    each(tree, model, mode, find, |copy, wanted| {
        if !wanted.is_of(copy)? {
            wanted.give(copy)?;
            is_changed = true;
        }
        Ok(())
    })?;
    Ok(is_changed)
}

/// Takes the access to an old version of a model that would not be given to a new copy: there may be no room
/// for one, or the new version cannot be published. Files and directories that the new version does not have
/// are closed to all other users.
///
/// # Errors
/// Those of [`refresh`].
pub(crate) fn limit(
    tree: &Tree,
    old: &Record,
    model: BorrowedFd<'_>,
    mode: Option<u32>,
) -> Result<()> {
    // The file that has this path now: one that a program writes to is another version at each look.
    let find = |file: &TreeFile| tree.find_now(file);
    let limited = each(tree, model, mode, find, |copy, wanted| wanted.limit(copy));
    let is_kept =
        |path: &str| tree.files.binary_search_by(|file| file.path.as_str().cmp(path)).is_ok();
    let close = |path: &Path, found: io::Result<OwnedFd>, closed: CopyAccess| {
        let done = found.and_then(|copy| match is_own(&copy)? {
            true => closed.limit(&copy),
            false => Ok(()),
        });
        done.or_else(if_missing).map_err(write_error(&tree.root().join(path)))
    };
    let mut is_whole = true;
    // Those of the new version, and those that are closed. Each comes with all that contain it.
    let mut done: HashSet<&Path> = tree.folders.iter().map(PathBuf::as_path).collect();
    done.insert(Path::new(""));
    for file in old.files.iter().filter(|file| !is_kept(&file.path)) {
        is_whole = false;
        let path = Path::new(&file.path);
        close(path, find_file(model, path), CLOSED_FILE)?;
        for folder in path.ancestors().skip(1).take_while(|folder| done.insert(folder)) {
            close(folder, directory::open_in(model, folder), CLOSED_FOLDER)?;
        }
    }
    if !is_whole {
        let path = Path::new(record::NAME);
        close(path, find_file(model, path), CLOSED_FILE)?;
    }
    limited
}

/// Calls `step` for each file and directory of a model with the access that it would get now. If that of one is
/// not known, it is closed to all other users, and the others are changed nevertheless.
fn each(
    tree: &Tree,
    model: BorrowedFd<'_>,
    mode: Option<u32>,
    find: impl Fn(&TreeFile) -> Result<OwnedFd>,
    mut step: impl FnMut(&OwnedFd, CopyAccess) -> io::Result<()>,
) -> Result<()> {
    if !is_own(model).map_err(write_error(tree.root()))? {
        return Ok(());
    }
    let mut access = Access::new(mode);
    let mut result = Ok(());
    let mut note = |done: Result<()>| {
        if result.is_ok() {
            result = done;
        }
    };
    for file in &tree.files {
        let path = Path::new(&file.path);
        let full = tree.root().join(path);
        let copy = match if_found(find_file(model, path), &full) {
            Ok(Some(copy)) => copy,
            found => {
                note(found.map(drop));
                continue;
            }
        };
        let wanted = find(file).and_then(|source| {
            let group = directory::attributes(&copy).map_err(write_error(&full))?.group;
            access.of_file(source.as_fd(), model, group).map_err(open_error(&full))
        });
        note(step(&copy, *wanted.as_ref().unwrap_or(&CLOSED_FILE)).map_err(write_error(&full)));
        note(wanted.map(drop));
    }
    let folders = tree.folders.iter().rev().map(PathBuf::as_path).chain([Path::new(".")]);
    for path in folders {
        let full = tree.root().join(path);
        let copy = match if_found(directory::open_in(model, path), &full) {
            Ok(Some(copy)) => copy,
            found => {
                note(found.map(drop));
                continue;
            }
        };
        let wanted = tree.open_folder(path).and_then(|source| {
            let group = directory::attributes(&copy).map_err(write_error(&full))?.group;
            access.of_directory(source.as_fd(), model, group).map_err(open_error(&full))
        });
        note(step(&copy, *wanted.as_ref().unwrap_or(&CLOSED_FOLDER)).map_err(write_error(&full)));
        note(wanted.map(drop));
    }
    // If the access to a file is not known, the record is closed.
    let wanted = if result.is_ok() { access.of_record() } else { Access::default().of_record() };
    let record = if_found(find_file(model, Path::new(record::NAME)), tree.root())?;
    if let Some(record) = record {
        step(&record, wanted).map_err(write_error(tree.root()))?;
    }
    result
}

fn is_own(copy: impl AsFd) -> io::Result<bool> {
    Ok(directory::attributes(copy)?.owner == effective_uid())
}

/// Finds a file of a model.
///
/// # Errors
/// `IsADirectory` for a directory; those of [`directory::find_in`].
fn find_file(model: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let found = directory::find_in(model, path)?;
    match file::status(&found)?.kind {
        Kind::Directory => Err(ErrorKind::IsADirectory.into()),
        _ => Ok(found),
    }
}

/// Returns `None` if an old version lacks a file or directory, or has the other one in its place.
fn if_found(found: io::Result<OwnedFd>, path: &Path) -> Result<Option<OwnedFd>> {
    match found {
        Err(error) if is_missing(&error) => Ok(None),
        found => found.map(Some).map_err(write_error(path)),
    }
}

fn if_missing(error: io::Error) -> io::Result<()> {
    if is_missing(&error) { Ok(()) } else { Err(error) }
}

fn is_missing(error: &io::Error) -> bool {
    use ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory) || beneath::leads_out(error)
}
