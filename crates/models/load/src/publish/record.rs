//! The record of a published model: the identity of each of its source files.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Component, Path};

use longshore_sys::directory::{self, Attributes};
use longshore_sys::effective_uid;
use longshore_sys::file::{self, Kind, Status};
use serde::{Deserialize, Serialize};

use crate::digest_kind::DigestKind;
use crate::source::SourceFile;
use crate::version::FileVersion;

/// The name of the record in the directory of a model.
pub(crate) const NAME: &str = ".longshore.json";
/// The name of the file that marks a pinned model, in its directory.
pub(crate) const PIN_NAME: &str = ".longshore.pinned";
/// The limit on files and directories of a model.
pub(crate) const ENTRIES_MAX: usize = 10_000;
/// The limit on nested directories.
pub(crate) const DEPTH_MAX: usize = 16;
/// The version of the format.
const FORMAT: u32 = 1;
/// The limit on the length of a record that is read.
pub(crate) const LEN_MAX_BYTES: u64 = 16 << 20;

const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The record of a model.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// The path of the source, for people. Models are compared by the identity of their files.
    source: String,
    /// The requested mode, if one was requested.
    mode: Option<u32>,
    pub(crate) files: Vec<FileRecord>,
}

/// The record of one file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) path: String,
    device: (u32, u32),
    inode: u64,
    born: Option<(i64, u32)>,
    pub(crate) bytes: u64,
    modified: (i64, u32),
    /// The version that the server of the file sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default)]
    pub(crate) digests: BTreeMap<String, String>,
}

impl Record {
    pub(crate) fn new(source: &Path, mode: Option<u32>, files: Vec<FileRecord>) -> Self {
        Self { format: FORMAT, source: source.to_string_lossy().into_owned(), mode, files }
    }

    /// Returns the path of the directory with the source files.
    pub(crate) fn source(&self) -> &Path {
        Path::new(&self.source)
    }

    /// Reads the record in the directory of a model. Returns `None` if there is no valid one, or if the
    /// record or the directory belongs to another user than root and this one, or may be written to by others.
    pub(crate) fn read(model: impl AsFd) -> Option<Self> {
        let is_trusted = |it: &Attributes| {
            [0, effective_uid()].contains(&it.owner) && it.mode & WRITABLE_BY_OTHERS == 0
        };
        let model = model.as_fd();
        if !directory::attributes(model).is_ok_and(|it| is_trusted(&it)) {
            return None;
        }
        let (found, bytes) = directory::read_in(model, Path::new(NAME), LEN_MAX_BYTES).ok()?;
        if !is_trusted(&found) {
            return None;
        }
        let record: Self = serde_json::from_slice(&bytes).ok()?;
        (record.format == FORMAT && record.is_valid()).then_some(record)
    }

    /// Returns `true` if this crate can have written the record.
    fn is_valid(&self) -> bool {
        let is_plain = |file: &FileRecord| {
            let mut names = Path::new(&file.path).components();
            names.clone().count() <= DEPTH_MAX + 1
                && names.all(|name| matches!(name, Component::Normal(_)))
        };
        self.files.len() <= ENTRIES_MAX
            && self.files.iter().all(is_plain)
            && self.files.is_sorted_by(|one, next| one.path < next.path)
    }

    /// Returns `true` if both are of the same versions of the same files, published with the same mode.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        // Two servers can send the same version for different content.
        let is_local = |file: &FileRecord| file.identity().is_some();
        (self.source == other.source || self.files.iter().all(is_local))
            && self.mode == other.mode
            && self.files.len() == other.files.len()
            && self.files.iter().zip(&other.files).all(|(one, other)| one.is_same(other))
    }

    /// Returns `true` if the directory of the model has all files with their lengths.
    pub(crate) fn is_complete(&self, model: impl AsFd) -> bool {
        self.statuses(model)
            .all(|(record, found)| found.is_some_and(|it| it.version.len_bytes() == record.bytes))
    }

    /// Returns the memory of the files of a model, without those that have other names, too.
    pub(crate) fn allocated_bytes(&self, model: impl AsFd) -> u64 {
        let found = self.statuses(model).filter_map(|(_, found)| found.filter(|it| it.links == 1));
        found.fold(0, |sum, it| it.allocated_bytes.saturating_add(sum))
    }

    /// Returns the status of each file of a model; `None` if it is missing, or not a regular file.
    fn statuses(&self, model: impl AsFd) -> impl Iterator<Item = (&FileRecord, Option<Status>)> {
        self.files.iter().map(move |record| {
            let found = directory::find_in(&model, Path::new(&record.path)).and_then(file::status);
            (record, found.ok().filter(|it| it.kind == Kind::Regular))
        })
    }
}

impl FileRecord {
    pub(crate) fn new(path: &str, version: &FileVersion) -> Self {
        Self {
            path: path.to_owned(),
            device: version.device,
            inode: version.inode,
            born: version.born,
            bytes: version.len_bytes,
            modified: version.modified,
            version: None,
            digests: BTreeMap::new(),
        }
    }

    /// Makes the record of a file, which can be one of a server.
    pub(crate) fn of(path: &str, source: &SourceFile) -> Self {
        let version = source.object().and_then(|object| {
            Some(format!("{} {}", object.origin().unwrap_or_default(), object.version()?))
        });
        Self { version, ..Self::new(path, &source.version()) }
    }

    /// Returns the device and inode of the file; `None` for one of a server.
    pub(crate) fn identity(&self) -> Option<((u32, u32), u64)> {
        (self.inode != 0).then_some((self.device, self.inode))
    }

    fn is_same(&self, other: &Self) -> bool {
        // A server that sends no version may have another file now.
        (self.identity().is_some() || self.version.is_some())
            && (&self.path, self.identity(), self.born, self.bytes, self.modified, &self.version)
                == (
                    &other.path,
                    other.identity(),
                    other.born,
                    other.bytes,
                    other.modified,
                    &other.version,
                )
    }

    pub(crate) fn digests(&self) -> Vec<(DigestKind, String)> {
        let parse = |(kind, digest): (&String, &String)| Some((kind.parse().ok()?, digest.clone()));
        self.digests.iter().filter_map(parse).collect()
    }
}
