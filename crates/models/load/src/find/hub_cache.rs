//! The local cache of the Hugging Face Hub.
//!
//! The cache has the layout of the Python package `huggingface_hub`:
//!
//! ```text
//!   models--ORG--NAME/refs/main            the commit of a branch, as text
//!                    /snapshots/COMMIT/…   the files of a commit: links to the blobs
//!                    /blobs/…              the files, by their checksums
//! ```

use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use longshore_sys::beneath;

use super::hub_name::{HubName, RepositoryKind, SCHEME};
use super::hub_problem::HubProblem;
use crate::error::{Error, Result};

/// The most bytes of a file in `refs`, which has a commit of 40 digits.
const REF_LEN_MAX: u64 = 256;

/// The local cache of the Hugging Face Hub. Loads only read it.
#[derive(Clone, Debug)]
pub struct HubCache {
    directory: PathBuf,
}

impl HubCache {
    /// Returns the cache that the environment names, as for `huggingface_hub`: `HF_HUB_CACHE`, else
    /// `HF_HOME/hub`, else `XDG_CACHE_HOME/huggingface/hub`, else `~/.cache/huggingface/hub`.
    ///
    /// # Errors
    /// [`Error::Hub`] if none of these is set.
    pub fn from_env() -> Result<Self> {
        let set =
            |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = |path: PathBuf| match path.strip_prefix("~") {
            Ok(rest) => env::home_dir().map_or(path.clone(), |home| home.join(rest)),
            Err(_) => path,
        };
        let directory = set("HF_HUB_CACHE")
            .or_else(|| set("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(set("HF_HOME")?.join("hub")))
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("huggingface/hub")))
            .or_else(|| Some(env::home_dir()?.join(".cache/huggingface/hub")));
        let none = || Error::Hub { name: SCHEME.to_owned(), reason: HubProblem::NoCache };
        Ok(Self { directory: home(directory.ok_or_else(none)?) })
    }

    /// Makes a cache from its directory, which contains directories such as `models--ORG--NAME`.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the directory of the cache.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the directory of a repository, which need not be there.
    pub(crate) fn repository(&self, kind: RepositoryKind, repository: &str) -> PathBuf {
        let prefix = match kind {
            RepositoryKind::Model => "models",
            RepositoryKind::Dataset => "datasets",
            RepositoryKind::Space => "spaces",
        };
        self.directory.join(format!("{prefix}--{}", repository.replace('/', "--")))
    }

    /// Returns the name, at its commit, of the file that the cache has at `path`, with any path of the cache in front.
    /// `None` if it is no such path, or has a `..` behind the cache.
    pub fn name_of(&self, path: &Path) -> Option<HubName> {
        let path = std::path::absolute(path).ok()?;
        let directory = self.directory.canonicalize().ok()?;
        // Links in the cache are not resolved, because another user could have made one that leads to another
        // repository, or back to the cache.
        let is_cache = |above: &&Path| above.canonicalize().is_ok_and(|it| it == directory);
        let inner = path.strip_prefix(path.ancestors().filter(is_cache).last()?).ok()?;
        let mut parts = inner.to_str()?.splitn(4, '/');
        let [repository, snapshots, commit, file] = [(); 4].map(|()| parts.next().unwrap_or(""));
        let (kind, repository) = repository.split_once("--")?;
        let kind = match kind {
            "models" => "",
            "datasets" | "spaces" => kind,
            _ => return None,
        };
        if snapshots != "snapshots" || !HubName::is_commit(commit) || file.is_empty() {
            return None;
        }
        let separator = if kind.is_empty() { "" } else { "/" };
        let repository = repository.replace("--", "/");
        format!("{SCHEME}{kind}{separator}{repository}@{commit}/{file}").parse().ok()
    }

    /// Returns the path of a repository's revision, or of a file in it. The Hub is not asked, so a branch
    /// is at the commit of the last download.
    ///
    /// # Errors
    /// [`Error::Hub`] if the cache does not have it.
    pub fn locate(&self, name: &HubName) -> Result<PathBuf> {
        let failed = |reason| Error::Hub { name: name.to_string(), reason };
        let readings = name.readings();
        let directory = |repository: &str| self.repository(name.kind, repository);
        let found = readings.iter().find(|(repository, _)| directory(repository).is_dir());
        let Some((repository, file)) = found else {
            let (repository, cache) = (name.repository.clone(), self.directory.clone());
            return Err(failed(HubProblem::NotCached { repository, cache }));
        };
        let revision = name.revision.as_deref().unwrap_or("main");
        let snapshot = snapshot(&directory(repository), revision).ok_or_else(|| {
            failed(HubProblem::NoRevision {
                repository: repository.clone(),
                revision: revision.to_owned(),
                cache: self.directory.clone(),
            })
        })?;
        let Some(file) = file else { return Ok(snapshot) };
        let path = snapshot.join(file);
        if !path.exists() {
            let (repository, file) = (repository.clone(), file.clone());
            return Err(failed(HubProblem::NoFile { repository, file, snapshot }));
        }
        Ok(path)
    }
}

/// Returns the directory of the revision of a repository in the cache, if it exists.
fn snapshot(repository: &Path, revision: &str) -> Option<PathBuf> {
    let of_commit = |commit: &str| {
        let path = repository.join("snapshots").join(commit);
        (HubName::is_commit(commit) && path.is_dir()).then_some(path)
    };
    let of_ref = || {
        // Another user may have made it a link to a device, or to a file of `/proc`, whose length is 0.
        let file = beneath::open_regular(&repository.join("refs").join(revision)).ok()?;
        let file = File::from(file);
        let is_short = file.metadata().is_ok_and(|it| (1..=REF_LEN_MAX).contains(&it.len()));
        let mut commit = String::new();
        if is_short {
            file.take(REF_LEN_MAX).read_to_string(&mut commit).ok()?;
        }
        of_commit(commit.trim())
    };
    of_commit(revision).or_else(of_ref)
}

/// Returns the `main` revision if `path` is the directory of a repository in a cache.
pub(super) fn snapshot_of_repository(path: &Path) -> Option<PathBuf> {
    let is_repository = path.join("snapshots").is_dir() && path.join("refs").is_dir();
    is_repository.then(|| snapshot(path, "main")).flatten()
}
