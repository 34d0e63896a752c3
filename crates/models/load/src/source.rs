//! Source files: the files that a load reads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use longshore_mem::FileOffset;
use longshore_sys::file::{self, DirectAlignment, Kind};
use longshore_sys::page_cache;

use crate::checksum::Hasher;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::reason::{Change, FileKind};
use crate::version::FileVersion;

/// A regular file that is open for reading, with its version at that time, or an [`Object`].
#[derive(Debug)]
pub struct SourceFile {
    path: PathBuf,
    place: Place,
    version: FileVersion,
    header: OnceLock<HeaderSeen>,
}

/// The place of a file.
#[derive(Debug)]
enum Place {
    /// A file system of this machine.
    Local(Local),
    /// Another machine.
    Remote(Arc<dyn Object>),
}

/// The descriptors of a file.
#[derive(Debug)]
struct Local {
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    alignment: Option<DirectAlignment>,
    asked_direct: bool,
}

/// The beginning of a file that was parsed as its header. The checksums of a file are right only if it is also
/// the beginning of the bytes that they were computed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderSeen {
    pub(crate) len_bytes: u64,
    pub(crate) sha256: String,
}

/// An opener of the files of a model. It can limit the files that are opened, and the bytes of headers
/// that are read.
///
/// Every function from a path to a [`SourceFile`] is an opener.
pub trait Opener {
    /// Opens the file at `path`, which the caller has named, or which belongs to such a file.
    ///
    /// # Errors
    /// [`open_by`](crate::open_by) returns these errors.
    fn open(&self, path: &Path) -> Result<SourceFile>;

    /// Returns the path of a shard, by its name in the index at `path`.
    fn shard_path(&self, path: &Path, name: &str) -> PathBuf {
        path.with_file_name(name)
    }

    /// Permits `len_bytes` more of the header of this file, or of the file if it is an index, to be
    /// read. It is called before memory is allocated for them.
    ///
    /// # Errors
    /// [`open_by`](crate::open_by) returns these errors.
    fn permit_header(&self, source: &SourceFile, len_bytes: u64) -> Result<()> {
        let _ = (source, len_bytes);
        Ok(())
    }

    /// Permits a model of `count` files with tensors, of which this file is the first or the index. It
    /// is called before the paths of these files are made, because a short file can name 99,999 others.
    ///
    /// # Errors
    /// [`open_by`](crate::open_by) and [`others_of`](crate::others_of) return these errors.
    fn permit_files(&self, source: &SourceFile, count: u64) -> Result<()> {
        let _ = (source, count);
        Ok(())
    }
}

impl<F: Fn(&Path) -> Result<SourceFile>> Opener for F {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        self(path)
    }
}

impl SourceFile {
    /// Opens the file at `path`. A FIFO is refused, and does not block the call.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotRegular`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match file::open(&path) {
            Ok(fd) => Self::examine(fd, path, false),
            Err(source) => match file::kind_at(&path) {
                // Sockets, and devices without a driver, cannot be opened.
                Ok(kind @ (Kind::Socket | Kind::Device)) => {
                    Err(Error::NotRegular { path, kind: FileKind::from_kind(kind) })
                }
                _ => Err(Error::Open { path, source }),
            },
        }
    }

    /// Takes a descriptor of a file. If it has `O_DIRECT`, the file is read in
    /// [`crate::ReadMode::Direct`], whatever mode the loader has. The file position is neither used nor
    /// changed.
    ///
    /// # Errors
    /// [`Error::Open`] if the status of the file cannot be read, [`Error::NotRegular`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let path = path_of(fd.as_fd());
        let failed = |source| Error::Open { path: path.clone(), source };
        let asked_direct = file::is_direct(&fd).map_err(failed)?;
        Self::examine(fd, path, asked_direct)
    }

    fn examine(fd: OwnedFd, path: PathBuf, asked_direct: bool) -> Result<Self> {
        let failed = |source| Error::Open { path: path.clone(), source };
        let status = file::status(&fd).map_err(failed)?;
        if status.kind != Kind::Regular {
            return Err(Error::NotRegular { path, kind: FileKind::from_kind(status.kind) });
        }
        let (buffered, direct) = if asked_direct {
            (file::reopen_read_only(&fd).map_err(failed)?, Some(fd))
        } else {
            // A file system without direct I/O refuses the flag.
            let direct = status.direct.and_then(|_| file::reopen_direct(&fd).ok());
            (fd, direct)
        };
        let alignment = status.direct;
        let version = FileVersion::from_status(&status);
        let header = OnceLock::new();
        let place = Place::Local(Local { buffered, direct, alignment, asked_direct });
        Ok(Self { path, place, version, header })
    }

    /// Makes a source of a file of another machine. Errors and reports show `name`, so it must have no
    /// secrets, and [`open_by`](crate::open_by) chooses the format by it.
    pub fn from_object(name: impl Into<PathBuf>, object: Arc<dyn Object>) -> Self {
        let version = FileVersion::new((0, 0), 0, None, object.len(), (0, 0));
        let place = Place::Remote(object);
        Self { path: name.into(), place, version, header: OnceLock::new() }
    }

    /// Sets the path that reports and errors show.
    pub fn named(self, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..self }
    }

    /// Duplicates the descriptors of the file. The path is not opened again, so it can refer to another
    /// file by now, or to none. The version is the one at the first opening.
    ///
    /// # Errors
    /// [`Error::Open`] if the process has no free descriptors.
    pub fn try_clone(&self) -> Result<Self> {
        let failed = |source| Error::Open { path: self.path.clone(), source };
        let place = match &self.place {
            Place::Local(Local { buffered, direct, alignment, asked_direct }) => {
                Place::Local(Local {
                    buffered: buffered.try_clone().map_err(failed)?,
                    direct: direct.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?,
                    alignment: *alignment,
                    asked_direct: *asked_direct,
                })
            }
            Place::Remote(object) => Place::Remote(Arc::clone(object)),
        };
        let (path, header) = (self.path.clone(), self.header.clone());
        Ok(Self { path, place, version: self.version, header })
    }

    /// Returns the path that was opened; for a descriptor, the path that the kernel reports.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length in bytes when the file was opened.
    pub fn len(&self) -> u64 {
        self.version.len_bytes
    }

    /// Returns `true` if the file was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the identity, length and modification time when the file was opened.
    pub fn version(&self) -> FileVersion {
        self.version
    }

    /// Notes the SHA-256 checksum of the first bytes of the file, which were parsed as its header.
    ///
    /// # Errors
    /// [`Error::Changed`] if other bytes were parsed before.
    pub(crate) fn note_header(&self, len_bytes: u64, sha256: Hasher) -> Result<()> {
        let seen = HeaderSeen { len_bytes, sha256: sha256.finish() };
        if *self.header.get_or_init(|| seen.clone()) == seen {
            return Ok(());
        }
        Err(Error::Changed { path: self.path.clone(), change: Change::Written })
    }

    /// Returns the header that was parsed.
    pub(crate) fn header(&self) -> Option<&HeaderSeen> {
        self.header.get()
    }

    /// Returns `true` for a file of another machine.
    pub fn is_remote(&self) -> bool {
        self.object().is_some()
    }

    /// Returns the version that the server of the file sends ([`Object::version`]). `None` for a file of this
    /// machine, and if the server sends none.
    pub fn remote_version(&self) -> Option<&str> {
        self.object()?.version()
    }

    /// Returns the file of another machine, if it is one.
    pub(crate) fn object(&self) -> Option<&dyn Object> {
        match &self.place {
            Place::Local(_) => None,
            Place::Remote(object) => Some(&**object),
        }
    }

    fn local(&self) -> Option<&Local> {
        match &self.place {
            Place::Local(local) => Some(local),
            Place::Remote(_) => None,
        }
    }

    /// Returns the descriptor for reads through the page cache; `None` for an [`Object`].
    pub(crate) fn buffered(&self) -> Option<BorrowedFd<'_>> {
        self.local().map(|local| local.buffered.as_fd())
    }

    /// Returns the descriptor for reads through the page cache.
    ///
    /// # Errors
    /// [`Error::Open`] for an [`Object`].
    pub(crate) fn require_local(&self) -> Result<BorrowedFd<'_>> {
        self.buffered().ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::Unsupported, "it is not on this machine");
            Error::Open { path: self.path.clone(), source }
        })
    }

    /// Returns the descriptor for direct I/O and its alignment, if there is one.
    pub(crate) fn direct(&self) -> Option<(BorrowedFd<'_>, DirectAlignment)> {
        let local = self.local()?;
        Some((local.direct.as_ref()?.as_fd(), local.alignment?))
    }

    /// Returns `true` if the file came as a descriptor with `O_DIRECT`.
    pub(crate) fn asked_direct(&self) -> bool {
        self.local().is_some_and(|local| local.asked_direct)
    }

    /// Returns the number of bytes of the file that are in the page cache; `None` if the kernel does not
    /// report it.
    pub fn resident_bytes(&self) -> Option<u64> {
        let counted = page_cache::stat(self.buffered()?, FileOffset::new(0), u64::MAX >> 1).ok()?;
        Some(counted.cached_pages * longshore_sys::page_size_bytes() as u64)
    }

    /// Checks that the file has not changed since it was opened. Each read of an [`Object`] checks it.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was modified, [`Error::Truncated`] if it is shorter.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let Some(local) = self.local() else { return Ok(()) };
        let status = file::status(&local.buffered)
            .map_err(|source| Error::Open { path: self.path.clone(), source })?;
        let (before, now) = (self.version, FileVersion::from_status(&status));
        let path = self.path.clone();
        if now.len_bytes < before.len_bytes {
            let (ended_at, len_bytes) = (now.len_bytes, before.len_bytes);
            return Err(Error::Truncated { path, ended_at, len_bytes });
        }
        if now.len_bytes > before.len_bytes {
            let change = Change::Grew { from_bytes: before.len_bytes, to_bytes: now.len_bytes };
            return Err(Error::Changed { path, change });
        }
        if now != before {
            return Err(Error::Changed { path, change: Change::Written });
        }
        Ok(())
    }
}

fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let unnamed = |_: io::Error| PathBuf::from(format!("file descriptor {}", fd.as_raw_fd()));
    std::fs::read_link(link).unwrap_or_else(unnamed)
}
