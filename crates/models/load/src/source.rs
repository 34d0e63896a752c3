//! Files to load from, opened and looked at.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use longshore_mem::FileOffset;
use longshore_sys::file::{self, DirectAlignment, Kind};
use longshore_sys::page_cache;

use crate::error::{Error, Result};
use crate::reason::{Change, FileKind};
use crate::version::FileVersion;

/// A regular file that is open for reading, and what it was when it was opened.
#[derive(Debug)]
pub struct SourceFile {
    path: PathBuf,
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    alignment: Option<DirectAlignment>,
    asked_direct: bool,
    version: FileVersion,
}

/// Opens the files of a model, and decides how much of their headers is read.
///
/// Every function from a path to a file is one.
pub trait Opener {
    /// Opens the file at `path`, which was named or belongs to one that was.
    ///
    /// # Errors
    /// Those that [`open_by`](crate::open_by) is to return.
    fn open(&self, path: &Path) -> Result<SourceFile>;

    /// Permits reading `len_bytes` more of the header of this file, or of the index that it is. Memory
    /// for them is allocated afterwards.
    ///
    /// # Errors
    /// Those that [`open_by`](crate::open_by) is to return in place of the header.
    fn permit_header(&self, source: &SourceFile, len_bytes: u64) -> Result<()> {
        let _ = (source, len_bytes);
        Ok(())
    }

    /// Permits this file to stand for itself and others, or as an index for others: for `count` files
    /// that hold tensors. Their paths are made afterwards; a short file can stand for 99,999.
    ///
    /// # Errors
    /// Those that [`open_by`](crate::open_by) and [`others_of`](crate::others_of) are to return.
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
    /// Opens the file at `path`. A FIFO does not block: it is refused.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotRegular`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match file::open(&path) {
            Ok(fd) => Self::examine(fd, path, false),
            Err(source) => match file::kind_at(&path) {
                // A socket cannot be opened, nor a device without a driver.
                Ok(kind @ (Kind::Socket | Kind::Device)) => {
                    Err(Error::NotRegular { path, kind: FileKind::from_kind(kind) })
                }
                _ => Err(Error::Open { path, source }),
            },
        }
    }

    /// Takes a file that is open already. If `O_DIRECT` is set on it, it is read in
    /// [`crate::ReadMode::Direct`], whatever the loader's mode. Its position does not matter and
    /// is not moved.
    ///
    /// # Errors
    /// [`Error::Open`] where it cannot be asked about, [`Error::NotRegular`].
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
        Ok(Self { path, buffered, direct, alignment, asked_direct, version })
    }

    /// Uses this name in reports and errors instead of the kernel's.
    pub fn named(self, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..self }
    }

    /// The same open file once more, also where its name leads to another one by now, or to none.
    /// What it was is what it was when it was first opened.
    ///
    /// # Errors
    /// [`Error::Open`] where the process has no descriptor left.
    pub fn try_clone(&self) -> Result<Self> {
        let failed = |source| Error::Open { path: self.path.clone(), source };
        Ok(Self {
            path: self.path.clone(),
            buffered: self.buffered.try_clone().map_err(failed)?,
            direct: self.direct.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?,
            alignment: self.alignment,
            asked_direct: self.asked_direct,
            version: self.version,
        })
    }

    /// The name it was opened by, or for a descriptor the name the kernel knows.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.version.len_bytes
    }

    /// Whether there was no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its identity, size and time of modification when it was opened.
    pub fn version(&self) -> FileVersion {
        self.version
    }

    /// The descriptor that reads through the page cache.
    pub(crate) fn buffered(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptor that reads past it and how reads must be aligned, if there is one.
    pub(crate) fn direct(&self) -> Option<(BorrowedFd<'_>, DirectAlignment)> {
        Some((self.direct.as_ref()?.as_fd(), self.alignment?))
    }

    /// Whether its owner opened it with `O_DIRECT`.
    pub(crate) fn asked_direct(&self) -> bool {
        self.asked_direct
    }

    /// How many bytes of it are in the page cache; `None` where the kernel does not tell.
    pub fn resident_bytes(&self) -> Option<u64> {
        let counted = page_cache::stat(&self.buffered, FileOffset::new(0), u64::MAX >> 1).ok()?;
        Some(counted.cached_pages * longshore_sys::page_size_bytes() as u64)
    }

    /// Checks that the file still is what it was when it was opened.
    ///
    /// # Errors
    /// [`Error::Changed`] where it was modified, [`Error::Truncated`] where it is shorter.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let status = file::status(&self.buffered)
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
