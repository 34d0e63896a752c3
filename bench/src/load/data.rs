//! The files that are loaded: their places, their content, and the check of loaded content.

mod folder;
mod pattern;
mod safetensors;
mod size;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use folder::{Folder, cache, write_safetensors};
pub(crate) use pattern::{check, check_part, fill};
pub(crate) use size::parse_size;

/// A file whose content follows from this description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataFile {
    pub(crate) path: PathBuf,
    pub(crate) len_bytes: u64,
    /// The end of the header; from here on every word follows from its offset.
    pub(crate) data_start: u64,
    pub(crate) seed: u64,
}
