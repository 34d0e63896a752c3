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

fn hub_name(source: &Path) -> Result<Option<HubName>> {
    HubName::from_path(source).map_err(|error| Error::Hub {
        name: source.to_string_lossy().into_owned(),
        reason: error.into(),
    })
}

fn files_of_directory(directory: &Path, filter: &ModelFilter) -> Result<Vec<PathBuf>> {
    let mut entries = Entries::default();
    entries.read(directory, Path::new(""))?;
    if filter.includes_folders() {
        entries.read_all(directory)?;
    } else if entries.has(PIPELINE_NAME) {
        return files_of_components(directory, &entries, filter);
    }
    let reason = match directory::select(&entries.names(), filter) {
        Ok(places) => return Ok(entries.paths(directory, places)),
        Err(reason) => reason,
    };
    let is_companion_wanted = matches!(reason, DirectoryProblem::NoModel { .. });
    let has_none = is_companion_wanted || matches!(reason, DirectoryProblem::NoVariant { .. });
    if has_none && !filter.includes_folders() {
        // A folder may have the variant, or the only model.
        if let Some(files) = files_of_folders(directory, &entries.folders, filter)? {
            return Ok(files);
        }
    }
    if is_companion_wanted && let Ok(places) = directory::select_companion(&entries.names(), filter)
    {
        return Ok(entries.paths(directory, places));
    }
    Err(directory_error(directory, reason))
}

/// Returns the files of the only folder that has a model; `None` if none has one.
fn files_of_folders(
    directory: &Path,
    folders: &[OsString],
    filter: &ModelFilter,
) -> Result<Option<Vec<PathBuf>>> {
    let (mut found, mut refused) = (Vec::new(), None);
    let mut left = ENTRIES_MAX;
    for folder in folders {
        let mut entries = Entries { left, ..Entries::default() };
        entries.read(directory, Path::new(folder))?;
        left = entries.left;
        match directory::select(&entries.names(), filter) {
            Ok(places) => found.push(entries.paths(directory, places)),
            Err(DirectoryProblem::NoModel { .. } | DirectoryProblem::NoVariant { .. }) => {}
            Err(reason) => {
                found.push(vec![directory.join(folder)]);
                refused = Some(directory_error(&directory.join(folder), reason));
            }
        }
    }
    if found.len() > 1 {
        let name = |files: &Vec<PathBuf>| {
            let path = files[0].strip_prefix(directory).unwrap_or(&files[0]);
            QuotedName::new(&path.to_string_lossy())
        };
        let (candidates, count) = (found.iter().take(20).map(name).collect(), found.len());
        return Err(directory_error(directory, DirectoryProblem::Several { candidates, count }));
    }
    refused.map_or_else(|| Ok(found.pop()), Err)
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
        let missing = || {
            let name = QuotedName::new(&component);
            directory_error(directory, DirectoryProblem::NoComponent { name })
        };
        if !entries.folders.iter().any(|folder| *folder == *component) {
            return Err(missing());
        }
        let mut entries = Entries::default();
        entries.read(directory, Path::new(&component))?;
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
            // The configuration of a tokenizer or a scheduler has another name.
            Err(DirectoryProblem::NoModel { other: None, .. }) => {
                if entries.has(&format!("{component}/config.json")) {
                    return Err(missing());
                }
            }
            Err(reason) => return Err(directory_error(&directory.join(component), reason)),
            Ok(places) => files.extend(entries.paths(directory, places)),
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
        let none = DirectoryProblem::NoModel { format: None, other: None };
        return Err(directory_error(directory, none));
    }
    Ok(files)
}

fn directory_error(directory: &Path, reason: DirectoryProblem) -> Error {
    Error::Directory { path: directory.to_owned(), reason }
}

/// The files of a directory, and its folders.
struct Entries {
    files: Vec<Entry>,
    /// The names of the folders in the directory, sorted.
    folders: Vec<OsString>,
    /// The number of entries that may still be read.
    left: usize,
}

impl Default for Entries {
    fn default() -> Self {
        Self { files: Vec::new(), folders: Vec::new(), left: ENTRIES_MAX }
    }
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

    fn paths(&self, directory: &Path, places: Vec<usize>) -> Vec<PathBuf> {
        places.into_iter().map(|place| directory.join(&self.files[place].path)).collect()
    }

    /// Adds the files of a folder, and sets the list of the folders in it. Symbolic links are followed. Hidden
    /// folders are left out.
    fn read(&mut self, directory: &Path, folder: &Path) -> Result<()> {
        let path = match folder.as_os_str().is_empty() {
            true => directory.to_owned(),
            false => directory.join(folder),
        };
        let failed = |source| Error::Open { path: path.clone(), source };
        let mut folders = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(left) = self.left.checked_sub(1) else {
                let message = format!("it has more than {ENTRIES_MAX} entries; name the file");
                return Err(failed(io::Error::other(message)));
            };
            self.left = left;
            let name = entry.file_name();
            let is_folder = match entry.file_type().map_err(failed)? {
                kind if kind.is_symlink() => entry.path().is_dir(),
                kind => kind.is_dir(),
            };
            if !is_folder {
                let path = folder.join(&name);
                let name = path.to_string_lossy().into_owned();
                self.files.push(Entry { path, name });
            } else if !name.as_encoded_bytes().starts_with(b".") {
                folders.push(name);
            }
        }
        folders.sort_unstable();
        self.folders = folders;
        Ok(())
    }

    /// Adds the files in all folders, and in the folders of these. Symbolic links to folders are followed only
    /// in the directory itself, because they may lead back.
    fn read_all(&mut self, directory: &Path) -> Result<()> {
        let mut left: Vec<PathBuf> =
            std::mem::take(&mut self.folders).into_iter().map(PathBuf::from).collect();
        while let Some(folder) = left.pop() {
            self.read(directory, &folder)?;
            let inner = std::mem::take(&mut self.folders).into_iter().map(|name| folder.join(name));
            left.extend(inner.filter(|path| !directory.join(path).is_symlink()));
        }
        Ok(())
    }
}
