//! The models on servers that `longshore serve` serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use longshore::CancelToken;
use longshore::formats::directory::ModelFilter;
use longshore::load::{self, FormatChoice, HubName, SourceFile};
use longshore::remote::{Remote, is_remote};
use longshore::serve::{RemoteAccess, RemoteOptions, RemoteSession};

use crate::sources::FilterArgs;

/// The sources of a server, on this machine and on others.
pub(crate) struct Sources {
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) remote: Option<RemoteOptions>,
}

impl Sources {
    /// Finds the sources. A repository of the Hub that is a `FILE` is taken from the local cache if it has the
    /// model, as before there were models on servers.
    pub(crate) fn find(
        roots: &[PathBuf],
        files: &[PathBuf],
        filter: &FilterArgs,
        format: FormatChoice,
        time_limit: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let mut remote = RemoteOptions::new(Arc::new(Servers(Remote::new())));
        remote = remote.time_limit(time_limit).filter(filter.filter());
        let mut found = Self { roots: Vec::new(), files: Vec::new(), remote: None };
        for root in roots {
            match is_remote(root) || HubName::is_one(root) {
                true => remote = remote.root(text(root)?),
                false => found.roots.push(root.clone()),
            }
        }
        for file in files {
            if is_remote(file) {
                remote = remote.model(text(file)?);
                continue;
            }
            match load::find_files(file, format, &filter.filter()) {
                Ok(local) => found.files.extend(local),
                Err(error) if HubName::is_one(file) && is_missing(&error) => {
                    remote = remote.model(text(file)?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let has_remote = !remote.roots.is_empty() || !remote.models.is_empty();
        found.remote = has_remote.then_some(remote);
        Ok(found)
    }
}

/// Returns `true` if the local cache does not have a repository, and the Hub may be asked.
fn is_missing(error: &load::Error) -> bool {
    use load::HubProblem::{Name, Nested};
    matches!(error, load::Error::Hub { reason, .. } if !matches!(reason, Name(_) | Nested))
        && !longshore::remote::is_offline()
}

fn text(source: &Path) -> anyhow::Result<&str> {
    source.to_str().context("the name of a model on a server is not UTF-8")
}

/// The access to servers with the credentials of this process.
#[derive(Debug)]
struct Servers(Remote);

impl RemoteAccess for Servers {
    fn session(
        &self,
        cancel: &CancelToken,
        time_limit: Option<Duration>,
    ) -> Box<dyn RemoteSession> {
        let remote = self.0.only_servers().cancel(cancel);
        Box::new(Session(time_limit.into_iter().fold(remote, Remote::time_limit)))
    }
}

/// Requests for one model, which use no file of this machine.
struct Session(Remote);

impl RemoteSession for Session {
    fn find_files(
        &self,
        source: &Path,
        format: FormatChoice,
        filter: &ModelFilter,
    ) -> load::Result<Vec<PathBuf>> {
        self.0.find_files(source, format, filter)
    }

    fn open(&self, path: &Path) -> load::Result<SourceFile> {
        self.0.open_file(path)
    }
}
