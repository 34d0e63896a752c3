//! The record of a published model: the identity of each of its source files.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use longshore_sys::beneath::{self, Reach};
use longshore_sys::directory;
use longshore_sys::file::{self, Kind};
use serde::{Deserialize, Serialize};

use crate::digest_kind::DigestKind;
use crate::version::FileVersion;

/// The name of the record in the directory of a model.
pub(crate) const NAME: &str = ".longshore.json";
/// The name of the file that marks a pinned model, in its directory.
pub(crate) const PIN_NAME: &str = ".longshore.pinned";
/// The limit on files and directories of a model.
pub(crate) const ENTRIES_MAX: usize = 10_000;
/// The version of the format.
const FORMAT: u32 = 1;
/// The limit on the length of a record that is read.
pub(crate) const LEN_MAX_BYTES: u64 = 16 << 20;

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

    /// Reads the record in the directory of a model. Returns `None` if there is no valid one.
    pub(crate) fn read(model: impl AsFd) -> Option<Self> {
        let (_, bytes) = directory::read_in(model, Path::new(NAME), LEN_MAX_BYTES).ok()?;
        let record: Self = serde_json::from_slice(&bytes).ok()?;
        (record.format == FORMAT && record.files.len() <= ENTRIES_MAX).then_some(record)
    }

    /// Returns `true` if both are of the same versions of the same files, published with the same mode.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.mode == other.mode
            && self.files.len() == other.files.len()
            && self.files.iter().zip(&other.files).all(|(one, other)| one.is_same(other))
    }

    /// Returns `true` if the directory of the model has all files with their lengths.
    pub(crate) fn is_complete(&self, model: impl AsFd) -> bool {
        let model = model.as_fd();
        self.files.iter().all(|record| {
            let located = beneath::locate(model, Path::new(&record.path), Reach::Beneath);
            let status = located.and_then(file::status);
            status.is_ok_and(|found| {
                found.kind == Kind::Regular && found.version.len_bytes() == record.bytes
            })
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
            digests: BTreeMap::new(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.path, self.device, self.inode, self.born, self.bytes, self.modified)
            == (&other.path, other.device, other.inode, other.born, other.bytes, other.modified)
    }

    pub(crate) fn digests(&self) -> Vec<(DigestKind, String)> {
        let parse = |(kind, digest): (&String, &String)| Some((kind.parse().ok()?, digest.clone()));
        self.digests.iter().filter_map(parse).collect()
    }
}
