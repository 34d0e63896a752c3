//! The local cache of the Hugging Face Hub.

use std::path::PathBuf;

use longshore_load::{HubCache, HubName};

/// Returns the path of a file in the local cache.
pub(crate) fn in_cache(name: &HubName) -> Option<PathBuf> {
    HubCache::from_env().ok()?.locate(name).ok()
}

/// Returns `true` for a revision that names a commit.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|it| it.is_ascii_hexdigit())
}
