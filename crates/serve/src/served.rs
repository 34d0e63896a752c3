//! What is served: directories, and files named one by one. Every path is resolved here.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use longshore_load::format::FormatChoice;
use longshore_load::format::index::ShardIndex;
use longshore_load::format::safetensors::Header;
use longshore_load::{Plan, SourceFile};
use longshore_sys::beneath::{self, Reach};
use longshore_sys::file::{self, Kind as FileKind, Version};

use crate::error::{Error, Result};

/// The most shards that a served model may have: each is open twice while it is loaded.
pub(crate) const SHARDS_MAX: usize = 256;

/// Directories beneath which everything may be asked for, and files that may.
#[derive(Debug)]
pub(crate) struct Served {
    places: Vec<Place>,
}

/// A directory, and what of it is served.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    /// Without symbolic links in it.
    path: PathBuf,
    /// Only the file of this name, and shards of it.
    only: Option<OsString>,
}

/// A file that was asked for, and what belongs to it, as they were when they were looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The file that was named.
    pub(crate) path: PathBuf,
    /// What its name and the caller's choice make of it.
    pub(crate) kind: Kind,
    /// The files to be loaded: that one, or the shards it names.
    pub(crate) files: Vec<(PathBuf, Version)>,
}

/// What a file is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes.
    Raw,
    /// A header to be checked before anything is loaded.
    Safetensors,
    /// It stands for its shards.
    Index,
}

/// What became of looking for a file.
#[derive(Debug)]
pub(crate) struct Looked {
    /// Device and inode of the file that was named, where it is served and there.
    pub(crate) named: Option<((u32, u32), u64)>,
    /// What it is. To be told to nobody who has not shown that the named file is open to them.
    pub(crate) found: std::result::Result<Found, longshore_load::Error>,
}

impl Served {
    pub(crate) fn new(roots: &[PathBuf], files: &[PathBuf]) -> Result<Self> {
        let mut places = Vec::new();
        // Files that were named come first: links may lead out of where they are.
        for path in files {
            let refused = |reason: String| Error::CannotServe { path: path.clone(), reason };
            let (Some(directory), Some(name)) = (parent(path), path.file_name()) else {
                return Err(refused("it is not the name of a file".to_owned()));
            };
            let only = Some(name.to_owned());
            places.push(Place::open(directory, only).map_err(|e| refused(e.to_string()))?);
        }
        for path in roots {
            let refused = |reason: String| Error::CannotServe { path: path.clone(), reason };
            places.push(Place::open(path, None).map_err(|error| match error.kind() {
                io::ErrorKind::Unsupported => refused(
                    "this kernel, or a filter on system calls, has no openat2 (Linux 5.6)".into(),
                ),
                _ => refused(error.to_string()),
            })?);
        }
        Ok(Self { places })
    }

    /// The paths of what is served.
    pub(crate) fn roots(&self) -> impl Iterator<Item = PathBuf> {
        self.places.iter().map(|place| match &place.only {
            Some(name) => place.path.join(name),
            None => place.path.clone(),
        })
    }

    /// Looks for the file at `path`, which is absolute.
    pub(crate) fn look(&self, path: &Path, format: FormatChoice) -> Looked {
        let opened = self.places.iter().find_map(|place| {
            let name = path.strip_prefix(&place.path).ok()?;
            if name.as_os_str().is_empty() || place.only.as_deref().is_some_and(|only| only != name)
            {
                return None;
            }
            Some((place, place.open_file(name).ok()?))
        });
        let not_there = |source| longshore_load::Error::Open { path: path.to_owned(), source };
        let Some((place, file)) = opened else {
            let found = Err(not_there(io::ErrorKind::NotFound.into()));
            return Looked { named: None, found };
        };
        match file::status(&file) {
            Ok(status) => {
                let named = Some(status.version.inode());
                Looked { named, found: place.examine(path, &file, status, format) }
            }
            Err(error) => Looked { named: None, found: Err(not_there(error)) },
        }
    }

    /// Opens once more what was found, checks what can be checked of it, and plans to load it.
    ///
    /// # Errors
    /// [`longshore_load::Error::Changed`] where it is not what it was.
    pub(crate) fn plan(&self, found: &Found) -> longshore_load::Result<Plan> {
        let mut sources = Vec::new();
        for (path, version) in &found.files {
            let source = self.source(&found.path, path)?;
            if source.version() != *version {
                let what = "it is not the file that it was a moment ago".to_owned();
                return Err(longshore_load::Error::Changed { path: path.clone(), what });
            }
            sources.push(source);
        }
        if found.kind != Kind::Raw {
            let headers =
                sources.iter().map(Header::read).collect::<longshore_load::Result<Vec<_>>>()?;
            if found.kind == Kind::Index {
                let path = found.path.as_path();
                let index = self.open_anew(path, path)?;
                let status = file::status(&index).map_err(|source| {
                    longshore_load::Error::Open { path: path.to_owned(), source }
                })?;
                read_index(path, &index, status.version.len_bytes())?.check(&headers)?;
            }
        }
        let mut plan = Plan::new();
        for source in sources {
            plan.push(source)?;
        }
        Ok(plan)
    }

    /// Whether any of the files is no longer what it was.
    pub(crate) fn is_stale(&self, found: &Found) -> bool {
        found.files.iter().any(|(path, version)| {
            let now =
                self.open_anew(&found.path, path).ok().and_then(|file| file::status(file).ok());
            now.is_none_or(|status| status.version != *version)
        })
    }

    fn source(&self, named: &Path, path: &Path) -> longshore_load::Result<SourceFile> {
        SourceFile::from_fd(self.open_anew(named, path)?)
    }

    /// Opens a file that belongs to the one that is `named`.
    fn open_anew(&self, named: &Path, path: &Path) -> longshore_load::Result<OwnedFd> {
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for place in &self.places {
            let is_right = match &place.only {
                Some(only) => named == place.path.join(only),
                None => named.starts_with(&place.path),
            };
            let Some(name) = path.strip_prefix(&place.path).ok().filter(|_| is_right) else {
                continue;
            };
            match place.open_file(name) {
                Ok(file) => return Ok(file),
                Err(error) => refused = error,
            }
        }
        Err(longshore_load::Error::Open { path: path.to_owned(), source: refused })
    }
}

impl Place {
    fn open(directory: &Path, only: Option<OsString>) -> io::Result<Self> {
        let path = fs::canonicalize(directory)?;
        let place = Self { directory: beneath::open_directory(&path)?, path, only };
        // Whether the kernel can do what is asked of it later.
        beneath::open(&place.directory, Path::new("."), Reach::Beneath)?;
        Ok(place)
    }

    fn open_file(&self, name: &Path) -> io::Result<OwnedFd> {
        let reach = if self.only.is_some() { Reach::Anywhere } else { Reach::Beneath };
        beneath::open(&self.directory, name, reach)
    }

    fn examine(
        &self,
        path: &Path,
        file: &OwnedFd,
        status: file::Status,
        format: FormatChoice,
    ) -> std::result::Result<Found, longshore_load::Error> {
        if status.kind != FileKind::Regular {
            let kind = status.kind.described();
            let (path, hint) = (path.to_owned(), "");
            return Err(longshore_load::Error::NotRegular { path, kind, hint });
        }
        let kind = Kind::of(path, format);
        let mut files = vec![(path.to_owned(), status.version)];
        if kind == Kind::Index {
            let index = read_index(path, file, status.version.len_bytes())?;
            files = self.shards(&index)?;
        }
        Ok(Found { path: path.to_owned(), kind, files })
    }

    fn shards(&self, index: &ShardIndex) -> longshore_load::Result<Vec<(PathBuf, Version)>> {
        if index.shards().len() > SHARDS_MAX {
            let reason = format!(
                "it has {} shards, and at most {SHARDS_MAX} are served",
                index.shards().len()
            );
            return Err(invalid_index(index.path(), reason));
        }
        let mut files = Vec::new();
        for shard in index.shards() {
            let path = index.shard_path(shard);
            let name = path.strip_prefix(&self.path).unwrap_or(&path);
            let failed = |source| longshore_load::Error::Open { path: path.clone(), source };
            let file = self.open_file(name).map_err(failed)?;
            let status = file::status(&file).map_err(failed)?;
            if status.kind != FileKind::Regular {
                let kind = status.kind.described();
                return Err(longshore_load::Error::NotRegular { path, kind, hint: "" });
            }
            files.push((path, status.version));
        }
        Ok(files)
    }
}

impl Kind {
    /// As `longshore_load::format::open` takes names.
    fn of(path: &Path, choice: FormatChoice) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_index = name.ends_with(".json")
            && (name.contains(".safetensors.index.")
                || choice == FormatChoice::Safetensors && name.ends_with(".index.json"));
        match choice {
            FormatChoice::Auto | FormatChoice::Safetensors if is_index => Self::Index,
            FormatChoice::Safetensors => Self::Safetensors,
            FormatChoice::Auto if name.ends_with(".safetensors") => Self::Safetensors,
            _ => Self::Raw,
        }
    }
}

fn read_index(path: &Path, file: &OwnedFd, len_bytes: u64) -> longshore_load::Result<ShardIndex> {
    use longshore_load::format::index::INDEX_LEN_MAX_BYTES;
    use longshore_mem::FileOffset;
    use longshore_sys::file::ReadFlags;

    if len_bytes > INDEX_LEN_MAX_BYTES {
        let reason =
            format!("it has {len_bytes} bytes, more than the {INDEX_LEN_MAX_BYTES} of any");
        return Err(invalid_index(path, reason));
    }
    let mut bytes = vec![0; len_bytes as usize];
    let mut done = 0;
    while done < bytes.len() {
        let at = FileOffset::new(done as u64);
        let range = done as u64..len_bytes;
        let path = || path.to_owned();
        match file::read_into(file, &mut bytes[done..], at, ReadFlags::default()) {
            Ok(0) => {
                let ended_at = done as u64;
                return Err(longshore_load::Error::Truncated { path: path(), ended_at, len_bytes });
            }
            Ok(read) => done += read,
            Err(source) => {
                let path = path();
                return Err(longshore_load::Error::Read { path, range, done_bytes: 0, source });
            }
        }
    }
    ShardIndex::parse(path, &bytes)
}

fn invalid_index(path: &Path, reason: String) -> longshore_load::Error {
    longshore_load::Error::Format { path: path.to_owned(), format: "safetensors index", reason }
}

/// The directory that `path` is in.
pub(crate) fn parent(path: &Path) -> Option<&Path> {
    path.file_name().filter(|name| *name != OsStr::new(".."))?;
    path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Tree {
        dir: tempfile::TempDir,
        served: Served,
    }

    fn tree() -> Tree {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("model"), b"model").unwrap();
        fs::write(dir.path().join("secret"), b"secret").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("sub", root.join("link")).unwrap();
        fs::write(root.join("sub/deep"), b"deep").unwrap();
        fs::write(dir.path().join("single"), b"single").unwrap();
        let files = [dir.path().join("single")];
        let served = Served::new(&[root], &files).unwrap();
        Tree { dir, served }
    }

    impl Tree {
        fn look(&self, name: &str) -> Looked {
            let dir = fs::canonicalize(self.dir.path()).unwrap();
            self.served.look(&dir.join(name), FormatChoice::Auto)
        }
    }

    #[test]
    fn only_what_is_served_is_found_and_the_rest_is_all_the_same() {
        let tree = tree();
        for name in ["root/model", "root/link/deep", "root/sub/../model", "single"] {
            let found = tree.look(name).found.unwrap();
            assert_eq!(found.files.len(), 1, "{name}");
        }
        let told = |name: &str| {
            let looked = tree.look(name);
            assert_eq!(looked.named, None, "{name}");
            looked.found.unwrap_err().to_string().replace(name, "")
        };
        let absent = told("root/absent");
        for name in
            ["secret", "root/out", "root/../secret", "nothing", "root/sub/../../secret", "root"]
        {
            assert_eq!(told(name), absent, "{name}");
        }
        let directory = tree.look("root/sub");
        assert!(directory.named.is_some() && directory.found.is_err());
    }

    #[test]
    fn what_was_found_is_planned_unless_it_changed() {
        let tree = tree();
        let found = tree.look("root/model").found.unwrap();
        assert_eq!(tree.served.plan(&found).unwrap().len_bytes(), 5);
        assert!(!tree.served.is_stale(&found));
        fs::write(tree.dir.path().join("root/model"), b"another").unwrap();
        let changed = tree.served.plan(&found).unwrap_err();
        assert!(matches!(changed, longshore_load::Error::Changed { .. }), "{changed}");
        assert!(tree.served.is_stale(&found));
    }

    #[test]
    fn names_are_taken_as_a_load_takes_them() {
        for (name, choice, kind) in [
            ("m.safetensors", FormatChoice::Auto, Kind::Safetensors),
            ("m.safetensors", FormatChoice::Raw, Kind::Raw),
            ("m.safetensors.index.json", FormatChoice::Auto, Kind::Index),
            ("m.index.json", FormatChoice::Safetensors, Kind::Index),
            ("m.index.json", FormatChoice::Auto, Kind::Raw),
            ("m.gguf", FormatChoice::Auto, Kind::Raw),
        ] {
            assert_eq!(Kind::of(Path::new(name), choice), kind, "{name} {choice}");
        }
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let refused = Served::new(&["/no/such/directory".into()], &[]).unwrap_err().to_string();
        assert!(refused.contains("/no/such/directory cannot be served"), "{refused}");
        assert!(Served::new(&[], &["/".into()]).is_err());
    }
}
