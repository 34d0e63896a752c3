//! Finds the files of a model: in a directory, or in the cache of the Hugging Face Hub.

use std::path::{Path, PathBuf};

use longshore_formats::Format;
use longshore_formats::directory::{self, DirectoryProblem, FindError, ModelFilter, PIPELINE_NAME};
use longshore_sys::file::{self, Kind};

use crate::error::{Error, Result};
use crate::open::FormatChoice;
use local::LocalDirectory;

mod hub_cache;
mod hub_name;
mod hub_problem;
mod local;

pub use hub_cache::HubCache;
pub use hub_name::{HubName, ParseHubNameError, RepositoryKind};
pub use hub_problem::HubProblem;

/// Returns the files to open for a source, in the order in which [`open_by`](crate::open_by) takes them.
///
/// * A directory: the files of its model, by the rules of [`directory::select`]. If the directory itself has
///   none, those of the only folder in it that has a model; else its adapter or projector. A diffusers model
///   (with a `model_index.json`) has the files of each component, in the order of the components' names.
/// * `hf://ORG/NAME[@REVISION][/FILE]` or `hf://ORG/NAME:VARIANT`: the same for a repository in the local
///   cache of the Hugging Face Hub; see [`HubCache`].
/// * Any other path: the path itself.
///
/// With [`FormatChoice::Raw`], and for a path that does not exist, the result is the path itself.
///
/// ```no_run
/// use longshore_formats::directory::ModelFilter;
/// use longshore_load::{FormatChoice, find_files};
///
/// let files = find_files("models/llama", FormatChoice::Auto, &ModelFilter::new())?;
/// let opened = longshore_load::open(&files, FormatChoice::Auto)?;
/// # Ok::<(), longshore_load::Error>(())
/// ```
///
/// # Errors
/// [`Error::Directory`] if the directory has no model or several; [`Error::Hub`] if the repository is not
/// in the cache; [`Error::Format`] if a `model_index.json` is not valid; [`Error::Open`] if a directory
/// cannot be read.
pub fn find_files(
    source: impl AsRef<Path>,
    format: FormatChoice,
    filter: &ModelFilter,
) -> Result<Vec<PathBuf>> {
    let source = source.as_ref();
    let mut filter = filter.clone();
    let hub = hub_name(source)?;
    let path = match &hub {
        Some(name) => {
            if let Some(variant) = &name.variant {
                if filter.requested_variant().is_some() {
                    return Err(directory_error(source, DirectoryProblem::TwoVariants));
                }
                filter = filter.variant(variant);
            }
            HubCache::from_env()?.locate(name)?
        }
        None => source.to_owned(),
    };
    let is_searched = format != FormatChoice::Raw || hub.is_some();
    if !is_searched || !matches!(file::kind_at(&path), Ok(Kind::Directory)) {
        if !filter.is_empty() && path.exists() {
            return Err(directory_error(&path, DirectoryProblem::File));
        }
        return Ok(vec![path]);
    }
    filter = match format {
        FormatChoice::Gguf => filter.format(Format::Gguf),
        FormatChoice::Safetensors => filter.format(Format::Safetensors),
        FormatChoice::Auto | FormatChoice::Raw => filter,
    };
    let path = hub_cache::snapshot_of_repository(&path).unwrap_or(path);
    files_of_directory(&path, &filter)
}

/// Returns the directory or file of a source whose files are all of interest, not only its weights: for a
/// name of the Hugging Face Hub that in the local cache, and for any other source the path itself.
///
/// # Errors
/// [`Error::Hub`] if the repository is not in the cache, [`Error::Directory`] if it has no file of the
/// variant.
pub fn locate(source: impl AsRef<Path>) -> Result<PathBuf> {
    let source = source.as_ref();
    let Some(name) = hub_name(source)? else { return Ok(source.to_owned()) };
    let path = HubCache::from_env()?.locate(&name)?;
    let Some(variant) = &name.variant else {
        // Only links beside the weights may lead to the blobs of the repository.
        if name.file.as_ref().is_some_and(|file| file.contains('/') || path.is_dir()) {
            return Err(Error::Hub { name: name.to_string(), reason: HubProblem::Nested });
        }
        return Ok(path);
    };
    let mut files = files_of_directory(&path, &ModelFilter::new().variant(variant))?;
    match files.len() {
        1 => Ok(files.remove(0)),
        count => Err(directory_error(&path, DirectoryProblem::Separate { count })),
    }
}

/// Returns the path of a source like [`locate`], and `true` if no component of it may be a symbolic link: in the
/// cache, whose owner could put a link to another directory in it, while the cache itself may be named by one.
///
/// # Errors
/// Those of [`locate`].
pub(crate) fn locate_without_links(source: &Path) -> Result<(PathBuf, bool)> {
    let path = locate(source)?;
    if hub_name(source)?.is_none() {
        return Ok((path, false));
    }
    let cache = HubCache::from_env()?;
    let failed = |error| Error::Open { path: cache.directory().to_owned(), source: error };
    let real = cache.directory().canonicalize().map_err(failed)?;
    let below = path.strip_prefix(cache.directory()).unwrap_or(&path);
    Ok((real.join(below), true))
}

fn hub_name(source: &Path) -> Result<Option<HubName>> {
    HubName::from_path(source).map_err(|error| Error::Hub {
        name: source.to_string_lossy().into_owned(),
        reason: error.into(),
    })
}

fn files_of_directory(directory: &Path, filter: &ModelFilter) -> Result<Vec<PathBuf>> {
    let mut local = LocalDirectory::new(directory);
    let files = directory::find(&mut local, filter).map_err(|error| match error {
        FindError::Directory(error) => error,
        FindError::Problem { folder, reason } => directory_error(&local.path(&folder), reason),
        FindError::Pipeline(error) => Error::format(&directory.join(PIPELINE_NAME), error),
    })?;
    Ok(files.iter().map(|file| local.path(file)).collect())
}

fn directory_error(directory: &Path, reason: DirectoryProblem) -> Error {
    Error::Directory { path: directory.to_owned(), reason }
}
