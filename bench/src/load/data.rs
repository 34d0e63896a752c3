//! The files that are loaded: where they are, what is in them, and how to tell that it arrived.

mod folder;
mod pattern;
mod safetensors;
mod size;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use folder::{Folder, cache};
pub(crate) use pattern::{check, check_part, fill};
pub(crate) use size::parse_size;

/// A file whose content can be told from its description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataFile {
    pub(crate) path: PathBuf,
    pub(crate) len_bytes: u64,
    /// What lies before is a header; from here on every word follows from its offset.
    pub(crate) data_start: u64,
    pub(crate) seed: u64,
}
