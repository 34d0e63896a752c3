//! The sources that a server publishes at its start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longshore_load::{self as load, FoundModel, PublishedModels, SourceState};

use crate::error::Result;

/// The time after which a publication that failed is tried again, unless the content was the reason.
const RETRY_PERIOD: Duration = Duration::from_secs(60);

/// A source on servers, such as an object store.
pub trait RemoteSource: fmt::Debug + Send {
    /// Returns the source as it is shown, and as published models record it.
    fn path(&self) -> &Path;

    /// Finds the files of the model. It ends soon when the server stops.
    ///
    /// # Errors
    /// [`load::Error::Cancelled`] when the server stops, and those of the search.
    fn find(&self) -> load::Result<FoundModel>;
}

/// A source to publish.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) name: String,
    /// If it is on servers. Such a source is published once, and not followed.
    pub(super) remote: Option<Box<dyn RemoteSource>>,
    /// Its files that were found for the first publication.
    pub(super) found: Option<FoundModel>,
    /// The state that was published, or whose publication failed.
    pub(super) done: Option<SourceState>,
    /// The result of its publication.
    pub(super) result: Attempt,
    /// A new state that was seen once. It is published if it is still the same at the next look.
    pub(super) seen: Option<SourceState>,
    /// `true` if it was reported that the source cannot be read.
    pub(super) is_reported: bool,
    /// `true` if it had changed at the last look, too.
    pub(super) is_changing: bool,
    /// The time from which its permissions are to be read again.
    pub(super) confirm_at: Instant,
}

/// The result of publishing a state of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Published,
    /// It is not tried again until the source changes.
    Failed,
    /// Something else than the content was the reason, such as a lack of memory. It is tried again after this
    /// time.
    RetryAt(Instant),
}

impl Attempt {
    /// Returns the result of a publication.
    pub(super) fn of(published: &load::Result<()>) -> Self {
        match published {
            Ok(()) => Self::Published,
            Err(error) if is_of_content(error) => Self::Failed,
            Err(_) => Self::RetryAt(Instant::now() + RETRY_PERIOD),
        }
    }
}

impl Source {
    /// Makes a source on this machine. One that does not exist now, or cannot be published, can have an older version
    /// that is published.
    pub(super) fn local(path: PathBuf, models: &PublishedModels) -> Result<Self> {
        let name = name_or_published(&path, models, || Ok(SourceState::of(&path)?.default_name()))?;
        Ok(Self::new(path, name, None))
    }

    /// Makes a source on servers, under the same conditions.
    pub(super) fn remote(source: Box<dyn RemoteSource>, models: &PublishedModels) -> Result<Self> {
        let path = source.path().to_owned();
        let mut found = None;
        let name = name_or_published(&path, models, || {
            Ok(match found.insert(source.find()?) {
                FoundModel::Remote(model) => model.default_name().to_owned(),
                FoundModel::Local(found) => SourceState::of(found)?.default_name(),
            })
        })?;
        Ok(Self { found, ..Self::new(path, name, Some(source)) })
    }

    fn new(path: PathBuf, name: String, remote: Option<Box<dyn RemoteSource>>) -> Self {
        Self {
            path,
            name,
            remote,
            found: None,
            done: None,
            result: Attempt::Published,
            seen: None,
            is_reported: false,
            is_changing: false,
            confirm_at: Instant::now(),
        }
    }
}

/// Returns the name of a source, or that of its version that is published.
fn name_or_published(
    path: &Path,
    models: &PublishedModels,
    name: impl FnOnce() -> load::Result<String>,
) -> Result<String> {
    match name() {
        Ok(name) => Ok(name),
        Err(error) => match models.find_by_source(path) {
            Some(model) => Ok(model.name),
            None => Err(error.into()),
        },
    }
}

/// Returns `true` if the content of the source is the reason, so that the same source cannot be published
/// later.
fn is_of_content(error: &load::Error) -> bool {
    use load::Error::{Format, Manifest, Mismatch, NoTensors, NotRegular, Publish};
    use load::PublishProblem::HeadersTooLong;
    matches!(
        error,
        Format { .. }
            | Manifest { .. }
            | Mismatch { .. }
            | NoTensors { .. }
            | NotRegular { .. }
            | Publish { reason: HeadersTooLong { .. }, .. }
    )
}
