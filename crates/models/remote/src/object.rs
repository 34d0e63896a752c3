//! A file of a server as a source of a load.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use longshore_load::{Object, ObjectError, ReadControl};
use longshore_mem::VolatileSliceMut;

use crate::http::{HttpError, HttpFile, Limits, Version};
use crate::shared::{IDLE_TIMEOUT, KeptBytes, Notes, TimeLimit};
use crate::xet::{XetAccess, XetFile, XetId};

/// A file of a server, which a load reads.
#[derive(Debug)]
pub(crate) struct RemoteObject {
    pub(crate) file: ServerFile,
    /// A checksum of the URL, which can have secrets.
    pub(crate) origin: Option<String>,
    pub(crate) sha256: Option<String>,
    pub(crate) time: TimeLimit,
    pub(crate) _first_bytes: Option<KeptBytes>,
}

/// A file of a server, read by ranges of it, or in the chunks of Xet storage.
#[derive(Debug)]
pub(crate) enum ServerFile {
    /// Ranges of the file.
    Ranges {
        file: HttpFile,
        /// The access to Xet storage, if the file is one of the Hub.
        other: Option<Other>,
    },
    /// The storage refused the first range.
    Xet {
        file: XetFile,
        version: String,
        /// The `X-Linked-Etag` of the Hub.
        linked: Option<String>,
        /// The first bytes.
        first: Vec<u8>,
    },
}

/// The access to a file in Xet storage, for the case that the storage refuses ranges.
#[derive(Debug)]
pub(crate) struct Other {
    access: Arc<XetAccess>,
    name: PathBuf,
    notes: Notes,
    /// Set when the storage has refused a range. Then all others are read in chunks, too.
    file: OnceLock<XetFile>,
}

impl ServerFile {
    /// Opens a file in Xet storage if its storage refused the first range.
    ///
    /// # Errors
    /// [`HttpError`].
    pub(crate) fn of(
        opened: Result<HttpFile, HttpError>,
        xet: Option<Arc<XetAccess>>,
        name: &Path,
        notes: &Notes,
        limits: &Limits<'_>,
    ) -> Result<Self, HttpError> {
        let other = xet.map(|access| Other {
            access,
            name: name.to_owned(),
            notes: notes.clone(),
            file: OnceLock::new(),
        });
        match (opened, other) {
            (Err(HttpError::RangesRefused { status, file: id }), Some(other)) => {
                let Some(len_bytes) = id.len_bytes else {
                    return Err(HttpError::RangesRefused { status, file: id });
                };
                let version = format!("xet:{}", id.hash);
                let linked = id.linked_etag.clone();
                let file = XetFile::new(&other.access, *id, len_bytes);
                let first = file.first(limits)?;
                other.note(status);
                Ok(Self::Xet { file, version, linked, first })
            }
            (opened, other) => Ok(Self::Ranges { file: opened?, other }),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Ranges { file, .. } => file.len(),
            Self::Xet { file, .. } => file.len(),
        }
    }

    /// Returns the first bytes of the file.
    pub(crate) fn first(&self) -> &[u8] {
        match self {
            Self::Ranges { file, .. } => file.first(),
            Self::Xet { first, .. } => first,
        }
    }

    /// Frees the memory of the first bytes, which are requested again when they are read.
    pub(crate) fn forget_first(&mut self) {
        match self {
            Self::Ranges { file, .. } => file.forget_first(),
            Self::Xet { first, .. } => *first = Vec::new(),
        }
    }

    /// Returns `true` if a change would be detected.
    pub(crate) fn has_version(&self) -> bool {
        match self {
            Self::Ranges { file, .. } => file.version() != &Version::default() || file.is_empty(),
            Self::Xet { .. } => true,
        }
    }

    /// Returns the `X-Linked-Etag` of the server that redirected to the file.
    pub(crate) fn linked(&self) -> Option<&str> {
        match self {
            Self::Ranges { file, .. } => file.linked(),
            Self::Xet { linked, .. } => linked.as_deref(),
        }
    }

    fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        limits: &Limits<'_>,
    ) -> Result<(), HttpError> {
        match self {
            Self::Xet { file, .. } => file.read(memory, offset, limits),
            Self::Ranges { file, other: None } => file.read(memory, offset, limits),
            Self::Ranges { file, other: Some(other) } => {
                if let Some(in_xet) = other.file.get() {
                    return in_xet.read(memory, offset, limits);
                }
                match file.read(memory, offset, limits) {
                    Err(HttpError::RangesRefused { status, file: id }) => {
                        other.file(file, status, &id)?.read(memory, offset, limits)
                    }
                    done => done,
                }
            }
        }
    }
}

impl Other {
    /// Returns the file in Xet storage in place of `opened`, whose storage refused a range.
    fn file(&self, opened: &HttpFile, status: u16, id: &XetId) -> Result<&XetFile, HttpError> {
        let is_other = |before: &XetId| before.hash != id.hash;
        if opened.xet().is_some_and(is_other) || id.len_bytes.is_some_and(|it| it != opened.len()) {
            return Err(HttpError::Changed);
        }
        let file = self.file.get_or_init(|| XetFile::new(&self.access, id.clone(), opened.len()));
        if file.hash() != id.hash {
            return Err(HttpError::Changed);
        }
        self.note(status);
        Ok(file)
    }

    fn note(&self, status: u16) {
        let name = self.name.display();
        self.notes.push(format!(
            "{name} is read in the chunks of Xet storage, because the storage refuses ranges (status {status})"
        ));
    }
}

impl Object for RemoteObject {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn version(&self) -> Option<&str> {
        match &self.file {
            // Two files can be of the same second.
            ServerFile::Ranges { file, .. } => file.version().strong(),
            ServerFile::Xet { version, .. } => Some(version),
        }
    }

    fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    fn sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        control: &dyn ReadControl,
    ) -> Result<(), ObjectError> {
        // Most headers need no other request.
        let end = (offset as usize).saturating_add(memory.len());
        if let Some(known) = self.file.first().get(offset as usize..end) {
            let written = memory.write(0, known);
            return written.map_err(|error| ObjectError::Failed(error.into()));
        }
        let limits = Limits { control, idle_timeout: IDLE_TIMEOUT, deadline: self.time.deadline() };
        let read = self.file.read(memory, offset, &limits);
        read.map_err(|error| match error {
            HttpError::Changed => ObjectError::Changed,
            HttpError::Stopped => ObjectError::Stopped,
            error => ObjectError::Failed(io::Error::from(error).into()),
        })
    }
}
