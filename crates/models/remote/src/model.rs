//! All files of a model on servers: the weights, and the configuration and tokenizer beside them.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use longshore_formats::directory::{Directory, FindError, ModelFilter};
use longshore_load::{
    Error, FormatChoice, FoundModel, HubName, Opener, RemoteModel, Result, SourceFile, find_files,
    others_of,
};
use percent_encoding::percent_decode_str;

use crate::cache::in_cache;
use crate::find::{HubFiles, not_found, refuse_filter};
use crate::http::HttpError;
use crate::hub;
use crate::opener::{Remote, failed, is_url, permit_files, shard_path};
use crate::shown::shown_text;
use crate::store::{Listing, ObjectName};

/// The endings of the files beside the weights that engines and tokenizers read.
const ENDINGS: [&str; 8] =
    [".json", ".jinja", ".txt", ".model", ".tiktoken", ".py", ".yaml", ".spm"];
/// The limit on the number of these files. Each takes a request.
const BESIDE_MAX: usize = 1000;
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
    /// their directories and the one above them the files that engines and tokenizers read. A source on this
    /// machine is returned as it is; so is a repository of which the local cache has all these files, or that is
    /// used because the Hub does not answer, or is not asked (`HF_HUB_OFFLINE`).
    ///
    /// Of a source that is one file, such as a GGUF model, only that and the files that belong to it are taken.
    ///
    /// # Errors
    /// Those of [`Remote::find_files`].
    pub fn model(&self, source: impl AsRef<Path>, filter: &ModelFilter) -> Result<FoundModel> {
        let source = source.as_ref();
        if is_url(source) {
            refuse_filter(source, filter)?;
            let model = self.model_of_files(source, &[source.to_owned()], None);
            return model.map(FoundModel::Remote);
        }
        if let Ok(Some(name)) = ObjectName::from_path(source) {
            return self.model_in_store(source, &name, filter).map(FoundModel::Remote);
        }
        match HubName::from_path(source) {
            Ok(Some(name)) if !hub::is_offline() => self.model_in_hub(source, &name, filter),
            _ => Ok(FoundModel::Local(source.to_owned())),
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
        let limits = self.limits(&stop);
        let mut listing = Listing::new(&store, &root, &limits);
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
        let mut count = 0;
        for folder in folders {
            let (found, is_listed) = match listing.files(&folder) {
                Ok(found) => (found.into_iter().filter(|name| is_beside(name)).collect(), true),
                Err(HttpError::Refused { .. }) => (NAMES.map(str::to_owned).to_vec(), false),
                Err(error) => return Err(not_found(source, FindError::Directory(error))),
            };
            count += found.len();
            check_beside(source, count)?;
            for found in found {
                let path = if folder.is_empty() { found } else { format!("{folder}/{found}") };
                let object = PathBuf::from(root.below(&path).to_string());
                match self.open_on_server(&object) {
                    Ok(file) => push_once(&mut model, &path, file)?,
                    Err(error) if !is_listed && is_missing(&error) => {}
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
    ) -> Result<FoundModel> {
        let local = || find_files(source, FormatChoice::Auto, filter).is_ok();
        let found = match self.find_in_hub(name, FormatChoice::Auto, filter) {
            Err(FindError::Directory(error)) if error.is_silence() && local() => {
                self.note_silence(name, &error);
                return Ok(FoundModel::Local(source.to_owned()));
            }
            found => found.map_err(|error| not_found(source, error))?,
        };
        let HubFiles { names, root, .. } = &found;
        // A model in one file, such as a GGUF model, has its configuration in it.
        let is_file = found.is_file || names.iter().all(|name| name.ends_with(".gguf"));
        let beside = if is_file { Vec::new() } else { found.beside() };
        check_beside(source, beside.len())?;
        let at_commit = |file: Option<&str>| found.at_commit(name, file);
        // The cache has links, which may lead out of a folder in it.
        let file = names.first().filter(|_| is_file);
        let is_nested = !root.is_empty() || file.is_some_and(|file| file.contains('/'));
        if !is_nested && self.is_cached(&found, name, &beside) {
            let cached = at_commit(file.map(String::as_str));
            return Ok(FoundModel::Local(cached.to_string().into()));
        }
        let shown = PathBuf::from(at_commit(None).to_string());
        let mut model = RemoteModel::new(&shown, name.repository.replace('/', "--"));
        if is_file && let Some(first) = names.first() {
            model = model.main(below(root, first));
        }
        for file in names {
            let path = PathBuf::from(at_commit(Some(file)).to_string());
            self.push_with_others(&mut model, &path, below(root, file))?;
        }
        for path in beside {
            let file = self.open_on_server(&PathBuf::from(at_commit(Some(path)).to_string()))?;
            push_once(&mut model, below(root, path), file)?;
        }
        Ok(FoundModel::Remote(model))
    }

    /// Returns `true` if the local cache has all files of a model at its commit.
    fn is_cached(&self, found: &HubFiles, name: &HubName, beside: &[&str]) -> bool {
        let has = |file: &str| in_cache(&found.at_commit(name, Some(file)));
        found.names.iter().all(|file| {
            let Some(path) = has(file) else { return false };
            let others = others_of(&path, FormatChoice::Auto, self);
            others.is_ok_and(|others| others.iter().all(|other| other.is_file()))
        }) && beside.iter().all(|file| has(file).is_some())
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
        if !model.contains(path) {
            model.push_first(path, opened)?;
        }
        let opener = OnServer { remote: self, model };
        for other in others_of(file, FormatChoice::Auto, &opener)? {
            let beside = |file: &Path| other.strip_prefix(file.parent()?).ok()?.to_str();
            let name = beside(file).or_else(|| beside(&shown)).unwrap_or_default();
            let name = match is_url(file) {
                true => percent_decode_str(name).decode_utf8_lossy(),
                false => name.into(),
            };
            let path = match path.rsplit_once('/') {
                Some((folder, _)) => format!("{folder}/{name}"),
                None => name.into_owned(),
            };
            if !model.contains(&path) {
                model.push(&path, self.open_on_server(&other)?)?;
            }
        }
        Ok(())
    }
}

impl HubFiles {
    /// Returns the paths of the files beside the weights that engines and tokenizers read.
    fn beside(&self) -> Vec<&str> {
        let below_root = || self.all.iter().filter_map(|path| below_of(&self.root, path));
        let parent =
            |path| -> &str { str::rsplit_once(path, '/').map_or("", |(parent, _)| parent) };
        let mut folders: HashSet<&str> =
            self.names.iter().map(|name| parent(below(&self.root, name))).chain([""]).collect();
        let is_in_folders = is_in_folders(|name| Ok(below_root().any(|path| path == name)));
        if is_in_folders.unwrap_or(false) {
            folders.extend(below_root().filter_map(|path| Some(path.split_once('/')?.0)));
        }
        let is_wanted = |path: &str| {
            let (parent, file) = path.rsplit_once('/').unwrap_or(("", path));
            is_beside(file) && folders.contains(parent)
        };
        let wanted = |path: &&String| below_of(&self.root, path).is_some_and(is_wanted);
        self.all.iter().filter(wanted).map(String::as_str).collect()
    }
}

/// Refuses a model with more files beside its weights than can be requested one by one.
fn check_beside(source: &Path, count: usize) -> Result<()> {
    if count <= BESIDE_MAX {
        return Ok(());
    }
    let text = format!(
        "it has {count} files beside its weights that engines may read, and a model of a server has at most \
         {BESIDE_MAX}; name a file or a folder in it"
    );
    Err(failed(source, io::Error::new(io::ErrorKind::InvalidData, text).into()))
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

/// Opens files of servers, and none of the local cache. A file of the model is the one that was opened before.
struct OnServer<'a> {
    remote: &'a Remote,
    model: &'a RemoteModel,
}

impl Opener for OnServer<'_> {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        let shown = PathBuf::from(shown_text(&path.to_string_lossy()));
        match self.model.file_of(&shown) {
            Some(file) => file.try_clone(),
            None => self.remote.open_on_server(path),
        }
    }

    fn shard_path(&self, path: &Path, name: &str) -> PathBuf {
        shard_path(path, name)
    }

    fn permit_files(&self, source: &SourceFile, count: u64) -> Result<()> {
        permit_files(source, count)
    }
}
