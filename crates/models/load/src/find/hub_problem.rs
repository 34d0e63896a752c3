//! The reasons why a repository of the Hugging Face Hub is not found.

use std::path::PathBuf;

use super::hub_name::ParseHubNameError;

/// The reason why a repository was not found in the local cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubProblem {
    /// The name is not valid.
    #[error(transparent)]
    Name(#[from] ParseHubNameError),
    /// The environment names no cache, and there is no home directory.
    #[error("there is no cache: neither HF_HUB_CACHE, HF_HOME nor HOME is set")]
    NoCache,
    /// The repository is not in the cache.
    #[error("{repository} is not in {}; run: hf download {repository}", cache.display())]
    NotCached {
        /// The repository.
        repository: String,
        /// The directory of the cache.
        cache: PathBuf,
    },
    /// The cache has the repository, but not this revision.
    #[error(
        "{repository} is in {}, but not its revision {revision}; run: hf download {repository} \
         --revision {revision}", cache.display()
    )]
    NoRevision {
        /// The repository.
        repository: String,
        /// The revision.
        revision: String,
        /// The directory of the cache.
        cache: PathBuf,
    },
    /// A folder of a repository, or a file in one, cannot be published.
    #[error("a folder of a repository, or a file in one, cannot be published; give the repository")]
    Nested,
    /// The cache has the revision, but not this file.
    #[error("{file} of {repository} is not in {}; run: hf download {repository} {file}", snapshot.display())]
    NoFile {
        /// The repository.
        repository: String,
        /// The path in the repository.
        file: String,
        /// The directory of the revision.
        snapshot: PathBuf,
    },
}
