//! The access to a model that is published already: it follows that to its source, and nothing is read.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use longshore_sys::{beneath, directory, effective_uid};

use super::access::{Access, CopyAccess};
use super::record;
use super::tree::{Tree, write_error};
use crate::error::Result;

/// Gives the files and directories of a published model the access that they would get if they were
/// published now. If the model belongs to another user, that is, to root, it stays as it is. Returns `true`
/// if something was changed.
///
/// # Errors
/// [`Error::Open`](crate::Error::Open), [`Error::Changed`](crate::Error::Changed),
/// [`Error::Write`](crate::Error::Write).
pub(crate) fn refresh(tree: &Tree, model: BorrowedFd<'_>, mode: Option<u32>) -> Result<bool> {
    let mut is_changed = false;
    each(tree, model, mode, |copy, wanted| {
        if !wanted.is_of(copy)? {
            wanted.give(copy)?;
            is_changed = true;
        }
        Ok(())
    })?;
    Ok(is_changed)
}

/// Takes the access to an old version of a model that would not be given to a new copy: there may be no room
/// for one, or the new version cannot be published. Files that the new version does not have stay as they are.
///
/// # Errors
/// Those of [`refresh`].
pub(crate) fn limit(tree: &Tree, model: BorrowedFd<'_>, mode: Option<u32>) -> Result<()> {
    each(tree, model, mode, |copy, wanted| wanted.limit(copy))
}

/// Calls `step` for each file and directory of a model with the access that it would get now.
fn each(
    tree: &Tree,
    model: BorrowedFd<'_>,
    mode: Option<u32>,
    mut step: impl FnMut(&OwnedFd, CopyAccess) -> io::Result<()>,
) -> Result<()> {
    let found = directory::attributes(model).map_err(write_error(tree.root()))?;
    if found.owner != effective_uid() {
        return Ok(());
    }
    let mut access = Access::new(mode);
    for file in &tree.files {
        let (source, path) = (tree.find(file)?, Path::new(&file.path));
        let done = directory::find_in(model, path).and_then(|copy| {
            let group = directory::attributes(&copy)?.group;
            step(&copy, access.of_file(source.as_fd(), model, group)?)
        });
        done.or_else(if_missing).map_err(write_error(&tree.root().join(path)))?;
    }
    let folders = tree.folders.iter().rev().map(PathBuf::as_path).chain([Path::new(".")]);
    for path in folders {
        let source = tree.open_folder(path)?;
        let done = directory::open_in(model, path).and_then(|copy| {
            let group = directory::attributes(&copy)?.group;
            step(&copy, access.of_directory(source.as_fd(), model, group)?)
        });
        done.or_else(if_missing).map_err(write_error(&tree.root().join(path)))?;
    }
    let record = directory::find_in(model, Path::new(record::NAME));
    let done = record.and_then(|record| step(&record, access.of_record()));
    done.or_else(if_missing).map_err(write_error(tree.root()))
}

/// An old version may lack a file, or have a directory in its place.
fn if_missing(error: io::Error) -> io::Result<()> {
    let is_missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    if is_missing || beneath::leads_out(&error) { Ok(()) } else { Err(error) }
}
