//! A model whose files are on servers.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::problem::PublishProblem;
use super::record::{DEPTH_MAX, ENTRIES_MAX};
use super::tree::{is_reserved, name_of_file, open_error, publish_error};
use crate::error::Result;
use crate::source::{Opener, SourceFile};

/// A model that [`Publisher::publish_remote`](crate::Publisher::publish_remote) publishes: files of servers, each
/// with its path in the model. Some may be on this machine, such as those in a cache.
#[derive(Debug)]
pub struct RemoteModel {
    source: PathBuf,
    name: String,
    main: Option<PathBuf>,
    folders: Vec<PathBuf>,
    files: Vec<RemoteFile>,
    first: Vec<PathBuf>,
}

/// The place of a model that was found.
#[derive(Debug)]
pub enum FoundModel {
    /// A source on this machine: a path, or a name of the Hub whose files are in the local cache.
    Local(PathBuf),
    /// Files of servers.
    Remote(RemoteModel),
}

impl FoundModel {
    /// Returns the files of servers; `None` for a model on this machine.
    pub fn remote(self) -> Option<RemoteModel> {
        match self {
            Self::Local(_) => None,
            Self::Remote(model) => Some(model),
        }
    }
}

/// A file of a [`RemoteModel`].
#[derive(Debug)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) source: SourceFile,
}

impl RemoteModel {
    /// Makes a model without files. `source` is recorded and shown, so it must have no secrets; `name` is the name
    /// under which the model is published if no other is requested.
    pub fn new(source: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        let (source, name) = (source.into(), name.into());
        let (folders, files, first) = (Vec::new(), Vec::new(), Vec::new());
        Self { source, name, main: None, folders, files, first }
    }

    /// Makes a model of one file, or of those that an index names, whose name is that of the file.
    pub fn of_file(source: impl Into<PathBuf>) -> Self {
        let source = source.into();
        let name = name_of_file(&source);
        let main = PathBuf::from(source.file_name().unwrap_or_default());
        Self::new(source, name).main(main)
    }

    /// Returns the paths of all files in the model, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.path.as_str())
    }

    /// Returns `true` if the model has a file with this path.
    pub fn contains(&self, path: &str) -> bool {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).is_ok()
    }

    /// Adds a file like [`RemoteModel::push`], which is one of those that [`open_by`](crate::open_by) is to open: an
    /// index, the first of several splits, or a file of its own.
    ///
    /// # Errors
    /// Those of [`RemoteModel::push`].
    pub fn push_first(&mut self, path: &str, source: SourceFile) -> Result<()> {
        let opened = source.path().to_owned();
        self.push(path, source)?;
        self.first.push(opened);
        Ok(())
    }

    /// Returns the paths of the sources that [`open_by`](crate::open_by) is to open, with this model as the opener.
    pub fn first_files(&self) -> &[PathBuf] {
        &self.first
    }

    /// Sets the file whose path programs get, instead of that of the directory: an index, or a model in one file.
    pub fn main(mut self, path: impl Into<PathBuf>) -> Self {
        self.main = Some(path.into());
        self
    }

    /// Adds a file with its path in the model.
    ///
    /// # Errors
    /// [`Error::Publish`](crate::Error::Publish) if the path leaves the model, is reserved or occurs twice, or if
    /// there are too many files.
    pub fn push(&mut self, path: &str, source: SourceFile) -> Result<()> {
        let refused = |reason| Err(publish_error(&self.source.join(path), reason));
        let parts = Path::new(path).components();
        let is_normal = parts.clone().all(|part| matches!(part, Component::Normal(_)));
        // A name as in `a//b` would be another one in the record.
        let is_plain = parts.collect::<PathBuf>().to_str() == Some(path);
        if path.is_empty() || path.contains('\0') || !is_normal || !is_plain {
            return refused(PublishProblem::LeavesModel);
        }
        if is_reserved(Path::new(path)) {
            return refused(PublishProblem::ReservedName);
        }
        let folders = Path::new(path).ancestors().skip(1).filter(|it| !it.as_os_str().is_empty());
        let folders: Vec<_> = folders.map(Path::to_owned).collect();
        if folders.len() > DEPTH_MAX {
            return refused(PublishProblem::TooDeep { max: DEPTH_MAX });
        }
        let is_file =
            |folder: &PathBuf| self.files.iter().any(|file| Path::new(&file.path) == folder);
        if self.folders.iter().any(|folder| folder == Path::new(path))
            || folders.iter().any(is_file)
        {
            return refused(PublishProblem::NotADirectory);
        }
        let place = match self.files.binary_search_by(|file| file.path.as_str().cmp(path)) {
            Ok(_) => return refused(PublishProblem::NameExists),
            Err(place) => place,
        };
        if self.files.len() + self.folders.len() + folders.len() >= ENTRIES_MAX {
            return refused(PublishProblem::TooMany { max: ENTRIES_MAX });
        }
        // Each after the one that contains it.
        for folder in folders.into_iter().rev() {
            if !self.folders.contains(&folder) {
                self.folders.push(folder);
            }
        }
        self.files.insert(place, RemoteFile { path: path.to_owned(), source });
        Ok(())
    }

    /// Returns the number of bytes of all files.
    pub fn content_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.source.len()).fold(0, u64::saturating_add)
    }

    /// Returns the file whose source has this path.
    pub fn file_of(&self, source: &Path) -> Option<&SourceFile> {
        self.files.iter().map(|file| &file.source).find(|file| file.path() == source)
    }

    /// Returns the source as it is shown.
    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    /// Returns the name under which the model is published, if no other one is requested.
    pub fn default_name(&self) -> &str {
        &self.name
    }

    pub(crate) fn main_path(&self) -> Option<&Path> {
        self.main.as_deref()
    }

    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    pub(crate) fn files(&self) -> &[RemoteFile] {
        &self.files
    }
}

/// Opens the files of the model, in the versions that were found.
impl Opener for RemoteModel {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        match self.file_of(path) {
            Some(file) => file.try_clone(),
            None => Err(open_error(path)(io::ErrorKind::NotFound.into())),
        }
    }

    fn shard_path(&self, path: &Path, name: &str) -> PathBuf {
        let index = self.files.iter().find(|file| file.source.path() == path);
        let wanted = index.map(|index| Path::new(&index.path).with_file_name(name));
        let found = self.files.iter().find(|file| wanted.as_deref() == Some(Path::new(&file.path)));
        found.map_or_else(|| path.with_file_name(name), |file| file.source.path().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_stay_in_the_model_and_are_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"x").unwrap();
        let mut model = RemoteModel::new("hf://org/name", "name");
        let mut push = |name: &str| model.push(name, SourceFile::open(&path).unwrap());
        for name in ["b/c/d", "a", "b/e"] {
            push(name).unwrap();
        }
        let deep = "d/".repeat(DEPTH_MAX + 1) + "f";
        for name in [
            "",
            "a\0",
            "/a",
            "../a",
            "b/../a",
            "a/.",
            "b//e",
            "a",
            "a/b",
            "b",
            "b/c",
            ".longshore.json",
            &deep,
        ] {
            assert!(push(name).is_err(), "{name}");
        }
        let paths: Vec<_> = model.files().iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a", "b/c/d", "b/e"]);
        assert_eq!(model.folders(), [Path::new("b"), Path::new("b/c")]);
    }
}
