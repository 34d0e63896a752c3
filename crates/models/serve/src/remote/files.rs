//! The files of a model on servers, and their versions.

use std::fmt;
use std::path::{Path, PathBuf};

use longshore_load::{HubName, Plan, PlannedFile, SourceFile};

/// The limit on the length of a version. A file with a longer one is taken for one without a version.
const VERSION_BYTES_MAX: usize = 1024;

/// The files of a model on servers, as they were when they were found.
#[derive(Debug)]
pub(crate) struct RemoteFiles {
    /// The file that names the others.
    pub(super) main: PathBuf,
    /// All files that were opened, the index included.
    pub(super) opened: Vec<RemoteFile>,
    /// The files to load.
    pub(super) files: Vec<RemoteFile>,
    /// The length of the buffer for them, in bytes.
    pub(super) len_bytes: u64,
}

/// A file of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    pub(super) path: PathBuf,
    pub(super) len_bytes: u64,
    pub(super) version: Option<String>,
}

impl RemoteFile {
    pub(super) fn of(source: &SourceFile) -> Self {
        let path = source.path().to_owned();
        let version = source.remote_version().filter(|version| version.len() <= VERSION_BYTES_MAX);
        let version = version.map(str::to_owned).or_else(|| commit_of(&path));
        Self { path, len_bytes: source.len(), version }
    }
}

impl RemoteFiles {
    /// Returns `true` if both are the same versions of the same files. A file without a version is never the
    /// same as another one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.has_versions() && self.files == other.files
    }

    /// Returns `true` if the server has sent a version of each file.
    pub(crate) fn has_versions(&self) -> bool {
        self.files.iter().all(|file| file.version.is_some())
    }
}

/// Returns a text that identifies the files of a model in a load.
impl fmt::Display for RemoteFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.files)
    }
}

/// Returns the commit in a name of the Hub, whose content never changes.
fn commit_of(path: &Path) -> Option<String> {
    let revision = HubName::from_path(path).ok()??.revision?;
    let is_commit = revision.len() == 40 && revision.bytes().all(|it| it.is_ascii_hexdigit());
    is_commit.then_some(revision)
}

pub(super) fn files_of(plan: &Plan) -> Vec<RemoteFile> {
    plan.files().iter().map(PlannedFile::source).map(RemoteFile::of).collect()
}
