//! The local cache of the Hugging Face Hub.

use std::path::PathBuf;

use longshore_load::{HubCache, HubName};

/// Returns the path of a file in the local cache.
pub(crate) fn in_cache(name: &HubName) -> Option<PathBuf> {
    HubCache::from_env().ok()?.locate(name).ok().filter(|path| path.is_file())
}
