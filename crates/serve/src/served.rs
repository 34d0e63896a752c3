//! What is served: directories, and files named one by one. Every path is resolved here.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use longshore_load::FormatChoice;
use longshore_load::plan::PlannedFile;
use longshore_load::{Plan, SourceFile};
use longshore_mem::Granule;
use longshore_sys::beneath::{self, Reach};
use longshore_sys::file::{self, Kind as FileKind, Version};

use crate::error::{Error, Result};

/// The most files that a served model may have: each is open twice while it is loaded.
const FILES_MAX: usize = 257;

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

/// What a file is taken for, and how it is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) format: FormatChoice,
    /// What tensors begin at multiples of; `None` for where they are in the file.
    pub(crate) align: Option<Granule>,
}

/// A file that was asked for, and what belongs to it, as they were when they were looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The file that was named.
    pub(crate) path: PathBuf,
    pub(crate) layout: Layout,
    /// The files to be loaded: that one, or those that it stands for.
    pub(crate) files: Vec<(PathBuf, Version)>,
    /// How long a buffer they take.
    pub(crate) len_bytes: u64,
}

impl Found {
    /// Whether both are the same files, laid out alike, though perhaps at other times.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.path == other.path
            && self.layout.align == other.layout.align
            && self.paths().eq(other.paths())
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }
}

/// Device and inode of a file.
pub(crate) type Inode = ((u32, u32), u64);

/// What became of looking for a file.
#[derive(Debug)]
pub(crate) enum Looked {
    /// It is not there, not served, or not the file that was shown. Nobody is told which.
    Refused,
    /// It was not even looked for.
    Failed(longshore_load::Error),
    /// It is there, and whoever asked has shown it: what it is, or what is wrong with it.
    Found(longshore_load::Result<Found>),
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

    /// Looks for the file at `path`, which is absolute. For somebody who has shown that a file is
    /// open to them, nothing is asked of any other file: not what it is, nor what is in it.
    pub(crate) fn look(&self, path: &Path, layout: Layout, shown: Option<Inode>) -> Looked {
        let opened = self.places.iter().find_map(|place| {
            let name = path.strip_prefix(&place.path).ok()?;
            if name.as_os_str().is_empty() || place.only.as_deref().is_some_and(|only| only != name)
            {
                return None;
            }
            place.open_file(name).ok()
        });
        let Some(status) = opened.and_then(|file| file::status(&file).ok()) else {
            return Looked::Refused;
        };
        if shown.is_some_and(|shown| shown != status.version.inode()) {
            return Looked::Refused;
        }
        Looked::Found(self.examine(path, status, layout))
    }

    /// What a file is that is there. Only one that stands for others, or is to be laid out anew, is
    /// read for that.
    fn examine(
        &self,
        path: &Path,
        status: file::Status,
        layout: Layout,
    ) -> longshore_load::Result<Found> {
        if status.kind != FileKind::Regular {
            let kind = status.kind.described();
            let (path, hint) = (path.to_owned(), "");
            return Err(longshore_load::Error::NotRegular { path, kind, hint });
        }
        let path = path.to_owned();
        if layout.align.is_none() && !longshore_load::names_others(&path, layout.format) {
            let (files, len_bytes) =
                (vec![(path.clone(), status.version)], status.version.len_bytes());
            return Ok(Found { path, layout, files, len_bytes });
        }
        let plan = self.open(&path, layout, Some(status.version))?;
        let of_file = |file: &PlannedFile| {
            let source = file.source();
            (source.path().to_owned(), source.version())
        };
        let files = plan.files().iter().map(of_file).collect();
        Ok(Found { path, layout, files, len_bytes: plan.len_bytes() })
    }

    /// Opens once more what was found, checks what can be checked of it, and plans to load it.
    ///
    /// # Errors
    /// [`longshore_load::Error::Changed`] where it is not what it was.
    pub(crate) fn plan(&self, found: &Found) -> longshore_load::Result<Plan> {
        let named = found.files.iter().find(|(path, _)| *path == found.path);
        let plan = self.open(&found.path, found.layout, named.map(|(_, version)| *version))?;
        let sources = plan.files().iter().map(PlannedFile::source);
        let now = sources.map(|source| (source.path(), source.version()));
        let then = found.files.iter().map(|(path, version)| (path.as_path(), *version));
        if !now.eq(then) || plan.len_bytes() != found.len_bytes {
            let what = "it is not what it was a moment ago".to_owned();
            return Err(longshore_load::Error::Changed { path: found.path.clone(), what });
        }
        Ok(plan)
    }

    /// Opens a file and those that it stands for, all of them where they are served. The one that is
    /// named has to be of this version: between two looks its name may have come to lead elsewhere.
    fn open(
        &self,
        named: &Path,
        layout: Layout,
        version: Option<Version>,
    ) -> longshore_load::Result<Plan> {
        let opened_files = Cell::new(0);
        let open = |path: &Path| {
            opened_files.set(opened_files.get() + 1);
            if opened_files.get() > FILES_MAX {
                return Err(longshore_load::Error::Format {
                    path: named.to_owned(),
                    format: "served",
                    reason: format!("it stands for more than {FILES_MAX} files"),
                });
            }
            let source = SourceFile::from_fd(self.open_anew(named, path)?)?.named(path);
            if path == named && version.is_some_and(|version| version != source.version()) {
                let what = "it is not what it was a moment ago".to_owned();
                return Err(longshore_load::Error::Changed { path: named.to_owned(), what });
            }
            Ok(source)
        };
        let mut opened = longshore_load::open_by(&[named], layout.format, &open)?;
        if let Some(alignment) = layout.align {
            if opened.tensors.is_empty() {
                return Err(longshore_load::Error::Format {
                    path: named.to_owned(),
                    format: "tensor",
                    reason: "no tensors are known in it, and so none can be aligned".to_owned(),
                });
            }
            opened = opened.align(alignment)?;
        }
        Ok(opened.plan)
    }

    /// Whether any of the files is no longer what it was.
    pub(crate) fn is_stale(&self, found: &Found) -> bool {
        found.files.iter().any(|(path, version)| {
            let now =
                self.open_anew(&found.path, path).ok().and_then(|file| file::status(file).ok());
            now.is_none_or(|status| status.version != *version)
        })
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
}

/// The directory that `path` is in.
pub(crate) fn parent(path: &Path) -> Option<&Path> {
    path.file_name().filter(|name| *name != OsStr::new(".."))?;
    path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
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
        fn look(&self, name: &str, shown: Option<Inode>) -> Looked {
            let path = fs::canonicalize(self.dir.path()).unwrap().join(name);
            self.served.look(&path, Layout { format: FormatChoice::Auto, align: None }, shown)
        }

        fn found(&self, name: &str) -> Found {
            match self.look(name, None) {
                Looked::Found(found) => found.unwrap(),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn only_what_is_served_is_found_and_the_rest_is_all_the_same() {
        let tree = tree();
        for name in ["root/model", "root/link/deep", "root/sub/../model", "single"] {
            assert_eq!(tree.found(name).files.len(), 1, "{name}");
        }
        for name in [
            "root/absent",
            "secret",
            "root/out",
            "root/../secret",
            "nothing",
            "root/sub/../../secret",
            "root",
        ] {
            assert!(matches!(tree.look(name, None), Looked::Refused), "{name}");
        }
        assert!(matches!(tree.look("root/sub", None), Looked::Found(Err(_))));
        // Another file than the one that was shown is as if it were not there.
        let shown = |name: &str| Some(tree.found(name).files[0].1.inode());
        assert!(matches!(tree.look("root/model", shown("single")), Looked::Refused));
        assert!(matches!(tree.look("root/model", shown("root/model")), Looked::Found(Ok(_))));
        assert!(matches!(tree.look("root/sub", shown("root/model")), Looked::Refused));
    }

    #[test]
    fn a_name_that_comes_to_lead_elsewhere_is_noticed() {
        let tree = tree();
        let root = fs::canonicalize(tree.dir.path()).unwrap().join("root");
        let name = root.join("drop");
        symlink("model", &name).unwrap();
        let version = |path: &Path| file::status(File::open(path).unwrap()).unwrap().version;
        let shown = version(&name);
        fs::remove_file(&name).unwrap();
        symlink("sub/deep", &name).unwrap();
        let layout = Layout { format: FormatChoice::Auto, align: None };
        let refused = tree.served.open(&name, layout, Some(shown)).unwrap_err();
        assert!(matches!(refused, longshore_load::Error::Changed { .. }), "{refused}");
        tree.served.open(&name, layout, Some(version(&name))).unwrap();
    }

    #[test]
    fn what_was_found_is_planned_unless_it_changed() {
        let tree = tree();
        let found = tree.found("root/model");
        assert_eq!(tree.served.plan(&found).unwrap().len_bytes(), 5);
        assert!(!tree.served.is_stale(&found));
        fs::write(tree.dir.path().join("root/model"), b"another").unwrap();
        let changed = tree.served.plan(&found).unwrap_err();
        assert!(matches!(changed, longshore_load::Error::Changed { .. }), "{changed}");
        assert!(tree.served.is_stale(&found));
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let refused = Served::new(&["/no/such/directory".into()], &[]).unwrap_err().to_string();
        assert!(refused.contains("/no/such/directory cannot be served"), "{refused}");
        assert!(Served::new(&[], &["/".into()]).is_err());
    }
}
