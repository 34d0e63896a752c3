//! All files of a model on servers: the weights, and the configuration and tokenizer beside them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use longshore_formats::directory::{Directory, FindError, ModelFilter};
use longshore_load::{
    Error, FormatChoice, HubName, Opener, RemoteModel, Result, SourceFile, find_files, others_of,
};

use crate::cache::is_commit;
use crate::find::{HubFiles, not_found};
use crate::http::HttpError;
use crate::hub;
use crate::opener::{Remote, failed, is_url, permit_files};
use crate::shown::shown_text;
use crate::store::{Listing, ObjectName};

/// The endings of the files beside the weights that engines and tokenizers read.
const ENDINGS: [&str; 8] =
    [".json", ".jinja", ".txt", ".model", ".tiktoken", ".py", ".yaml", ".spm"];
/// The limit on the length of a name.
const NAME_MAX_BYTES: usize = 255;
/// The usual names of these files, which are asked for where there is no right to list.
const NAMES: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
    "model_index.json",
];

impl Remote {
    /// Finds all files of the model of a source on a server: its weights, as [`Remote::find_files`] does, and in
    /// their directories and the one above them the files that engines and tokenizers read. Returns `None` for
    /// a source on this machine, also if the Hub does not answer and the local cache is used instead.
    ///
    /// Of a source that is one file, such as a GGUF model, only that and the files that belong to it are taken.
    ///
    /// # Errors
    /// Those of [`Remote::find_files`].
    pub fn model(
        &self,
        source: impl AsRef<Path>,
        filter: &ModelFilter,
    ) -> Result<Option<RemoteModel>> {
        let source = source.as_ref();
        if is_url(source) {
            return self.model_of_files(source, &[source.to_owned()], None).map(Some);
        }
        if let Ok(Some(name)) = ObjectName::from_path(source) {
            return self.model_in_store(source, &name, filter).map(Some);
        }
        match HubName::from_path(source) {
            Ok(Some(name)) if !hub::is_offline() => self.model_in_hub(source, &name, filter),
            _ => Ok(None),
        }
    }

    fn model_in_store(
        &self,
        source: &Path,
        name: &ObjectName,
        filter: &ModelFilter,
    ) -> Result<RemoteModel> {
        let files = self.find_files(source, FormatChoice::Auto, filter)?;
        if files.iter().any(|file| file.as_os_str() == &*name.to_string()) {
            return self.model_of_files(source, &files, None);
        }
        let root = ObjectName { is_prefix: true, ..name.clone() };
        let shown = PathBuf::from(root.to_string());
        let mut model = self.model_of_files(&shown, &files, Some(&shown))?;
        let store = self.store(&root).map_err(|error| failed(source, error))?;
        let stop = || self.is_cancelled();
        let patience = self.patience(&stop);
        let mut listing = Listing::new(&store, &root, &patience);
        let mut folders = folders_of(&model);
        let has = |name: &str| match listing.files("") {
            Ok(files) => Ok(files.iter().any(|file| file == name)),
            Err(HttpError::Refused { .. }) => self.exists(&root.below(name)),
            Err(error) => Err(not_found(source, FindError::Directory(error))),
        };
        if is_in_folders(has)? {
            match listing.folders("") {
                Ok(found) => folders.extend(found),
                Err(HttpError::Refused { .. }) => {}
                Err(error) => return Err(not_found(source, FindError::Directory(error))),
            }
        }
        for folder in folders {
            let found = match listing.files(&folder) {
                Ok(found) => found.into_iter().filter(|name| is_beside(name)).collect(),
                Err(HttpError::Refused { .. }) => NAMES.map(str::to_owned).to_vec(),
                Err(error) => return Err(not_found(source, FindError::Directory(error))),
            };
            for found in found {
                let path = if folder.is_empty() { found } else { format!("{folder}/{found}") };
                let object = PathBuf::from(root.below(&path).to_string());
                match self.open_on_server(&object) {
                    Ok(file) => push_once(&mut model, &path, file)?,
                    Err(error) if is_missing(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(model)
    }

    fn model_in_hub(
        &self,
        source: &Path,
        name: &HubName,
        filter: &ModelFilter,
    ) -> Result<Option<RemoteModel>> {
        let local = || find_files(source, FormatChoice::Auto, filter).is_ok();
        if name.revision.as_deref().is_some_and(is_commit) && local() {
            return Ok(None);
        }
        let found = match self.find_in_hub(name, FormatChoice::Auto, filter) {
            Err(FindError::Directory(error)) if error.is_silence() && local() => {
                self.note_silence(name, &error);
                return Ok(None);
            }
            found => found.map_err(|error| not_found(source, error))?,
        };
        let HubFiles { names, all, root, .. } = &found;
        let shown = PathBuf::from(found.at_commit(name, None).to_string());
        // A model in one file, such as a GGUF model, has its configuration in it.
        let is_file = found.is_file || names.iter().all(|name| name.ends_with(".gguf"));
        let mut model = RemoteModel::new(&shown, name.repository.replace('/', "--"));
        if is_file && let Some(first) = names.first() {
            model = model.main(below(root, first));
        }
        for file in names {
            let path = PathBuf::from(found.at_commit(name, Some(file)).to_string());
            self.push_with_others(&mut model, &path, below(root, file))?;
        }
        if !is_file {
            let mut folders = folders_of(&model);
            if is_in_folders(|name| Ok(all.iter().any(|path| below_of(root, path) == Some(name))))?
            {
                let inner = all.iter().filter_map(|path| below_of(root, path)?.split_once('/'));
                folders.extend(inner.map(|(folder, _)| folder.to_owned()));
            }
            for folder in folders {
                let beside = all.iter().filter(|path| {
                    let path = below_of(root, path).unwrap_or_default();
                    let (parent, file) = path.rsplit_once('/').unwrap_or(("", path));
                    is_beside(file) && parent == folder
                });
                for path in beside {
                    let file = self.open_on_server(&PathBuf::from(
                        found.at_commit(name, Some(path)).to_string(),
                    ))?;
                    push_once(&mut model, below(root, path), file)?;
                }
            }
        }
        Ok(Some(model))
    }

    /// Makes a model of files, whose paths in it are those below `root`, or their names.
    fn model_of_files(
        &self,
        source: &Path,
        files: &[PathBuf],
        root: Option<&Path>,
    ) -> Result<RemoteModel> {
        let first = files.first().map(PathBuf::as_path).unwrap_or(source);
        let mut model = match root {
            Some(root) => {
                let name = root.file_name().unwrap_or_default().to_string_lossy();
                RemoteModel::new(source, name)
            }
            None => {
                let file = self.open_on_server(first)?;
                RemoteModel::of_file(file.path())
            }
        };
        for file in files {
            let shown = PathBuf::from(shown_text(&file.to_string_lossy()));
            let path = match root {
                Some(root) => file.strip_prefix(root).unwrap_or(file),
                None => Path::new(shown.file_name().unwrap_or_default()),
            };
            let path = path.to_str().ok_or_else(|| {
                let error = io::Error::new(io::ErrorKind::InvalidInput, "the name is not UTF-8");
                failed(file, error.into())
            })?;
            self.push_with_others(&mut model, file, path)?;
        }
        Ok(model)
    }

    /// Adds a file and, for an index or the first of several splits, those that it names, which are beside it.
    fn push_with_others(&self, model: &mut RemoteModel, file: &Path, path: &str) -> Result<()> {
        let opened = self.open_on_server(file)?;
        let shown = opened.path().to_owned();
        push_once(model, path, opened)?;
        for other in others_of(file, FormatChoice::Auto, &OnServer(self))? {
            let beside = |file: &Path| other.strip_prefix(file.parent()?).ok()?.to_str();
            let name = beside(file).or_else(|| beside(&shown)).unwrap_or_default();
            let path = match path.rsplit_once('/') {
                Some((folder, _)) => format!("{folder}/{name}"),
                None => name.to_owned(),
            };
            if !model.contains(&path) {
                model.push(&path, self.open_on_server(&other)?)?;
            }
        }
        Ok(())
    }
}

/// Adds a file, unless it was added as one of the weights.
fn push_once(model: &mut RemoteModel, path: &str, file: SourceFile) -> Result<()> {
    if model.contains(path) { Ok(()) } else { model.push(path, file) }
}

/// Returns the folders of the files of a model, and the one above them.
fn folders_of(model: &RemoteModel) -> BTreeSet<String> {
    let parents = model.paths().filter_map(|path| path.rsplit_once('/'));
    parents.map(|(parent, _)| parent.to_owned()).chain([String::new()]).collect()
}

fn is_beside(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
        // No file system has longer names, and the model has files of its own that begin with a dot.
        && name.len() <= NAME_MAX_BYTES
        && !name.starts_with('.')
        && !name.contains('\0')
        && !name.ends_with(".safetensors.index.json")
}

fn is_missing(error: &Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied};
    matches!(error, Error::Open { source, .. } if matches!(source.kind(), NotFound | PermissionDenied))
}

/// Returns `true` for a model whose parts are in folders, also those without weights: of diffusers or of
/// sentence-transformers. `has` returns `true` if there is a file of this name.
fn is_in_folders(mut has: impl FnMut(&str) -> Result<bool>) -> Result<bool> {
    Ok(has("model_index.json")? || has("modules.json")?)
}

/// Returns the path below a folder; `None` if it is not in it.
fn below_of<'p>(folder: &str, path: &'p str) -> Option<&'p str> {
    match folder {
        "" => Some(path),
        folder => path.strip_prefix(folder)?.strip_prefix('/'),
    }
}

fn below<'p>(folder: &str, path: &'p str) -> &'p str {
    below_of(folder, path).unwrap_or(path)
}

/// Opens files of servers, and none of the local cache.
struct OnServer<'a>(&'a Remote);

impl Opener for OnServer<'_> {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        self.0.open_on_server(path)
    }

    fn permit_files(&self, source: &SourceFile, count: u64) -> Result<()> {
        permit_files(source, count)
    }
}
