//! Models on servers of other machines, which clients attach by their names.
//!
//! ```text
//!   Client ── Attach + the name ──► is it beneath a root? ──► look: find, open, compare versions
//!                                        │ no                      │ in memory     │ not yet
//!                                        ▼                         ▼               ▼
//!                                     refused                   attached         load: open again
//! ```
//!
//! This crate knows no server: a [`RemoteAccess`] finds and opens the files.

mod access;
pub(crate) mod copied;
pub(crate) mod files;
pub(crate) mod name;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_formats::directory::{DirectoryProblem, ModelFilter};
use longshore_load::{CancelToken, FileVersion, Plan};

use crate::error::{Error, Result};
use crate::inodes::changed;
use crate::served::{Found, Layout, Looked, layout_of_load, open_with};

pub use access::{RemoteAccess, RemoteOptions, RemoteSession};
use files::{RemoteFile, RemoteFiles, files_of};
use name::{Permitted, RemoteName, Root, without_secrets};

/// The time for all requests of one lookup. Clients give a server up after a minute.
pub(crate) const LOOK_TIME: Duration = Duration::from_secs(30);

/// The roots on servers, and the access to them.
#[derive(Debug)]
pub(crate) struct RemoteServed {
    access: Arc<dyn RemoteAccess>,
    /// The models of the start come first.
    roots: Vec<Root>,
    /// The number of models of the start.
    models: usize,
    filter: ModelFilter,
    time_limit: Option<Duration>,
}

impl RemoteServed {
    /// # Errors
    /// [`Error::CannotServe`] for a name that is not valid.
    pub(crate) fn new(options: &RemoteOptions) -> Result<Self> {
        let parsed = |text: &String, is_model| {
            Root::parse(text, is_model).map_err(|problem| {
                let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, problem);
                Error::cannot_serve(Path::new(&without_secrets(text)), source)
            })
        };
        let models = options.models.iter().map(|text| parsed(text, true));
        let roots = options.roots.iter().map(|text| parsed(text, false));
        Ok(Self {
            access: Arc::clone(&options.access),
            roots: models.chain(roots).collect::<Result<_>>()?,
            models: options.models.len(),
            filter: options.filter.clone(),
            time_limit: options.time_limit,
        })
    }

    /// Returns the names of the roots, without secrets.
    pub(crate) fn roots(&self) -> impl Iterator<Item = PathBuf> {
        self.roots.iter().map(|root| root.name().into())
    }

    /// Returns the names of the models of the start.
    pub(crate) fn models(&self) -> impl Iterator<Item = PathBuf> {
        self.roots().take(self.models)
    }

    /// Returns the only spelling of a name that is beneath a root. Asks no server.
    ///
    /// # Errors
    /// The reason, for people.
    pub(crate) fn permitted_name(&self, text: &str) -> std::result::Result<PathBuf, String> {
        let name = RemoteName::parse(text).map_err(|problem| problem.to_string())?;
        let outside = "it is below no root of this server; 'longshore ls' shows the roots";
        let permitted = self.permit(&name).ok_or(outside)?.0;
        Ok(PathBuf::from(permitted.name.as_str()))
    }

    /// Returns a name as one to be found, and the filter for the files.
    fn permit(&self, name: &RemoteName) -> Option<(Permitted, ModelFilter)> {
        let mut permitted = self.roots.iter().enumerate();
        permitted.find_map(|(at, root)| {
            let permitted = root.permit(name)?;
            let is_model = at < self.models && permitted.is_root;
            let filter = if is_model { self.filter.clone() } else { ModelFilter::new() };
            Some((permitted, filter))
        })
    }

    fn permit_path(&self, path: &Path) -> longshore_load::Result<(Permitted, ModelFilter)> {
        let name = path.to_str().and_then(|text| RemoteName::parse(text).ok());
        name.and_then(|name| self.permit(&name)).ok_or_else(|| outside(path))
    }

    /// Looks for the model of this name, which is beneath a root. `known` is a model in memory with the same
    /// name and layout: if its versions are the same, no header is read.
    pub(crate) fn look(
        &self,
        path: &Path,
        layout: Layout,
        known: Option<&Arc<RemoteFiles>>,
        cancel: &CancelToken,
    ) -> Looked {
        Looked::Found(self.found(path, layout, known, cancel))
    }

    fn found(
        &self,
        path: &Path,
        layout: Layout,
        known: Option<&Arc<RemoteFiles>>,
        cancel: &CancelToken,
    ) -> longshore_load::Result<Found> {
        let (permitted, filter) = self.permit_path(path)?;
        let time = self.time_limit.map_or(LOOK_TIME, |limit| limit.min(LOOK_TIME));
        let session = self.access.session(cancel, Some(time));
        let files = session.find_files(&permitted.source, layout.format, &filter)?;
        let main = match &files[..] {
            // The query of a URL is not shown.
            [only] if *only == permitted.source => PathBuf::from(permitted.name.as_str()),
            [only] => only.clone(),
            several => {
                let reason = DirectoryProblem::Separate { count: several.len() };
                return Err(longshore_load::Error::Directory { path: path.to_owned(), reason });
            }
        };
        let opened = RefCell::new(Vec::new());
        let open = |path: &Path| {
            let file = permitted.file(path).ok_or_else(|| outside(path))?;
            let source = session.open(&file)?;
            opened.borrow_mut().push(RemoteFile::of(&source));
            Ok(source)
        };
        if let Some(before) = known.filter(|before| before.main == main) {
            let is_unchanged = |file: &RemoteFile| {
                file.version.is_some()
                    && open(&file.path).is_ok_and(|now| RemoteFile::of(&now) == *file)
            };
            if before.opened.iter().all(is_unchanged) {
                return Ok(found_of(Arc::clone(before), path, layout));
            }
            opened.borrow_mut().clear();
        }
        let plan = open_with(&open, &[&main], layout)?;
        let (files, opened, len_bytes) = (files_of(&plan), opened.take(), plan.len_bytes());
        let remote = Arc::new(RemoteFiles { main, opened, files, len_bytes });
        Ok(found_of(remote, path, layout))
    }

    /// Opens the files that were found once more, and plans to load them, as
    /// [`Served::plan`](crate::served::Served::plan) does.
    ///
    /// # Errors
    /// [`longshore_load::Error::Changed`] if one of the files is not what it was.
    pub(crate) fn plan(&self, found: &Found, cancel: &CancelToken) -> longshore_load::Result<Plan> {
        let remote = found.remote.as_ref().ok_or_else(|| outside(&found.path))?;
        let (permitted, _) = self.permit_path(&found.path)?;
        let session = self.access.session(cancel, self.time_limit);
        let open = |path: &Path| {
            let file = permitted.file(path).ok_or_else(|| outside(path))?;
            session.open(&file)
        };
        let paths: Vec<&Path> = found.paths().collect();
        let plan = open_with(&open, &paths, layout_of_load(found.layout, &remote.main))?;
        let is_same = files_of(&plan) == remote.files && plan.len_bytes() == remote.len_bytes;
        if is_same { Ok(plan) } else { Err(changed(&found.path)) }
    }
}

fn found_of(remote: Arc<RemoteFiles>, path: &Path, layout: Layout) -> Found {
    let version = |file: &RemoteFile| FileVersion::new((0, 0), 0, None, file.len_bytes, (0, 0));
    let files = remote.files.iter().map(|file| (file.path.clone(), version(file))).collect();
    let (path, len_bytes) = (path.to_owned(), remote.len_bytes);
    Found { path, layout, files, len_bytes, inodes: None, remote: Some(remote) }
}

/// Returns the error for a file that is not beneath a root.
fn outside(path: &Path) -> longshore_load::Error {
    let source = "it is below no root of this server".into();
    longshore_load::Error::Refused { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
