//! The search for a model in a directory and its folders.

use super::{
    DirectoryProblem, LISTED_MAX, ModelFilter, PIPELINE_LEN_MAX_BYTES, PIPELINE_NAME, components,
    select, select_companion,
};
use crate::error::Error;
use crate::quoted::QuotedName;

/// A directory in which a model is searched for: of this machine, or a listing of a server.
pub trait Directory {
    /// The error of a listing or of a read.
    type Error;

    /// Returns the names of the files in a folder of the directory, or in the directory itself if `folder`
    /// is empty. A folder that does not exist has no files.
    ///
    /// # Errors
    /// Those of the listing.
    fn files(&mut self, folder: &str) -> Result<Vec<String>, Self::Error>;

    /// Returns the names of the folders in a folder of the directory, sorted, as [`Directory::files`] does
    /// for files.
    ///
    /// # Errors
    /// Those of the listing.
    fn folders(&mut self, folder: &str) -> Result<Vec<String>, Self::Error>;

    /// Reads a file of at most `max_bytes`.
    ///
    /// # Errors
    /// Those of the read, also for a longer file.
    fn read(&mut self, file: &str, max_bytes: u64) -> Result<Vec<u8>, Self::Error>;
}

/// The error of a search.
#[derive(Debug)]
pub enum FindError<E> {
    /// The listing or a read failed.
    Directory(E),
    /// There is no model, or more than one, in this folder; the directory itself if it is empty.
    Problem {
        /// The folder.
        folder: String,
        /// The problem.
        reason: DirectoryProblem,
    },
    /// The `model_index.json` is not valid.
    Pipeline(Error),
}

/// Finds the files of the model in a directory, and returns their paths in it, in the order in which to open
/// them: those that [`select`] selects; else those of the only folder that has a model; else those of
/// [`select_companion`]. A diffusers model has the files of each component. Patterns also match files in
/// folders of any depth.
///
/// # Errors
/// [`FindError`].
pub fn find<D: Directory>(
    directory: &mut D,
    filter: &ModelFilter,
) -> Result<Vec<String>, FindError<D::Error>> {
    let mut names = directory.files("").map_err(FindError::Directory)?;
    if filter.includes_folders() {
        add_all(directory, &mut names)?;
    } else if names.iter().any(|name| name == PIPELINE_NAME) {
        return find_components(directory, filter);
    }
    let reason = match select(&names, filter) {
        Ok(places) => return Ok(at(&names, places)),
        Err(reason) => reason,
    };
    let is_companion_wanted = matches!(reason, DirectoryProblem::NoModel { .. });
    let has_none = is_companion_wanted || matches!(reason, DirectoryProblem::NoVariant { .. });
    if has_none && !filter.includes_folders() {
        // A folder may have the variant, or the only model.
        if let Some(files) = find_in_folders(directory, filter)? {
            return Ok(files);
        }
    }
    if is_companion_wanted && let Ok(places) = select_companion(&names, filter) {
        return Ok(at(&names, places));
    }
    Err(problem("", reason))
}

/// Returns the files of the only folder that has a model; `None` if none has one.
fn find_in_folders<D: Directory>(
    directory: &mut D,
    filter: &ModelFilter,
) -> Result<Option<Vec<String>>, FindError<D::Error>> {
    let (mut found, mut refused) = (Vec::new(), None);
    for folder in directory.folders("").map_err(FindError::Directory)? {
        let names = files_in(directory, &folder)?;
        match select(&names, filter) {
            Ok(places) => found.push(at(&names, places)),
            Err(DirectoryProblem::NoModel { .. } | DirectoryProblem::NoVariant { .. }) => {}
            Err(reason) => {
                found.push(vec![folder.clone()]);
                refused = Some(problem(&folder, reason));
            }
        }
    }
    if found.len() > 1 {
        let candidates = found.iter().take(LISTED_MAX).map(|files| QuotedName::new(&files[0]));
        let (candidates, count) = (candidates.collect(), found.len());
        return Err(problem("", DirectoryProblem::Several { candidates, count }));
    }
    refused.map_or_else(|| Ok(found.pop()), Err)
}

/// Returns the files of each component of a diffusers model that has weights.
fn find_components<D: Directory>(
    directory: &mut D,
    filter: &ModelFilter,
) -> Result<Vec<String>, FindError<D::Error>> {
    let index = directory.read(PIPELINE_NAME, PIPELINE_LEN_MAX_BYTES);
    let index = index.map_err(FindError::Directory)?;
    let (mut files, mut of_variant) = (Vec::new(), false);
    for component in components(&index).map_err(FindError::Pipeline)? {
        let missing =
            || problem("", DirectoryProblem::NoComponent { name: QuotedName::new(&component) });
        // The name is that of a folder in the directory itself.
        if component.contains('/') || component.starts_with('.') {
            return Err(missing());
        }
        let names = files_in(directory, &component)?;
        let selected = match select(&names, filter) {
            // diffusers also takes the plain files if a component has none of the variant.
            Err(DirectoryProblem::NoVariant { .. }) => {
                select(&names, &filter.clone().without_variant())
            }
            selected => {
                of_variant |= selected.is_ok();
                selected
            }
        };
        match selected {
            // The configuration of a tokenizer or a scheduler has another name.
            Err(DirectoryProblem::NoModel { other: None, .. }) => {
                let is_config = |name: &String| name.ends_with("/config.json");
                if names.is_empty() || names.iter().any(is_config) {
                    return Err(missing());
                }
            }
            Err(reason) => return Err(problem(&component, reason)),
            Ok(places) => files.extend(at(&names, places)),
        }
    }
    if let Some(variant) = filter.requested_variant().filter(|_| !of_variant && !files.is_empty()) {
        let (variant, candidates) = (QuotedName::new(variant), Vec::new());
        return Err(problem("", DirectoryProblem::NoVariant { variant, candidates }));
    }
    if files.is_empty() {
        return Err(problem("", DirectoryProblem::NoModel { format: None, other: None }));
    }
    Ok(files)
}

/// Adds the paths of the files in all folders, and in the folders of these.
fn add_all<D: Directory>(
    directory: &mut D,
    names: &mut Vec<String>,
) -> Result<(), FindError<D::Error>> {
    let mut left = directory.folders("").map_err(FindError::Directory)?;
    while let Some(folder) = left.pop() {
        names.extend(files_in(directory, &folder)?);
        let inner = directory.folders(&folder).map_err(FindError::Directory)?;
        left.extend(inner.iter().map(|name| format!("{folder}/{name}")));
    }
    Ok(())
}

/// Returns the paths of the files in a folder.
fn files_in<D: Directory>(
    directory: &mut D,
    folder: &str,
) -> Result<Vec<String>, FindError<D::Error>> {
    let names = directory.files(folder).map_err(FindError::Directory)?;
    Ok(names.iter().map(|name| format!("{folder}/{name}")).collect())
}

fn at(names: &[String], places: Vec<usize>) -> Vec<String> {
    places.into_iter().map(|place| names[place].clone()).collect()
}

fn problem<E>(folder: &str, reason: DirectoryProblem) -> FindError<E> {
    FindError::Problem { folder: folder.to_owned(), reason }
}
