//! The files to load: paths and descriptors of the caller.
#![expect(unsafe_code, reason = "duplicates descriptors of the caller")]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use longshore_formats::directory::ModelFilter;
use longshore_load::{self as library, FileVersion, FormatChoice, Opened, SourceFile};
use longshore_remote::Remote;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::error;

/// A file, as Python passes it.
#[derive(FromPyObject)]
pub(crate) enum Name {
    Descriptor(c_int),
    Path(PathBuf),
}

/// Files with names.
pub(crate) struct Named {
    paths: Vec<PathBuf>,
    /// The files of which the caller passed a descriptor. Their paths are in `paths`, too.
    open: Vec<SourceFile>,
    remote: Remote,
}

impl Named {
    /// Duplicates the descriptors.
    ///
    /// # Errors
    /// `ValueError` without any file, `OSError` for a descriptor that is not open, and errors of
    /// [`SourceFile::from_fd`].
    pub(crate) fn new(py: Python<'_>, names: Vec<Name>, remote: Remote) -> PyResult<Self> {
        if names.is_empty() {
            return Err(PyValueError::new_err("no file is named"));
        }
        let mut named = Self { paths: Vec::new(), open: Vec::new(), remote };
        for name in names {
            let path = match name {
                Name::Path(path) => path,
                Name::Descriptor(fd) => named.take(py, fd)?,
            };
            named.paths.push(path);
        }
        Ok(named)
    }

    fn take(&mut self, py: Python<'_>, fd: c_int) -> PyResult<PathBuf> {
        if fd < 0 {
            return Err(PyValueError::new_err(format!("{fd} is not a file descriptor")));
        }
        // SAFETY: it is not -1. It is only duplicated: if it is not open, the kernel returns EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let fd = fd.try_clone_to_owned().map_err(|error| {
            PyOSError::new_err((error.raw_os_error(), "the file descriptor is not open"))
        })?;
        let mut source = SourceFile::from_fd(fd).map_err(|error| error::raised(py, &error))?;
        if self.open.iter().any(|other| other.path() == source.path()) {
            // Two deleted files can have had the same path.
            let path = format!("{} ({})", source.path().display(), self.open.len());
            source = source.named(path);
        }
        let path = source.path().to_owned();
        self.open.push(source);
        Ok(path)
    }

    /// Lets a token end the requests that find and open files, too.
    pub(crate) fn cancel(self, token: &library::CancelToken) -> Self {
        Self { remote: self.remote.cancel(token), ..self }
    }

    /// Returns the access to servers.
    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Opens the files, and reads their headers.
    pub(crate) fn open(&self, format: FormatChoice) -> library::Result<Opened> {
        let opener = |path: &Path| {
            let open = self.open.iter().find(|source| source.path() == path);
            open.map_or_else(|| self.remote.open_file(path), SourceFile::try_clone)
        };
        let filter = ModelFilter::new();
        let mut files = Vec::new();
        for path in &self.paths {
            match self.open.iter().any(|source| source.path() == path) {
                true => files.push(path.clone()),
                false => files.extend(self.remote.find_files(path, format, &filter)?),
            }
        }
        library::open_by(&files, format, &opener)
    }
}

/// The version of a file as Python compares it: the device, the inode, the length, and the time of the
/// last modification.
pub(crate) type Identity = ((u32, u32), u64, u64, (i64, u32));

/// Returns the version of a file for Python. The creation time is not a part of it.
pub(crate) fn identity(version: &FileVersion) -> Identity {
    (version.device, version.inode, version.len_bytes, version.modified)
}
