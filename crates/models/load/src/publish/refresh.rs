//! The access to a model that is published already: it follows that to its source, and nothing is read.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use longshore_heap::FileAttributes;
use longshore_sys::{beneath, directory, effective_uid, file};

use super::access::Access;
use super::record;
use super::tree::{Tree, write_error};
use crate::error::Result;

/// The access to a published model, compared with that to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refreshed {
    /// It was the same.
    Same,
    /// Permissions or groups were changed, and now it is the same.
    Changed,
    /// It is not the same, and cannot be changed. A file has another owner than a new copy would have, or two
    /// names; or another user owns a directory of the model, and can give its names to other files.
    NeedsCopy,
}

/// Gives the files and directories of a published model the access that they would get if they were
/// published now. Those that belong to other users stay as they are, unless this process is root.
///
/// # Errors
/// [`Error::Open`](crate::Error::Open), [`Error::Changed`](crate::Error::Changed),
/// [`Error::Write`](crate::Error::Write).
pub(crate) fn refresh(tree: &Tree, model: BorrowedFd<'_>, mode: Option<u32>) -> Result<Refreshed> {
    let found = directory::attributes(model).map_err(write_error(tree.root()))?;
    if !may_change(found.owner) {
        return Ok(Refreshed::Same);
    }
    // Before and after the comparison, because a process that removes the model takes its directories.
    let has_names = has_own_names(tree, model);
    // Nothing is changed before all is compared. A model may have more files than this process may have
    // descriptors, so they are opened again.
    match pass(tree, model, mode, compare)? {
        Refreshed::Changed if has_names && has_own_names(tree, model) => {
            pass(tree, model, mode, change)
        }
        Refreshed::Changed => Ok(Refreshed::NeedsCopy),
        compared => Ok(compared),
    }
}

/// Compares or changes one file or directory.
type Step = fn(&OwnedFd, &FileAttributes) -> io::Result<Refreshed>;

fn pass(tree: &Tree, model: BorrowedFd<'_>, mode: Option<u32>, step: Step) -> Result<Refreshed> {
    let mut access = Access::new(mode);
    let mut all = Refreshed::Same;
    for file in &tree.files {
        let (source, path) = (tree.find(file)?, Path::new(&file.path));
        let done = directory::find_in(model, path).and_then(|copy| {
            let group = directory::attributes(&copy)?.group;
            step(&copy, &access.of_file(source.as_fd(), model, group)?)
        });
        all = all.max(done.or_else(if_missing).map_err(write_error(&tree.root().join(path)))?);
    }
    let folders = tree.folders.iter().rev().map(PathBuf::as_path).chain([Path::new(".")]);
    for path in folders {
        let source = tree.open_folder(path)?;
        let done = directory::open_in(model, path).and_then(|copy| {
            let group = directory::attributes(&copy)?.group;
            step(&copy, &access.of_directory(source.as_fd(), model, group)?)
        });
        all = all.max(done.or_else(if_missing).map_err(write_error(&tree.root().join(path)))?);
    }
    let record = directory::find_in(model, Path::new(record::NAME));
    let done = record.and_then(|record| {
        // It belongs to the publisher.
        let uid = Some(directory::attributes(&record)?.owner);
        step(&record, &FileAttributes { mode: access.of_record(), uid, gid: None })
    });
    Ok(all.max(done.or_else(if_missing).map_err(write_error(tree.root()))?))
}

/// The owner of a model may remove files of it, or put links and other files in their place.
fn if_missing(error: io::Error) -> io::Result<Refreshed> {
    let is_missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    if is_missing || beneath::leads_out(&error) { Ok(Refreshed::NeedsCopy) } else { Err(error) }
}

/// Closes a model to all users except its owner, until a new copy is published. Programs that have its files
/// open keep them.
///
/// # Errors
/// Those of `fchmod(2)`.
pub(crate) fn close(model: BorrowedFd<'_>) -> io::Result<()> {
    directory::set_mode(model, 0o700 & directory::attributes(model)?.mode)
}

/// Returns `true` if no other user than root can give names in the model to other files.
fn has_own_names(tree: &Tree, model: BorrowedFd<'_>) -> bool {
    let folders = tree.folders.iter().map(PathBuf::as_path).chain([Path::new(".")]);
    folders.into_iter().all(|path| {
        let found = directory::find_in(model, path).and_then(directory::attributes);
        found.is_ok_and(|it| [0, effective_uid()].contains(&it.owner))
    })
}

fn compare(copy: &OwnedFd, wanted: &FileAttributes) -> io::Result<Refreshed> {
    let found = directory::attributes(copy)?;
    if !may_change(found.owner) {
        return Ok(Refreshed::Same);
    }
    let status = file::status(copy)?;
    let has_names = status.kind == file::Kind::Regular && status.links != 1;
    if wanted.uid.unwrap_or(effective_uid()) != found.owner || has_names {
        return Ok(Refreshed::NeedsCopy);
    }
    let is_same =
        found.mode & 0o777 == wanted.mode && wanted.gid.unwrap_or(found.group) == found.group;
    Ok(if is_same { Refreshed::Same } else { Refreshed::Changed })
}

fn change(copy: &OwnedFd, wanted: &FileAttributes) -> io::Result<Refreshed> {
    let compared = compare(copy, wanted)?;
    if compared == Refreshed::Changed {
        // The members of a new group get no permission of the old one.
        directory::set_mode(copy, wanted.mode & directory::attributes(copy)?.mode)?;
        directory::set_owner(copy, None, wanted.gid)?;
        directory::set_mode(copy, wanted.mode)?;
    }
    Ok(compared)
}

fn may_change(owner: u32) -> bool {
    effective_uid() == 0 || owner == effective_uid()
}
