//! The inodes of served files, kept in use.
//!
//! A file system gives the number of a deleted inode to a new file, which may be another user's, and
//! that user can set its length and its time of modification. So numbers are compared only while both
//! inodes are in use: the server's by a descriptor of this module (`O_PATH`), the client's by the
//! descriptor that it sent.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use longshore_load::{Change, FileKind, FileVersion, SourceFile};
use longshore_sys::beneath;
use longshore_sys::file::{self, Kind, Version};
use longshore_sys::file_handle::FileHandle;

use releasing::Releasing;

mod releasing;

/// Files that are neither read nor opened, but whose inodes stay in use.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    files: Vec<HeldInode>,
}

/// One of these files.
#[derive(Debug)]
pub(crate) struct HeldInode {
    path: PathBuf,
    kind: Kind,
    pub(crate) version: Version,
    /// The handle by which its file system distinguishes it from other files with the same number.
    pub(crate) handle: Option<FileHandle>,
    descriptor: OwnedFd,
}

impl HeldInode {
    /// Wraps a file that was found at `path` ([`beneath::locate`]).
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub(crate) fn new(path: &Path, descriptor: OwnedFd) -> std::io::Result<Self> {
        let file::Status { kind, version, .. } = file::status(&descriptor)?;
        let handle = FileHandle::of(&descriptor);
        Ok(Self { path: path.to_owned(), kind, version, handle, descriptor })
    }

    /// # Errors
    /// [`longshore_load::Error::NotRegular`].
    pub(crate) fn check_regular(&self) -> longshore_load::Result<()> {
        if self.kind == Kind::Regular {
            return Ok(());
        }
        let kind = match self.kind {
            Kind::Directory => FileKind::Directory,
            Kind::Fifo => FileKind::Fifo,
            Kind::Socket => FileKind::Socket,
            Kind::Device => FileKind::Device,
            _ => FileKind::Other,
        };
        Err(longshore_load::Error::NotRegular { path: self.path.clone(), kind })
    }

    /// Opens this very inode for reading.
    ///
    /// # Errors
    /// [`longshore_load::Error::NotRegular`], [`longshore_load::Error::Open`], and
    /// [`longshore_load::Error::Changed`] if it was written to meanwhile.
    fn open(&self) -> longshore_load::Result<SourceFile> {
        self.check_regular()?;
        let opened = beneath::open_located(self)
            .map_err(|source| longshore_load::Error::Open { path: self.path.clone(), source })?;
        let source = SourceFile::from_fd(opened)?.named(&self.path);
        if source.version() != file_version(&self.version) {
            return Err(changed(&self.path));
        }
        Ok(source)
    }
}

impl AsFd for HeldInode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Inodes {
    pub(crate) fn push(&mut self, file: HeldInode) {
        self.files.push(file);
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Opens one of the files, by the path under which it was found. No other file is ever opened.
    ///
    /// # Errors
    /// Those of [`HeldInode::open`]; [`longshore_load::Error::Changed`] for any other path.
    pub(crate) fn open(&self, path: &Path) -> longshore_load::Result<SourceFile> {
        let file = self.files.iter().find(|file| file.path == path);
        file.ok_or_else(|| changed(path))?.open()
    }

    /// Returns the handles of the files, in their order.
    pub(crate) fn handles(&self) -> impl Iterator<Item = Option<&FileHandle>> {
        self.files.iter().map(|file| file.handle.as_ref())
    }

    /// Keeps only the files at these paths, in this order.
    pub(crate) fn keep<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        let mut files = std::mem::take(&mut self.files);
        let mut take = |path| {
            let at = files.iter().position(|file| file.path == path)?;
            Some(files.swap_remove(at))
        };
        self.files = paths.filter_map(&mut take).collect();
        drop(Self { files });
    }

    /// Returns `true` if the kernel knows, without asking a file system, that one of the files is
    /// deleted.
    pub(crate) fn is_any_known_unlinked(&self) -> bool {
        self.files.iter().any(|file| file::is_known_unlinked(file).unwrap_or(false))
    }

    /// Returns `true` if one of the files is deleted. A file that cannot be examined is taken for
    /// deleted: a network file system may have forgotten it.
    pub(crate) fn is_any_unlinked(&self) -> bool {
        self.files.iter().any(|file| file::status(file).map_or(true, |now| now.links == 0))
    }
}

/// Closes the descriptors on other threads, so that no thread that drops a model waits for that.
impl Drop for Inodes {
    fn drop(&mut self) {
        static RELEASING: Releasing<OwnedFd> = Releasing::new();
        let files = std::mem::take(&mut self.files);
        let device = |file: &HeldInode| file.version.identity().device;
        RELEASING.release(files.into_iter().map(|file| (device(&file), file.descriptor)));
    }
}

pub(crate) fn changed(path: &Path) -> longshore_load::Error {
    longshore_load::Error::Changed { path: path.to_owned(), change: Change::Replaced }
}

/// Returns the state of a file in the form of [`SourceFile::version`].
pub(crate) fn file_version(version: &Version) -> FileVersion {
    let identity = version.identity();
    let (len_bytes, modified) = (version.len_bytes(), version.modified());
    FileVersion::new(identity.device, identity.inode, identity.born, len_bytes, modified)
}
