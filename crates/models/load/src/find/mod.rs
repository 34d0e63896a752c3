//! Finds the files of a model: in a directory, or in the cache of the Hugging Face Hub.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use longshore_formats::directory::{
    self, DirectoryProblem, ModelFilter, PIPELINE_NAME, check_pipeline_len,
};
use longshore_formats::{Format, QuotedName};
use longshore_sys::file::{self, Kind};

use crate::error::{Error, Result};
use crate::open::{FormatChoice, read_exact};
use crate::source::SourceFile;

mod hub_cache;
mod hub_name;
mod hub_problem;

pub use hub_cache::HubCache;
pub use hub_name::{HubName, ParseHubNameError, RepositoryKind};
pub use hub_problem::HubProblem;

/// The limit on the entries of a directory in which a model is searched for, with those of the folders
/// in it.
const ENTRIES_MAX: usize = 100_000;

/// Returns the files to open for a source, in the order in which [`open_by`](crate::open_by) takes them.
///
/// * A directory: the files of its model, by the rules of [`directory::select`]. If there are none in the
///   directory itself, its folders are searched. A diffusers model (with a `model_index.json`) has the
///   files of each component, in the order of the components' names.
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
    if format == FormatChoice::Raw && !HubName::is_one(source) {
        return Ok(vec![source.to_owned()]);
    }
    let mut filter = filter.clone();
    let path = match hub_name(source)? {
        Some(name) => {
            if let Some(variant) = &name.variant {
                filter = filter.variant(variant);
            }
            HubCache::from_env()?.locate(&name)?
        }
        None => source.to_owned(),
    };
    if !matches!(file::kind_at(&path), Ok(Kind::Directory)) {
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
    let Some(variant) = &name.variant else { return Ok(path) };
    let mut files = files_of_directory(&path, &ModelFilter::new().variant(variant))?;
    Ok(match files.len() {
        1 => files.remove(0),
        _ => path,
    })
}

fn hub_name(source: &Path) -> Result<Option<HubName>> {
    HubName::from_path(source).map_err(|error| Error::Hub {
        name: source.to_string_lossy().into_owned(),
        reason: error.into(),
    })
}

fn files_of_directory(directory: &Path, filter: &ModelFilter) -> Result<Vec<PathBuf>> {
    let mut entries = Entries::default();
    entries.read(directory, "")?;
    let at_top = entries.files.len();
    if filter.includes_folders() {
        entries.read_folders(directory)?;
    } else if entries.has(PIPELINE_NAME) {
        return files_of_components(directory, &entries, filter);
    }
    let selected = match directory::select(&entries.names(), filter) {
        // The folders may have the variant, or the only model.
        Err(DirectoryProblem::NoModel { .. } | DirectoryProblem::NoVariant { .. })
            if entries.files.len() == at_top && !entries.folders.is_empty() =>
        {
            entries.read_folders(directory)?;
            directory::select(&entries.names(), filter)
        }
        selected => selected,
    };
    let selected = selected.map_err(|reason| directory_error(directory, reason))?;
    Ok(selected.into_iter().map(|place| directory.join(&entries.files[place].path)).collect())
}

/// Returns the files of each component of a diffusers model that has weights.
fn files_of_components(
    directory: &Path,
    entries: &Entries,
    filter: &ModelFilter,
) -> Result<Vec<PathBuf>> {
    let source = SourceFile::open(directory.join(PIPELINE_NAME))?;
    let refused = |error| Error::format(source.path(), error);
    check_pipeline_len(source.len()).map_err(refused)?;
    let mut content = vec![0; source.len() as usize];
    read_exact(&source, &mut content, 0)?;
    let (mut files, mut of_variant) = (Vec::new(), false);
    for component in directory::components(&content).map_err(refused)? {
        if !entries.folders.iter().any(|folder| *folder == *component) {
            continue;
        }
        let mut entries = Entries::default();
        entries.read(directory, &component)?;
        let selected = match directory::select(&entries.names(), filter) {
            // diffusers also takes the plain files if a component has none of the variant.
            Err(DirectoryProblem::NoVariant { .. }) => {
                directory::select(&entries.names(), &filter.clone().without_variant())
            }
            selected => {
                of_variant |= selected.is_ok();
                selected
            }
        };
        match selected {
            // A tokenizer or a scheduler.
            Err(DirectoryProblem::NoModel { other: None }) => {}
            Err(reason) => return Err(directory_error(&directory.join(component), reason)),
            Ok(places) => {
                let path = |place: usize| directory.join(&entries.files[place].path);
                files.extend(places.into_iter().map(path));
            }
        }
    }
    if let Some(variant) = filter.requested_variant().filter(|_| !of_variant && !files.is_empty()) {
        let (variant, candidates) = (QuotedName::new(variant), Vec::new());
        return Err(directory_error(
            directory,
            DirectoryProblem::NoVariant { variant, candidates },
        ));
    }
    if files.is_empty() {
        return Err(directory_error(directory, DirectoryProblem::NoModel { other: None }));
    }
    Ok(files)
}

fn directory_error(directory: &Path, reason: DirectoryProblem) -> Error {
    Error::Directory { path: directory.to_owned(), reason }
}

/// The files of a directory, and its folders.
#[derive(Default)]
struct Entries {
    files: Vec<Entry>,
    folders: Vec<OsString>,
}

struct Entry {
    /// The path relative to the directory.
    path: PathBuf,
    /// The path as text. A character that is not UTF-8 is replaced.
    name: String,
}

impl Entries {
    fn names(&self) -> Vec<&str> {
        self.files.iter().map(|entry| entry.name.as_str()).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|entry| entry.name == name)
    }

    /// Adds the entries of the folder `folder` of `directory`. Symbolic links are followed.
    fn read(&mut self, directory: &Path, folder: impl AsRef<Path>) -> Result<()> {
        let path = directory.join(folder.as_ref());
        let failed = |source| Error::Open { path: path.clone(), source };
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if self.files.len() + self.folders.len() >= ENTRIES_MAX {
                let message = format!("it has more than {ENTRIES_MAX} entries; name the file");
                return Err(failed(io::Error::other(message)));
            }
            let is_folder = match entry.file_type().map_err(failed)? {
                kind if kind.is_symlink() => entry.path().is_dir(),
                kind => kind.is_dir(),
            };
            if is_folder {
                self.folders.push(entry.file_name());
                continue;
            }
            let path = folder.as_ref().join(entry.file_name());
            let name = path.to_string_lossy().into_owned();
            self.files.push(Entry { path, name });
        }
        Ok(())
    }

    /// Adds the files in the folders, and not those in folders of these. A folder that cannot be read is
    /// left out.
    fn read_folders(&mut self, directory: &Path) -> Result<()> {
        let mut folders = std::mem::take(&mut self.folders);
        folders.sort_unstable();
        for folder in &folders {
            match self.read(directory, folder) {
                Err(Error::Open { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied => {}
                read => read?,
            }
        }
        self.folders = folders;
        Ok(())
    }
}
