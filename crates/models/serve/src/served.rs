//! The served directories and files. All paths are resolved in this module.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use longshore_load::{FileVersion, FormatChoice, Opener, Plan, PlannedFile, SourceFile};
use longshore_mem::{ByteSize, Granule};
use longshore_sys::beneath::{self, Reach};
use longshore_sys::descriptors;
use longshore_sys::file::{self, Identity};
use longshore_sys::file_handle::FileHandle;

use crate::error::{Error, Result};
use crate::inodes::{HeldInode, Inodes, changed, file_version};
use crate::remote::files::RemoteFiles;

/// The most files with tensors that a served model may have. Each is open while the model is in memory,
/// and two more times while it is loaded.
const FILES_MAX: u64 = 256;

/// The most bytes that are read of the index and of all headers of a model together. Parsing takes
/// several times as much memory, which is charged to no user. The longest indexes of published models
/// have about 20 MB, and the headers of their shards 11 MB.
const HEADERS_BYTES_MAX: u64 = 32 << 20;

/// The most of these bytes that the headers may have if tensors are aligned, which takes twice as much
/// memory. A GGUF header that is longer than 8 MiB counts as 16 MiB.
const ALIGNED_HEADERS_BYTES_MAX: u64 = 20 << 20;

/// The directories whose files may be attached, and the single files that may.
#[derive(Debug)]
pub(crate) struct Served {
    places: Vec<Place>,
}

/// A directory, and the part of it that is served.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    /// The path, without symbolic links.
    path: PathBuf,
    /// If set, only the file of this name and its shards are served.
    only: Option<OsString>,
}

/// The format that a file is parsed as, and its layout in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) format: FormatChoice,
    /// The alignment of the tensors; `None` if they stay where they are in the file.
    pub(crate) align: Option<Granule>,
}

/// A requested file and the files of its model, as they were when they were found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The requested file.
    pub(crate) path: PathBuf,
    pub(crate) layout: Layout,
    /// The files to load: the requested one, or those of its index or splits.
    pub(crate) files: Vec<(PathBuf, FileVersion)>,
    /// The length of the buffer for them, in bytes.
    pub(crate) len_bytes: u64,
    /// Keeps the inodes of the files to load in use; `None` once one of them is deleted. Without it no
    /// file can be compared with them any more.
    pub(crate) inodes: Option<Arc<Inodes>>,
    /// The versions of the files, if they are on servers.
    pub(crate) remote: Option<Arc<RemoteFiles>>,
}

impl Found {
    /// Returns `true` if both are the same paths in the same layout, though perhaps at other times.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        if self.remote.is_some() || other.remote.is_some() {
            return self.is_as_on_server(other);
        }
        self.layout.align == other.layout.align
            && is_same_path(&self.path, &other.path)
            && self.paths().map(Path::as_os_str).eq(other.paths().map(Path::as_os_str))
    }

    /// Returns `true` if both are the same files, unchanged, in the same layout. Equal inode numbers
    /// mean the same inode only because both keep theirs in use.
    ///
    /// Their names, their formats and an index do not matter: they were checked when the files were
    /// found, and a load depends on none of them ([`Served::plan`]).
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if let (Some(own), Some(others)) = (&self.remote, &other.remote) {
            return self.layout.align == other.layout.align && own.is_same(others);
        }
        let (Some(own), Some(others)) = (&self.inodes, &other.inodes) else { return false };
        let versions = self.files.iter().map(|(_, version)| version);
        self.layout.align == other.layout.align
            && versions.eq(other.files.iter().map(|(_, version)| version))
            && own.handles().eq(others.handles())
    }

    /// Returns the same paths without the descriptors.
    pub(crate) fn without_inodes(&self) -> Self {
        Self { inodes: None, ..self.clone() }
    }

    /// Replaces the paths by others that lead to the same inodes.
    pub(crate) fn rename(&mut self, name: &Self) {
        *self = Self { inodes: self.inodes.take(), ..name.clone() };
    }

    /// Returns the number of descriptors that keep its inodes in use.
    pub(crate) fn open_files(&self) -> usize {
        self.inodes.as_ref().map_or(0, |inodes| inodes.len())
    }

    /// Returns `true` if the files are on servers.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// As [`Self::is_as`], for files on servers. Several names can lead to one file, and a name of the Hub to
    /// the files of another commit.
    fn is_as_on_server(&self, other: &Self) -> bool {
        let is_named_as =
            || self.layout.format == other.layout.format && is_same_path(&self.path, &other.path);
        let has_same = || self.paths().map(Path::as_os_str).eq(other.paths().map(Path::as_os_str));
        self.is_remote() == other.is_remote()
            && self.layout.align == other.layout.align
            && (is_named_as() || has_same())
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }
}

/// A file that a client has shown: the path that it gave, and the file's identity. The client's
/// descriptor stays open for as long as the identity is compared with others.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    /// The connection owns the descriptor until the lookup ends or is given up.
    pub(crate) file: Weak<OwnedFd>,
}

impl Shown {
    /// Returns `true` if the client has shown this very file.
    fn is_of(&self, found: &HeldInode) -> bool {
        // This may ask the file system for the handle, so it is not done for any other file that a
        // client sends.
        let has_handle = |file: Arc<OwnedFd>| FileHandle::of(&*file) == found.handle;
        self.identity.matches(&found.version.identity())
            && self.file.upgrade().is_some_and(has_handle)
    }
}

/// The result of looking for a file.
#[derive(Debug)]
pub(crate) enum Looked {
    /// One of the files does not exist, is not served, or is not the file that was shown. The client
    /// does not learn which of these it is.
    Refused {
        /// The path of that file.
        path: PathBuf,
        /// The reason, for the log only.
        why: io::Error,
    },
    /// The lookup failed, or did not begin.
    Failed(longshore_load::Error),
    /// The client has shown the file that it named, and must also show these.
    Unshown(Vec<PathBuf>),
    /// The client has shown all files: the model that was found, or the error in it.
    Found(longshore_load::Result<Found>),
}

/// The state of files that were found before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Their paths lead to them, and they are unchanged.
    Fresh,
    /// As [`Fresh`](Self::Fresh), but the index that was named is deleted.
    WithoutIndex,
    /// They were changed, or their paths lead to other files.
    Stale,
    /// One of them is deleted, and only the server keeps its inode in use.
    Unlinked,
}

/// Returns the error for the path of a file that has no last component, such as `/` or `..`.
pub(crate) fn not_a_file_name(path: &Path) -> Error {
    let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not the name of a file");
    Error::cannot_serve(path, source)
}

impl Served {
    pub(crate) fn new(roots: &[PathBuf], files: &[PathBuf]) -> Result<Self> {
        let mut places = Vec::new();
        // Files that were named come first: links may lead out of their directories.
        for path in files {
            let (Some(directory), Some(name)) = (parent(path), path.file_name()) else {
                return Err(not_a_file_name(path));
            };
            let only = Some(name.to_owned());
            places.push(Place::open(directory, only).map_err(|e| Error::cannot_serve(path, e))?);
        }
        for path in roots {
            places.push(Place::open(path, None).map_err(|e| Error::cannot_serve(path, e))?);
        }
        Ok(Self { places })
    }

    /// Returns the paths of the served directories and files.
    pub(crate) fn roots(&self) -> impl Iterator<Item = PathBuf> {
        self.places.iter().map(|place| match &place.only {
            Some(name) => place.path.join(name),
            None => place.path.clone(),
        })
    }

    /// Looks for the file at `path`, which is absolute, and for the other files of its model.
    ///
    /// For a client, `shown` has the files that it has shown. The server opens no other file for it, and
    /// reads none before all are shown, except the named one, once that is shown: the client can itself
    /// read in it which others an index or the first of several splits names. For the server's own
    /// lookups, `shown` is `None`.
    ///
    /// Everything that depends on the request is checked here: the format that it names, and its index.
    /// Other clients may wait for the load that follows, and do not get its errors.
    pub(crate) fn look(&self, path: &Path, layout: Layout, shown: Option<&[Shown]>) -> Looked {
        let mut inodes = Inodes::default();
        let named = match self.find(path, path, shown) {
            Ok(named) => named,
            Err(refused) => return refused,
        };
        if let Err(error) = named.check_regular() {
            return Looked::Found(Err(error));
        }
        // A file that the server cannot read is refused as if it did not exist.
        if let Err(why) = beneath::open_located(&named) {
            return refused(path, why);
        }
        inodes.push(named);
        let others = match self.others(&inodes, path, layout) {
            Ok(others) => others,
            Err(error) => return Looked::Found(Err(error)),
        };
        let is_shown = |other: &PathBuf| match shown {
            Some(shown) => shown.iter().any(|shown| shown.path == *other),
            None => true,
        };
        if !others.iter().all(is_shown) {
            return match shown {
                Some([_]) => Looked::Unshown(others),
                _ => Looked::Found(Err(changed(path))),
            };
        }
        // All of them are compared before one of them is opened.
        for other in &others {
            match self.find(path, other, shown) {
                Ok(found) => inodes.push(found),
                Err(refused) => return refused,
            }
        }
        let planned = open(&inodes, &[path], layout);
        let planned = planned.map(|plan| (versions(&plan), plan.len_bytes()));
        Looked::Found(planned.and_then(|(files, len_bytes)| {
            inodes.keep(files.iter().map(|(path, _)| path.as_path()));
            let inodes = Some(Arc::new(inodes));
            let path = path.to_owned();
            let found = Found { path, layout, files, len_bytes, inodes, remote: None };
            // The name of a shard may make the parser take it for another format.
            if layout.align.is_some() {
                Self::plan(&found)?;
            }
            Ok(found)
        }))
    }

    /// Looks for a file that an earlier, equal request found, and that is in memory: its header was
    /// checked, and is not read again. Returns `None` if it is no longer the same, is one of several, or
    /// cannot be opened.
    pub(crate) fn look_again(&self, known: &Found, shown: &[Shown]) -> Option<Found> {
        let [(path, version)] = &known.files[..] else { return None };
        if *path != known.path || known.inodes.is_none() {
            return None;
        }
        let file = self.find(path, path, Some(shown)).ok()?;
        if file_version(&file.version) != *version || beneath::open_located(&file).is_err() {
            return None;
        }
        let mut inodes = Inodes::default();
        inodes.push(file);
        let again = Found { inodes: Some(Arc::new(inodes)), ..known.clone() };
        known.is_same(&again).then_some(again)
    }

    /// Finds a file of the model that is `named`, without opening it, and compares it with the shown
    /// files.
    fn find(
        &self,
        named: &Path,
        path: &Path,
        shown: Option<&[Shown]>,
    ) -> std::result::Result<HeldInode, Looked> {
        let refused = |why: io::Error| refused(path, why);
        let located = self.locate(named, path).and_then(|file| HeldInode::new(path, file));
        let file = located.map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::CrossesDevices => {
                    "it is outside of the directory that is served, or on another file system that \
                     is mounted beneath it: to serve that one, name its mount point with --root"
                }
                _ if beneath::is_loop(&error) => {
                    "a directory in its path is a symbolic link or '..': only the file itself may be \
                     a link, whose target may have '..' only at the beginning"
                }
                _ => return refused(error),
            };
            refused(io::Error::new(error.kind(), why))
        })?;
        let is_shown = |shown: &Shown| shown.path == path && shown.is_of(&file);
        if shown.is_some_and(|shown| !shown.iter().any(is_shown)) {
            return Err(refused(io::Error::other("the client has shown another file")));
        }
        Ok(file)
    }

    /// Returns the other files of the model of the named file.
    fn others(
        &self,
        inodes: &Inodes,
        named: &Path,
        layout: Layout,
    ) -> longshore_load::Result<Vec<PathBuf>> {
        let by = |path: &Path| inodes.open(path);
        let mut others =
            longshore_load::others_of(named, layout.format, &Bounded::new(&by, layout))?;
        others.retain(|other| other != named);
        Ok(others)
    }

    /// Opens the files that were found, the very inodes, and plans to load them.
    ///
    /// The load may be for other clients, too, which gave other formats or have another index. So
    /// neither affects it: without an alignment the files are loaded as they are, and with one they are
    /// parsed as when they were found.
    ///
    /// # Errors
    /// [`longshore_load::Error::Changed`] if one of the files is not what it was.
    pub(crate) fn plan(found: &Found) -> longshore_load::Result<Plan> {
        let inodes = found.inodes.as_ref().ok_or_else(|| changed(&found.path))?;
        let paths: Vec<&Path> = found.paths().collect();
        let plan = open(inodes, &paths, layout_of_load(found.layout, &found.path))?;
        if versions(&plan) != found.files || plan.len_bytes() != found.len_bytes {
            return Err(changed(&found.path));
        }
        Ok(plan)
    }

    /// Returns the state of files that were found before.
    pub(crate) fn freshness(&self, found: &Found) -> Freshness {
        if found.inodes.as_ref().is_some_and(|inodes| inodes.is_any_unlinked()) {
            return Freshness::Unlinked;
        }
        let is_fresh = |(path, version): &(PathBuf, FileVersion)| {
            let now = self.locate(&found.path, path).and_then(file::status);
            now.is_ok_and(|now| file_version(&now.version) == *version)
        };
        if found.inodes.is_none() || !found.files.iter().all(is_fresh) {
            return Freshness::Stale;
        }
        let is_index = found.paths().all(|path| path != found.path);
        match is_index && self.locate(&found.path, &found.path).is_err() {
            true => Freshness::WithoutIndex,
            false => Freshness::Fresh,
        }
    }

    /// Finds a file of the model that is `named`, without opening it.
    fn locate(&self, named: &Path, path: &Path) -> io::Result<OwnedFd> {
        let unserved = "it is beneath no directory that is served";
        let mut refused = io::Error::new(io::ErrorKind::NotFound, unserved);
        for place in &self.places {
            let is_right = match &place.only {
                Some(only) => named == place.path.join(only),
                None => named.starts_with(&place.path),
            };
            let Some(name) = path.strip_prefix(&place.path).ok().filter(|_| is_right) else {
                continue;
            };
            match place.locate(name) {
                Ok(file) => return Ok(file),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

/// Returns the result for a file that cannot be found or opened. Exhausted descriptors are reported to
/// the client, because that tells nothing about the file.
fn refused(path: &Path, why: io::Error) -> Looked {
    let path = path.to_owned();
    match descriptors::is_exhausted(&why) {
        true => Looked::Failed(longshore_load::Error::Open { path, source: why }),
        false => Looked::Refused { path, why },
    }
}

/// Returns the layout for a load of files that were found. `named` is the file that names them.
pub(crate) fn layout_of_load(Layout { format, align }: Layout, named: &Path) -> Layout {
    let format = match align {
        None => FormatChoice::Raw,
        Some(_) if longshore_load::is_index(named, format) => FormatChoice::Safetensors,
        Some(_) => format,
    };
    Layout { format, align }
}

/// Opens files and the others of their models, each the inode that is in use.
fn open(inodes: &Inodes, paths: &[&Path], layout: Layout) -> longshore_load::Result<Plan> {
    open_with(&|path| inodes.open(path), paths, layout)
}

/// Opens files and the others of their models by `by`, within the limits of a server.
pub(crate) fn open_with(
    by: &dyn Fn(&Path) -> longshore_load::Result<SourceFile>,
    paths: &[&Path],
    layout: Layout,
) -> longshore_load::Result<Plan> {
    let mut opened = longshore_load::open_by(paths, layout.format, &Bounded::new(by, layout))?;
    if let Some(alignment) = layout.align {
        if let Some(path) = paths.first().filter(|_| opened.tensors.is_empty()) {
            return Err(longshore_load::Error::NoTensors { path: path.to_path_buf() });
        }
        opened = opened.align(alignment)?;
    }
    Ok(opened.plan)
}

/// Opens the files of a model, and limits their number and the bytes that are read of their headers.
struct Bounded<'a> {
    by: &'a dyn Fn(&Path) -> longshore_load::Result<SourceFile>,
    layout: Layout,
    /// The bytes that were read of the index and the headers.
    read_bytes: Cell<u64>,
    header_bytes: Cell<u64>,
}

impl<'a> Bounded<'a> {
    fn new(by: &'a dyn Fn(&Path) -> longshore_load::Result<SourceFile>, layout: Layout) -> Self {
        Self { by, layout, read_bytes: Cell::default(), header_bytes: Cell::default() }
    }
}

impl Opener for Bounded<'_> {
    fn open(&self, path: &Path) -> longshore_load::Result<SourceFile> {
        (self.by)(path)
    }

    fn permit_header(&self, source: &SourceFile, len_bytes: u64) -> longshore_load::Result<()> {
        let add = |count: &Cell<u64>, what: &str, max_bytes: u64| {
            let sum_bytes = count.get().saturating_add(len_bytes);
            count.set(sum_bytes);
            if sum_bytes <= max_bytes {
                return Ok(());
            }
            let reason = format!(
                "{what} of the model have {} or more, and a server reads at most {}",
                ByteSize(sum_bytes),
                ByteSize(max_bytes)
            );
            let path = source.path().to_owned();
            Err(longshore_load::Error::Refused { path, source: reason.into() })
        };
        add(&self.read_bytes, "the index and the headers", HEADERS_BYTES_MAX)?;
        let is_index = longshore_load::is_index(source.path(), self.layout.format);
        if self.layout.align.is_none() || is_index {
            return Ok(());
        }
        let what = "the headers, whose tensors are to be aligned,";
        add(&self.header_bytes, what, ALIGNED_HEADERS_BYTES_MAX)
    }

    /// Called before the paths are made: 99,998 of 4 KiB, for a lookup of a file of 100 bytes, would
    /// take 400 MB.
    fn permit_files(&self, source: &SourceFile, count: u64) -> longshore_load::Result<()> {
        if count <= FILES_MAX {
            return Ok(());
        }
        let reason = format!("it stands for {count} files, and a server permits {FILES_MAX}");
        let path = source.path().to_owned();
        Err(longshore_load::Error::Refused { path, source: reason.into() })
    }
}

fn versions(plan: &Plan) -> Vec<(PathBuf, FileVersion)> {
    let sources = plan.files().iter().map(PlannedFile::source);
    sources.map(|source| (source.path().to_owned(), source.version())).collect()
}

impl Place {
    fn open(directory: &Path, only: Option<OsString>) -> io::Result<Self> {
        let path = fs::canonicalize(directory)?;
        let place = Self { directory: beneath::open_directory(&path)?, path, only };
        // Checks that the kernel supports the later calls.
        beneath::locate(&place.directory, Path::new("."), Reach::Beneath)?;
        if !beneath::can_open_located(&place.directory) {
            return Err(io::Error::other("/proc is not mounted, by which files are opened"));
        }
        Ok(place)
    }

    /// Finds a file without opening it.
    fn locate(&self, name: &Path) -> io::Result<OwnedFd> {
        let reach = if self.only.is_some() { Reach::Anywhere } else { Reach::Beneath };
        beneath::locate(&self.directory, name, reach)
    }
}

/// Returns `true` if two paths are the same bytes. Paths of requests have one spelling
/// (`components().collect()`), and the serving thread compares many of them: `Path` compares each
/// component, which takes 90 us for two paths of 4 KiB.
pub(crate) fn is_same_path(one: &Path, other: &Path) -> bool {
    one.as_os_str() == other.as_os_str()
}

/// Returns the directory of `path`.
pub(crate) fn parent(path: &Path) -> Option<&Path> {
    path.file_name().filter(|name| *name != OsStr::new(".."))?;
    path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

#[cfg(test)]
mod tests;
