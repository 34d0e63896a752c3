//! The access to servers, which a caller of this crate provides.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_formats::directory::ModelFilter;
use longshore_load::{CancelToken, FormatChoice, Result, SourceFile};

/// An access to models on servers, with the credentials of this process. The `longshore` command implements it
/// with `longshore_remote::Remote`.
pub trait RemoteAccess: fmt::Debug + Send + Sync {
    /// Begins requests for one model. All of them end with an error if `cancel` is cancelled, and after
    /// `time_limit`.
    fn session(&self, cancel: &CancelToken, time_limit: Option<Duration>)
    -> Box<dyn RemoteSession>;
}

/// Requests for one model.
///
/// Clients that are not trusted choose the names, so an implementation must use no file of this machine. The
/// server passes only names beneath its roots, also for files that an index names.
pub trait RemoteSession {
    /// Returns the files to open for a source, as [`longshore_load::find_files`] does for a directory.
    ///
    /// # Errors
    /// The error must have no secrets: clients get its text.
    fn find_files(
        &self,
        source: &Path,
        format: FormatChoice,
        filter: &ModelFilter,
    ) -> Result<Vec<PathBuf>>;

    /// Opens a file. Its [`version`](longshore_load::Object::version) is different for different content.
    ///
    /// # Errors
    /// As [`Self::find_files`].
    fn open(&self, path: &Path) -> Result<SourceFile>;
}

/// The models on servers that a server serves.
///
/// A client attaches such a model by its name. There is no file that it could show, so every process that can
/// connect to the socket may attach all models beneath these roots.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// The access to the servers.
    pub access: Arc<dyn RemoteAccess>,
    /// The names below which models may be attached: `s3://BUCKET/PREFIX/`, `gs://…`, `az://…`,
    /// `https://HOST/PATH/`, `hf://ORG` or `hf://ORG/NAME`. A URL with a query is one file; clients name it
    /// without the query.
    pub roots: Vec<String>,
    /// Models to load at the start and keep for as long as the server runs.
    pub models: Vec<String>,
    /// Selects the files of [`Self::models`].
    pub filter: ModelFilter,
    /// The time that all requests of one load may take; `None` for no limit. A lookup always has a limit of
    /// 30 seconds or less.
    pub time_limit: Option<Duration>,
}

impl RemoteOptions {
    /// Makes options without a root.
    pub fn new(access: Arc<dyn RemoteAccess>) -> Self {
        let (roots, models) = (Vec::new(), Vec::new());
        Self { access, roots, models, filter: ModelFilter::new(), time_limit: None }
    }

    /// Adds a name to [`Self::roots`].
    pub fn root(mut self, name: impl Into<String>) -> Self {
        self.roots.push(name.into());
        self
    }

    /// Adds a model to [`Self::models`].
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.models.push(name.into());
        self
    }

    /// Selects the files of the models of the start ([`Self::filter`]).
    pub fn filter(self, filter: ModelFilter) -> Self {
        Self { filter, ..self }
    }

    /// Limits the time of each load ([`Self::time_limit`]).
    pub fn time_limit(self, limit: impl Into<Option<Duration>>) -> Self {
        Self { time_limit: limit.into(), ..self }
    }
}
