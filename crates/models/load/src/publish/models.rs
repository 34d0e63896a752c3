//! The models that are published in a directory: which of them are in use, pinning and evicting them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use longshore_sys::lock_file::LockFile;
use longshore_sys::{beneath, directory, effective_uid, file_use, tmpfs};

use super::problem::PublishProblem;
use super::record::{NAME, PIN_NAME, Record};
use super::target::{Existing, Target};
use super::tree::{
    Links, Tree, name_of_file, name_of_folder, name_of_repository, publish_error, write_error,
};
use crate::error::{Error, Result};
use crate::find::HubName;

/// The name of the lock file in the directory.
const LOCK_NAME: &str = ".longshore.manager";

/// The models that are published in a directory of a tmpfs.
///
/// In a directory in which any user may make entries, as in `/dev/shm`, these are the models of this
/// user.
#[derive(Debug)]
pub struct PublishedModels {
    target: Target,
}

/// A published model, as it was when it was found.
#[derive(Debug)]
#[non_exhaustive]
pub struct PublishedModel {
    /// The name in the directory.
    pub name: String,
    /// The directory of the model.
    pub directory: PathBuf,
    /// The directory of its source.
    pub source: PathBuf,
    /// The number of bytes of its files.
    pub content_bytes: u64,
    /// The time when it was published.
    pub published: SystemTime,
    /// `true` if it is pinned, so that it is not evicted.
    pub is_pinned: bool,
    /// `true` if all its files exist with their lengths.
    pub is_complete: bool,
    folder: OwnedFd,
    record: Record,
}

/// The use of a model by other processes.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelUse {
    /// `true` if a program has one of its files open or mapped; an error if the kernel does not report
    /// that.
    pub is_open: io::Result<bool>,
    /// The time when a program last opened a file to read or map it, or when it was published.
    pub last_access: SystemTime,
}

/// The right to manage the models of a directory. It ends when it is dropped or the process ends.
#[derive(Debug)]
pub struct ManagerLock {
    _file: LockFile,
}

/// The files of a source at one time, to find out whether it changed.
#[derive(Debug)]
pub struct SourceState(Tree);

impl SourceState {
    /// Finds the files of the model at `source`, as [`Publisher::publish`](super::Publisher::publish)
    /// does with [`Publisher::refuse_links`](super::Publisher::refuse_links). It reads no weights.
    ///
    /// # Errors
    /// Those of [`Publisher::publish`](super::Publisher::publish).
    pub fn of(source: &Path) -> Result<Self> {
        Tree::of(source, Links::Refused).map(Self)
    }

    /// Returns `true` if both have the same files in the same versions.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }

    /// Returns the number of bytes of all files.
    pub fn content_bytes(&self) -> u64 {
        self.0.content_bytes()
    }

    /// Returns the name under which it is published if no other name is set.
    pub fn default_name(&self) -> String {
        self.0.default_name()
    }
}

impl PublishedModels {
    /// Opens a directory, which must fulfil the conditions of [`Publisher::new`](super::Publisher::new).
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Publish`].
    pub fn open(directory: &Path) -> Result<Self> {
        match Target::open(directory) {
            Err(Error::Publish { path, reason: PublishProblem::NotTmpfs }) => {
                Err(publish_error(&path, PublishProblem::NoModels))
            }
            Err(Error::Publish { path, reason: PublishProblem::OtherOwner { uid } }) => {
                Err(publish_error(&path, PublishProblem::ModelsOfOther { uid }))
            }
            opened => Ok(Self { target: opened? }),
        }
    }

    /// Returns the absolute path of the directory.
    pub fn path(&self) -> &Path {
        self.target.path()
    }

    /// Returns `true` if programs that map files in it get 2 MiB pages.
    pub fn gives_huge_pages(&self) -> bool {
        self.target.gives_huge_pages()
    }

    /// Returns the number of bytes that the tmpfs has free; `None` if it has no limit.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn free_bytes(&self) -> Result<Option<u64>> {
        self.target.room().map(|room: tmpfs::Room| room.free_bytes)
    }

    /// Returns `true` if the path still leads to this directory. It does not if the directory was renamed,
    /// or if its file system was unmounted.
    pub fn has_path(&self) -> bool {
        self.target.has_path()
    }

    /// Takes the right to manage the models. Publishers do not need it.
    ///
    /// # Errors
    /// [`Error::Publish`] with [`PublishProblem::Managed`] if another process has
    /// it, with [`PublishProblem::OtherOwner`] if another user has made the lock file, or, if this process is
    /// root, with [`PublishProblem::UnsafePath`]; [`Error::Write`].
    pub fn lock(&self) -> Result<ManagerLock> {
        // In a pod of Kubernetes, a process without privilege cannot change the mode of a volume.
        if effective_uid() == 0 {
            self.target.check_path()?;
        }
        let path = self.path().join(LOCK_NAME);
        let file = LockFile::open(&path).map_err(write_error(&path))?;
        let owner = file.metadata().map_err(write_error(&path))?.uid();
        if owner != effective_uid() {
            return Err(publish_error(&path, PublishProblem::OtherOwner { uid: owner }));
        }
        match file.try_lock().map_err(write_error(&path))? {
            true => Ok(ManagerLock { _file: file }),
            false => Err(publish_error(self.path(), PublishProblem::Managed)),
        }
    }

    /// Removes the leftovers of publishers that were killed.
    pub fn remove_leftovers(&self) {
        self.target.remove_leftovers();
    }

    /// Returns the models, sorted by name.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn list(&self) -> Result<Vec<PublishedModel>> {
        let mut names = self.target.names()?;
        names.sort();
        names.into_iter().filter_map(|name| self.read(name).transpose()).collect()
    }

    /// Returns `true` if all files of a model with this name exist that belongs to root or this user.
    pub fn has_model(&self, name: &str) -> bool {
        match self.target.existing(name) {
            Existing::Model(record, folder) => record.is_complete(folder),
            _ => false,
        }
    }

    /// Returns the model that was published from `source`, an absolute path, under its default name. The source
    /// need not exist any more.
    pub fn find_by_source(&self, source: &Path) -> Option<PublishedModel> {
        let source = &*PathBuf::from(&*source.to_string_lossy());
        let file = source.file_name()?.to_str()?;
        let of_file = |model: &PublishedModel| {
            Some(&*model.source) == source.parent()
                && model.record.files.iter().any(|it| it.path == file)
        };
        let find = |name: String| self.find(&name).ok();
        if let Ok(Some(wanted)) = HubName::from_path(source) {
            // The record has the commit.
            let is_of = |model: &PublishedModel| {
                HubName::from_path(&model.source).ok().flatten().is_some_and(|found| {
                    (found.kind, found.repository) == (wanted.kind, wanted.repository.clone())
                })
            };
            return find(wanted.repository.replace('/', "--")).filter(is_of);
        }
        find(name_of_folder(source))
            .filter(|model| model.source == source)
            .or_else(|| find(name_of_repository(source)).filter(|model| model.source == source))
            .or_else(|| {
                find(name_of_file(source)).filter(|model| model.source == source || of_file(model))
            })
    }

    /// Returns the model with this name.
    ///
    /// # Errors
    /// [`Error::Publish`] with [`PublishProblem::NotPublished`] or
    /// [`PublishProblem::InvalidName`].
    pub fn find(&self, name: &str) -> Result<PublishedModel> {
        self.target.check_name(name)?;
        self.read(name.to_owned())?.ok_or_else(|| {
            publish_error(&self.target.path().join(name), PublishProblem::NotPublished)
        })
    }

    fn read(&self, name: String) -> Result<Option<PublishedModel>> {
        let Some((folder, record)) = self.target.open_model(&name)? else { return Ok(None) };
        // Its owner can remove the record meanwhile.
        let Ok(published) = directory::modified_in(&folder, Path::new(NAME)) else {
            return Ok(None);
        };
        Ok(Some(PublishedModel {
            directory: self.target.path().join(&name),
            name,
            source: record.source().to_owned(),
            published,
            content_bytes: record.files.iter().fold(0, |sum, it| it.bytes.saturating_add(sum)),
            is_pinned: directory::exists(&folder, Path::new(PIN_NAME)),
            is_complete: record.is_complete(&folder),
            folder,
            record,
        }))
    }

    /// Removes a model that is not in use and not pinned; with `force`, every model. It disappears at
    /// once. Programs that have its files open keep them, and their memory is freed when the last one
    /// closes them.
    ///
    /// # Errors
    /// [`Error::Publish`] with [`PublishProblem::InUse`],
    /// [`PublishProblem::UseUnknown`],
    /// [`PublishProblem::Pinned`] or [`PublishProblem::NotPublished`] if it was replaced or removed
    /// meanwhile; [`Error::Write`].
    pub fn evict(&self, model: &PublishedModel, force: bool) -> Result<()> {
        let refuse = |reason| Err(publish_error(&model.directory, reason));
        if !force {
            if directory::exists(&model.folder, Path::new(PIN_NAME)) {
                return refuse(PublishProblem::Pinned);
            }
            match model.usage().is_open {
                Ok(true) => return refuse(PublishProblem::InUse),
                Ok(false) => {}
                Err(error) => {
                    return refuse(PublishProblem::UseUnknown { cause: error.to_string() });
                }
            }
        }
        match self.target.remove(&model.name, &model.folder)? {
            true => Ok(()),
            false => refuse(PublishProblem::NotPublished),
        }
    }
}

impl PublishedModel {
    /// Returns the use of the model by other processes.
    ///
    /// It needs a lease of each file for a moment. A program that opens a file then waits for that
    /// moment, unless it opens it with `O_NONBLOCK`, which fails with `EWOULDBLOCK`.
    pub fn usage(&self) -> ModelUse {
        let mut found = ModelUse { is_open: Ok(false), last_access: SystemTime::UNIX_EPOCH };
        for record in &self.record.files {
            let used = self.usage_of(Path::new(&record.path));
            match used {
                Ok((is_open, last_access)) => {
                    found.last_access = found.last_access.max(last_access);
                    match is_open {
                        Ok(false) => {}
                        Ok(true) => found.is_open = Ok(true),
                        Err(error) if matches!(found.is_open, Ok(false)) => {
                            found.is_open = Err(error);
                        }
                        Err(_) => {}
                    }
                }
                // Its owner has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Another process has a lease of it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    found.is_open = Ok(true);
                }
                Err(error) => found.is_open = Err(error),
            }
        }
        found
    }

    fn usage_of(&self, path: &Path) -> io::Result<(io::Result<bool>, SystemTime)> {
        let located = directory::find_in(&self.folder, path)?;
        let file = beneath::open_located(&located)?;
        Ok((file_use::is_open_elsewhere(&file), file_use::note_access(&file)?))
    }

    /// Returns the memory that its files take. Those with other names are not counted.
    pub fn allocated_bytes(&self) -> u64 {
        self.record.allocated_bytes(&self.folder)
    }

    /// Pins the model, so that it is not evicted, or unpins it.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn set_pinned(&mut self, is_pinned: bool) -> Result<()> {
        let name = Path::new(PIN_NAME);
        let done = match is_pinned {
            true => pin(self.folder.as_fd()),
            false => directory::remove_all(&self.folder, name),
        };
        done.map_err(write_error(&self.directory))?;
        self.is_pinned = is_pinned;
        Ok(())
    }
}

/// Pins the model with this directory.
pub(crate) fn pin(folder: BorrowedFd<'_>) -> io::Result<()> {
    match directory::write_new(folder, Path::new(PIN_NAME), b"") {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
