//! The search for the files of a model on servers.

use std::io;
use std::path::{Path, PathBuf};

use longshore_formats::Format;
use longshore_formats::directory::{DirectoryProblem, FindError, ModelFilter, PIPELINE_NAME, find};
use longshore_load::{Error, FormatChoice, HubName, Result, find_files, is_index};

use crate::cache::in_cache;
use crate::http::HttpError;
use crate::hub::{self, Hub, HubError, Revision};
use crate::opener::{Remote, failed, is_url, not_on_server};
use crate::shown::shown_path;
use crate::store::{Listing, ObjectName};

/// The usual name of an index, which is asked for before a listing, for which there may be no right.
const INDEX_NAME: &str = "model.safetensors.index.json";
/// The usual name of a model in one file.
const MODEL_NAME: &str = "model.safetensors";

impl Remote {
    /// Returns the files to open for a source, like [`longshore_load::find_files`].
    ///
    /// A prefix of an object store (`s3://BUCKET/PREFIX/`) is a directory. A name without a known ending and without
    /// a `/` at its end is a prefix if there is no such object. Without a filter, the usual names are asked for
    /// first, so that the right to list is not needed for them.
    ///
    /// A branch or tag of a repository is looked up in the Hub; if that does not answer, the local cache is
    /// used, with a note. A commit that the cache has, and every name if `HF_HUB_OFFLINE` is set, needs no request.
    ///
    /// # Errors
    /// Those of [`longshore_load::find_files`]; [`Error::Open`] if a server refuses or has no such model.
    pub fn find_files(
        &self,
        source: impl AsRef<Path>,
        format: FormatChoice,
        filter: &ModelFilter,
    ) -> Result<Vec<PathBuf>> {
        let source = source.as_ref();
        if is_url(source) {
            refuse_filter(source, filter)?;
            return Ok(vec![source.to_owned()]);
        }
        match ObjectName::from_path(source) {
            Ok(Some(name)) => return self.find_in_store(source, &name, format, filter),
            Ok(None) => {}
            Err(error) => {
                let error = io::Error::new(io::ErrorKind::InvalidInput, error);
                return Err(failed(source, error.into()));
            }
        }
        if let Some(scheme) = unknown_scheme(source) {
            let text = format!(
                "{scheme}:// is not supported; the sources are files, https://, s3://, gs://, az:// and hf:// \
                 (write ./{scheme}:… for a file of this name)"
            );
            let error = io::Error::new(io::ErrorKind::InvalidInput, text);
            return Err(failed(source, error.into()));
        }
        let local = || match self.only_servers {
            true => Err(not_on_server(source)),
            false => find_files(source, format, filter),
        };
        let Ok(Some(name)) = HubName::from_path(source) else { return local() };
        if hub::is_offline() {
            return local();
        }
        if name.revision.as_deref().is_some_and(HubName::is_commit)
            && let Ok(files) = local()
        {
            return Ok(files);
        }
        match self.find_in_hub(&name, format, filter) {
            Err(FindError::Directory(error)) if error.is_silence() && !self.only_servers => {
                let files = local().map_err(|missing| {
                    let text = format!("the Hub did not answer ({error}), and {missing}");
                    let source_error = io::Error::new(io::ErrorKind::NotConnected, text);
                    Error::Open { path: source.to_owned(), source: source_error }
                })?;
                self.note_silence(&name, &error);
                Ok(files)
            }
            Ok(found) if self.only_servers => {
                let at_commit = |file: &String| found.at_commit(&name, Some(file)).to_string();
                Ok(found.names.iter().map(|file| at_commit(file).into()).collect())
            }
            Ok(found) => Ok(found.names.iter().map(|file| found.place(&name, file)).collect()),
            Err(error) => Err(not_found(source, error)),
        }
    }

    /// Notes that the local cache is used.
    pub(crate) fn note_silence(&self, name: &HubName, error: &HubError) {
        self.note(format!(
            "{name} is that of the local cache, because the Hub did not answer: {error}"
        ));
    }

    fn find_in_store(
        &self,
        source: &Path,
        name: &ObjectName,
        format: FormatChoice,
        filter: &ModelFilter,
    ) -> Result<Vec<PathBuf>> {
        let file = |name: &ObjectName| PathBuf::from(name.to_string());
        let has_known_ending =
            [".safetensors", ".gguf", ".json"].iter().any(|ending| name.key.ends_with(ending));
        let is_raw = format == FormatChoice::Raw;
        if !name.is_prefix && (has_known_ending || is_raw || self.exists(name)?) {
            refuse_filter(source, filter)?;
            return Ok(vec![file(name)]);
        }
        let filter = with_format(filter, format);
        if filter.is_empty() && self.exists(&name.below(INDEX_NAME))? {
            return Ok(vec![file(&name.below(INDEX_NAME))]);
        }
        let store = self.store(name).map_err(|error| failed(source, error))?;
        let stop = || self.is_cancelled();
        let limits = self.limits(&stop);
        match find(&mut Listing::new(&store, name, &limits), &filter) {
            Ok(files) => Ok(files.iter().map(|found| file(&name.below(found))).collect()),
            Err(FindError::Directory(HttpError::Refused { .. }))
                if filter.is_empty() && self.exists(&name.below(MODEL_NAME))? =>
            {
                Ok(vec![file(&name.below(MODEL_NAME))])
            }
            Err(error) => Err(not_found(source, error)),
        }
    }

    /// Returns `true` if there is an object of this name. A store answers like for a missing one if it does not let
    /// the caller list.
    pub(crate) fn exists(&self, name: &ObjectName) -> Result<bool> {
        match self.open_file(Path::new(&name.to_string())) {
            Ok(_) => Ok(true),
            Err(Error::Open { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn find_in_hub(
        &self,
        name: &HubName,
        format: FormatChoice,
        filter: &ModelFilter,
    ) -> std::result::Result<HubFiles, FindError<HubError>> {
        let stop = || self.is_cancelled();
        let limits = self.limits(&stop);
        let hub = Hub::from_env(&self.client, self.hub.as_ref()).map_err(FindError::Directory)?;
        let revision = hub.revision(name, &limits).map_err(FindError::Directory)?;
        let mut filter = with_format(filter, format);
        if let Some(variant) = &name.variant {
            filter = filter.variant(variant);
        }
        let named = name.file.clone().unwrap_or_default();
        let is_file = revision.files.contains(&named);
        let folder = format!("{named}/");
        let names = match is_file || format == FormatChoice::Raw {
            true => vec![named.clone()],
            false
                if !named.is_empty()
                    && !revision.files.iter().any(|it| it.starts_with(&folder)) =>
            {
                return Err(FindError::Directory(HttpError::NotFound { status: 404 }.into()));
            }
            false => {
                let found = hub.find(name, &revision, &named, &filter, &limits)?;
                let at = |found| if named.is_empty() { found } else { format!("{folder}{found}") };
                found.into_iter().map(at).collect()
            }
        };
        let root = match is_file {
            true => named.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned(),
            false => named,
        };
        let Revision { commit, files: all } = revision;
        Ok(HubFiles { commit, names, all, root, is_file })
    }
}

/// The files of a model in a repository.
pub(crate) struct HubFiles {
    commit: String,
    /// The paths of the files to open.
    pub(crate) names: Vec<String>,
    /// The paths of all files of the repository.
    pub(crate) all: Vec<String>,
    /// The folder of the model, or of the file that was named.
    pub(crate) root: String,
    /// `true` if a file was named.
    pub(crate) is_file: bool,
}

impl HubFiles {
    /// Returns the name of a file, or of the repository, at the commit.
    pub(crate) fn at_commit(&self, name: &HubName, file: Option<&str>) -> HubName {
        let mut at_commit = name.clone();
        (at_commit.revision, at_commit.variant) = (Some(self.commit.clone()), None);
        at_commit.file = file.map(str::to_owned);
        at_commit
    }

    /// Returns the path of a file, in the local cache if it is there. The path of an index is never that, because its
    /// shards need not be there.
    pub(crate) fn place(&self, name: &HubName, file: &str) -> PathBuf {
        let at_commit = self.at_commit(name, Some(file));
        let path = PathBuf::from(at_commit.to_string());
        match is_index(&path, FormatChoice::Auto) {
            true => path,
            false => in_cache(&at_commit).unwrap_or(path),
        }
    }
}

/// Returns the scheme of a URL that is no source.
fn unknown_scheme(source: &Path) -> Option<&str> {
    let (scheme, _) = source.to_str()?.split_once("://")?;
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|it| it.is_ascii_alphanumeric());
    (is_scheme && !scheme.eq_ignore_ascii_case("hf") && !source.exists()).then_some(scheme)
}

/// Refuses a filter for a source that is one file.
pub(crate) fn refuse_filter(source: &Path, filter: &ModelFilter) -> Result<()> {
    match filter.is_empty() {
        true => Ok(()),
        false => Err(Error::Directory { path: shown_path(source), reason: DirectoryProblem::File }),
    }
}

fn with_format(filter: &ModelFilter, format: FormatChoice) -> ModelFilter {
    match format {
        FormatChoice::Gguf => filter.clone().format(Format::Gguf),
        FormatChoice::Safetensors => filter.clone().format(Format::Safetensors),
        _ => filter.clone(),
    }
}

pub(crate) fn not_found<E>(source: &Path, error: FindError<E>) -> Error
where
    E: Into<HubError>,
{
    match error {
        FindError::Directory(error) => {
            let error = match error.into() {
                HubError::Http(error) => return failed(source, error),
                error => {
                    let kind = match &error {
                        HubError::Refused { .. } => io::ErrorKind::PermissionDenied,
                        HubError::Missing => io::ErrorKind::NotFound,
                        HubError::Settings(_) => io::ErrorKind::InvalidInput,
                        _ => io::ErrorKind::InvalidData,
                    };
                    io::Error::new(kind, error)
                }
            };
            Error::Open { path: source.to_owned(), source: error }
        }
        FindError::Problem { folder, reason } => {
            let path = if folder.is_empty() { source.to_owned() } else { source.join(folder) };
            Error::Directory { path, reason }
        }
        FindError::Pipeline(error) => {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            Error::Open { path: source.join(PIPELINE_NAME), source: error }
        }
    }
}
