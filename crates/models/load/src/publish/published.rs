//! A published model.

use std::path::PathBuf;
use std::time::Duration;

use longshore_heap::PageReport;

use crate::digest_kind::DigestKind;

/// The way in which a model got its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The model is new.
    New,
    /// The model has replaced another one, or another version.
    Replaced,
    /// The same version of the model was published already, so nothing was read.
    AlreadyPublished,
    /// The same version of the model was published already, so nothing was read. The permissions of the
    /// source have changed, and so did those of the model.
    AccessChanged,
}

/// A published model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Published {
    /// The absolute path for programs: the directory, or the file in it if the source is a file.
    pub path: PathBuf,
    /// The directory of the model.
    pub directory: PathBuf,
    /// The way in which the model got its name.
    pub outcome: Outcome,
    /// The files, sorted by path.
    pub files: Vec<PublishedFile>,
    /// The number of bytes of all files.
    pub content_bytes: u64,
    /// The page sizes of the memory that was filled.
    pub pages: PageReport,
    /// `true` if programs that map the files get 2 MiB pages, because the tmpfs is mounted with
    /// `huge=always` or `huge=within_size`.
    pub gives_huge_pages: bool,
    /// The permission bits of the model's directory: of the publisher, of the group, and of others.
    pub mode: u32,
    /// The owner of the source and its permission bits, if an access control list gives them.
    pub user: Option<(u32, u32)>,
    /// The time from the call to the name.
    pub elapsed: Duration,
}

/// A file of a [`Published`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublishedFile {
    /// The path in the directory of the model.
    pub path: PathBuf,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The checksums that were computed.
    pub digests: Vec<(DigestKind, String)>,
}
