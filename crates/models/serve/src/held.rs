//! The models of a server.

use std::fmt;
use std::path::PathBuf;

/// A model that a server has in memory, or is loading.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The number of the model, which the server uses only once.
    pub id: u64,
    /// The path by which it was requested, or its name on a server.
    pub path: PathBuf,
    /// The format as which it was loaded.
    pub format: String,
    /// The alignment of its tensors in bytes; 0 if they lie as in the file.
    pub align_bytes: u64,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The number of bytes that are loaded.
    pub done_bytes: u64,
    /// The number of attachments.
    pub attachments: u32,
    /// The state of the model.
    pub state: HeldState,
    /// `true` if the files on disk are no longer those that were loaded.
    pub is_stale: bool,
    /// `true` if it is kept for as long as the server runs.
    pub is_pinned: bool,
    /// The time since it was requested first, in milliseconds.
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

/// The state of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldState {
    /// It waits to be loaded, or is being loaded.
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
