//! A directory of this machine in which a model is searched for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use longshore_formats::directory::{Directory, check_pipeline_len};

use crate::error::{Error, Result};
use crate::open::read_exact;
use crate::source::SourceFile;

/// The limit on the entries of a directory in which a model is searched for, with those of the folders
/// in it.
const ENTRIES_MAX: usize = 100_000;

/// A directory of this machine. Symbolic links are followed, except to folders of folders, which may lead
/// back. Hidden folders are left out.
pub(super) struct LocalDirectory<'a> {
    root: &'a Path,
    /// The listed folders, by their paths in the directory.
    listed: HashMap<String, Listing>,
    /// The paths of the entries whose names are not UTF-8. In these, such characters are replaced.
    odd_paths: HashMap<String, PathBuf>,
    /// The number of entries that may still be read.
    left: usize,
}

/// The sorted names in a folder.
#[derive(Clone, Debug, Default)]
struct Listing {
    files: Vec<String>,
    folders: Vec<String>,
}

impl<'a> LocalDirectory<'a> {
    pub(super) fn new(root: &'a Path) -> Self {
        let (listed, odd_paths) = (HashMap::new(), HashMap::new());
        Self { root, listed, odd_paths, left: ENTRIES_MAX }
    }

    /// Returns the path of an entry, or that of the directory itself if `entry` is empty.
    pub(super) fn path(&self, entry: &str) -> PathBuf {
        match self.odd_paths.get(entry) {
            Some(path) => path.clone(),
            None if entry.is_empty() => self.root.to_owned(),
            None => match entry.rsplit_once('/') {
                Some((folder, name)) => self.path(folder).join(name),
                None => self.root.join(entry),
            },
        }
    }

    fn list(&mut self, folder: &str) -> Result<&Listing> {
        if !self.listed.contains_key(folder) {
            let listing = self.read_folder(folder)?;
            self.listed.insert(folder.to_owned(), listing);
        }
        Ok(&self.listed[folder])
    }

    fn read_folder(&mut self, folder: &str) -> Result<Listing> {
        let path = self.path(folder);
        let failed = |source| Error::Open { path: path.clone(), source };
        let mut listing = Listing::default();
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.is_empty() => {
                return Ok(listing);
            }
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Some(left) = self.left.checked_sub(1) else {
                let message = format!("it has more than {ENTRIES_MAX} entries; name the file");
                return Err(failed(io::Error::other(message)));
            };
            self.left = left;
            let name = entry.file_name();
            let kind = entry.file_type().map_err(failed)?;
            let is_folder = if kind.is_symlink() { entry.path().is_dir() } else { kind.is_dir() };
            let text = name.to_string_lossy().into_owned();
            if name.to_str().is_none() {
                let below =
                    if folder.is_empty() { text.clone() } else { format!("{folder}/{text}") };
                self.odd_paths.insert(below, entry.path());
            }
            match is_folder {
                false => listing.files.push(text),
                true if text.starts_with('.') || kind.is_symlink() && !folder.is_empty() => {}
                true => listing.folders.push(text),
            }
        }
        listing.files.sort_unstable();
        listing.folders.sort_unstable();
        Ok(listing)
    }
}

impl Directory for LocalDirectory<'_> {
    type Error = Error;

    fn files(&mut self, folder: &str) -> Result<Vec<String>> {
        self.list(folder).map(|listing| listing.files.clone())
    }

    fn folders(&mut self, folder: &str) -> Result<Vec<String>> {
        self.list(folder).map(|listing| listing.folders.clone())
    }

    fn read(&mut self, file: &str, max_bytes: u64) -> Result<Vec<u8>> {
        let source = SourceFile::open(self.path(file))?;
        check_pipeline_len(source.len()).map_err(|error| Error::format(source.path(), error))?;
        let mut content = vec![0; source.len().min(max_bytes) as usize];
        read_exact(&source, &mut content, 0)?;
        Ok(content)
    }
}
