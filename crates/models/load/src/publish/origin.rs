//! The place that the files of a published model come from.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::access::{Access, CopyAccess};
use super::record::{FileRecord, Record};
use super::refresh::{limit, refresh};
use super::remote::RemoteModel;
use super::tree::{Tree, open_error};
use crate::error::Result;
use crate::source::SourceFile;

/// The files of a model: on this machine, with permissions that their copies follow, or on servers.
pub(super) enum Origin<'a> {
    Local(Tree),
    Remote(&'a RemoteModel),
}

impl Origin<'_> {
    /// Returns the directory of all files, as it is recorded and shown.
    pub(super) fn root(&self) -> &Path {
        match self {
            Self::Local(tree) => tree.root(),
            Self::Remote(model) => model.source(),
        }
    }

    /// Returns the path of the file that was named, if it is not a directory.
    pub(super) fn main(&self) -> Option<&Path> {
        match self {
            Self::Local(tree) => tree.main.as_deref(),
            // A path that is none of its files could lead out of the model.
            Self::Remote(model) => {
                let is_file = |main: &&Path| main.to_str().is_some_and(|it| model.contains(it));
                model.main_path().filter(is_file)
            }
        }
    }

    pub(super) fn default_name(&self) -> String {
        match self {
            Self::Local(tree) => tree.default_name(),
            Self::Remote(model) => model.default_name().to_owned(),
        }
    }

    /// Returns the paths of the directories, each after the one that contains it.
    pub(super) fn folders(&self) -> &[PathBuf] {
        match self {
            Self::Local(tree) => &tree.folders,
            Self::Remote(model) => model.folders(),
        }
    }

    /// Returns the records of all files, without checksums.
    pub(super) fn records(&self) -> Vec<FileRecord> {
        match self {
            Self::Local(tree) => tree.records(),
            Self::Remote(model) => {
                model.files().iter().map(|file| FileRecord::of(&file.path, &file.source)).collect()
            }
        }
    }

    /// Returns the number of bytes of all files.
    pub(super) fn content_bytes(&self) -> u64 {
        match self {
            Self::Local(tree) => tree.content_bytes(),
            Self::Remote(model) => model.content_bytes(),
        }
    }

    /// Opens the file with this number for reading.
    pub(super) fn open(&self, number: usize) -> Result<SourceFile> {
        match self {
            Self::Local(tree) => tree.open(&tree.files[number]),
            Self::Remote(model) => model.files()[number].source.try_clone(),
        }
    }

    /// Returns `true` if the record is of another version of this model.
    pub(super) fn is_source_of(&self, record: &Record) -> bool {
        match self {
            Self::Local(tree) => tree.is_source_of(record),
            Self::Remote(model) => record.source() == model.source(),
        }
    }

    pub(super) fn check_owners(&self) -> Result<()> {
        match self {
            Self::Local(tree) => tree.check_owners(),
            Self::Remote(_) => Ok(()),
        }
    }

    /// Checks that the files are those that were read. Each read of a file of a server checks that.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        match self {
            Self::Local(tree) => tree.check_unchanged(),
            Self::Remote(_) => Ok(()),
        }
    }

    /// Gives a copy the access of the files; see [`refresh`]. Files of servers have no users.
    pub(super) fn refresh(&self, copy: BorrowedFd<'_>, mode: Option<u32>) -> Result<bool> {
        match self {
            Self::Local(tree) => refresh(tree, copy, mode),
            Self::Remote(_) => Ok(false),
        }
    }

    /// Takes the access to an old version that a new one would not have; see [`limit`].
    pub(super) fn limit(
        &self,
        old: &Record,
        copy: BorrowedFd<'_>,
        mode: Option<u32>,
    ) -> Result<()> {
        match self {
            Self::Local(tree) => limit(tree, old, copy, mode),
            Self::Remote(_) => Ok(()),
        }
    }

    /// Returns the permissions for the copy of a file, like [`Access::of_file`].
    pub(super) fn access_of_file(
        &self,
        source: &SourceFile,
        folder: BorrowedFd<'_>,
        group: u32,
        access: &mut Access,
    ) -> Result<CopyAccess> {
        match self {
            Self::Local(_) => access
                .of_file(source.require_local()?, folder, group)
                .map_err(open_error(source.path())),
            Self::Remote(_) => Ok(access.of_remote_file()),
        }
    }

    /// Returns the permissions for the copy of a directory, like [`Access::of_directory`].
    pub(super) fn access_of_directory(
        &self,
        path: &Path,
        folder: BorrowedFd<'_>,
        group: u32,
        access: &mut Access,
    ) -> Result<CopyAccess> {
        match self {
            Self::Local(tree) => {
                let source = tree.open_folder(path)?;
                let found = access.of_directory(source.as_fd(), folder, group);
                found.map_err(open_error(&tree.root().join(path)))
            }
            Self::Remote(_) => Ok(access.of_remote_directory()),
        }
    }
}
