//! What a server holds.

use std::fmt;
use std::path::PathBuf;

/// What a server holds, or is loading.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Its number: none is used twice by one server.
    pub id: u64,
    /// The file it was asked for by.
    pub path: PathBuf,
    /// The format that it was loaded as.
    pub format: String,
    /// What its tensors begin at multiples of; 0 where they are as in the file.
    pub align_bytes: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// How many of them are there: fewer than all while it is being loaded.
    pub done_bytes: u64,
    /// How many attachments it has.
    pub attachments: u32,
    /// Whether it is there, or still being loaded.
    pub state: HeldState,
    /// Whether the files on disk are no longer those that were loaded.
    pub is_stale: bool,
    /// Whether it is kept for as long as the server runs.
    pub is_pinned: bool,
    /// Since when it is held or being loaded, in milliseconds.
    pub age_ms: u64,
}

impl Held {
    /// Makes a model that waits to be loaded from `path`.
    pub fn new(id: u64, path: impl Into<PathBuf>) -> Self {
        Self {
            id,
            path: path.into(),
            format: "auto".to_owned(),
            align_bytes: 0,
            len_bytes: 0,
            done_bytes: 0,
            attachments: 0,
            state: HeldState::Loading,
            is_stale: false,
            is_pinned: false,
            age_ms: 0,
        }
    }
}

/// How far a model has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldState {
    /// It waits or is being loaded.
    Loading,
    /// It is complete.
    Ready,
}

impl fmt::Display for HeldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
        })
    }
}
