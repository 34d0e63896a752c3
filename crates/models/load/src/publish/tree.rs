//! The files of a model that is published: a directory, or a file with those that belong to it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use longshore_sys::beneath::{self, Reach};
use longshore_sys::directory::{self, Access, EntryKind};
use longshore_sys::effective_uid;
use longshore_sys::file::{self, Kind};

use super::problem::PublishProblem;
use super::record::{self, DEPTH_MAX, ENTRIES_MAX, FileRecord, Record};
use crate::error::{Error, Result};
use crate::find::locate_without_links;
use crate::open::{FormatChoice, others_of};
use crate::reason::{Change, FileKind};
use crate::source::SourceFile;
use crate::version::FileVersion;

/// The directory of the files of all revisions of a repository in the cache of the Hugging Face Hub.
const BLOBS: &str = "blobs";

/// The limit on the symbolic links that lead to the files of one model together. In the cache of the Hugging Face
/// Hub, one leads to each file.
const LINKS_MAX: u32 = 20_000;

/// The symbolic links in the path of a source that are followed. Those in a model are another matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Followed,
    /// A link is an error.
    Refused,
}

/// The files and directories of a model, at one time.
#[derive(Debug)]
pub(crate) struct Tree {
    source: PathBuf,
    links: Links,
    /// The directory that has all files and directories.
    root: PathBuf,
    /// The directory that no symbolic link may leave: the root, or the directory of a model in the
    /// cache of the Hugging Face Hub, whose `snapshots/REVISION` has links to `blobs`.
    boundary: OwnedFd,
    /// The path of the root in the boundary.
    prefix: PathBuf,
    /// The file that was named, if it is not a directory.
    pub(crate) main: Option<PathBuf>,
    /// The paths of the directories in the root, each after the one that contains it.
    pub(crate) folders: Vec<PathBuf>,
    /// The files in the root, sorted by path.
    pub(crate) files: Vec<TreeFile>,
    /// The number of symbolic links that lead to the files.
    links_count: u32,
    /// The permissions of the directories above the root, without the times of their changes, which are
    /// those of other files, too.
    above: Vec<Access>,
    /// The permissions of the root and of all in it.
    access: Vec<Access>,
}

/// A file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeFile {
    /// The path in the root.
    pub(crate) path: String,
    pub(crate) version: FileVersion,
    /// The number of symbolic links that lead to it.
    links: u32,
}

impl Tree {
    /// Finds the files of the model at `source`, which is a path, or a name of the Hugging Face Hub if
    /// links are followed.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotRegular`], [`Error::Publish`], and those of [`others_of`] and [`locate`](crate::locate).
    pub(crate) fn of(source: &Path, links: Links) -> Result<Self> {
        let located;
        let (source, is_plain) = match links {
            Links::Followed => {
                located = locate_without_links(source)?;
                (located.0.as_path(), located.1)
            }
            Links::Refused => (source, true),
        };
        let failed = |error| Error::Open { path: source.to_owned(), source: error };
        let kind = file::kind_at_source(source, links == Links::Refused).map_err(|error| {
            match beneath::is_loop(&error) {
                true => publish_error(source, PublishProblem::Link),
                false => failed(error),
            }
        })?;
        // Only the names in a model may not be links; the model itself may be named by one.
        let real = if is_plain {
            without_dots(&std::path::absolute(source).map_err(failed)?)
        } else if kind == Kind::Directory {
            source.canonicalize().map_err(failed)?
        } else {
            let parent = source.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new(".")).canonicalize().map_err(failed)?;
            parent.join(source.file_name().unwrap_or_default())
        };
        let root = match kind {
            Kind::Directory => real.as_path(),
            Kind::Regular => real.parent().unwrap_or(Path::new("/")),
            kind => {
                let kind = FileKind::from_kind(kind);
                return Err(Error::NotRegular { path: source.to_owned(), kind });
            }
        };
        let (boundary, prefix) = boundary_of(root);
        // Without links, because a user may have renamed a directory meanwhile.
        let opened = directory::open_path(boundary).map_err(|error| {
            match beneath::is_loop(&error) && is_plain {
                true => publish_error(source, PublishProblem::Link),
                false => failed(error),
            }
        })?;
        let mut tree = Self {
            source: source.to_owned(),
            links,
            root: root.to_owned(),
            boundary: opened,
            prefix: prefix.to_owned(),
            main: None,
            folders: Vec::new(),
            files: Vec::new(),
            links_count: 0,
            above: Vec::new(),
            access: Vec::new(),
        };
        let folder = tree.open_folder(Path::new(""))?;
        tree.note_access_above(&folder).map_err(failed)?;
        if kind == Kind::Directory {
            tree.walk(folder.as_fd(), Path::new(""), 0)?;
        } else {
            tree.main = Some(real.file_name().unwrap_or_default().into());
            tree.push(Path::new(real.file_name().unwrap_or_default()))?;
            // Not by the path: its owner may have put a link to a device there meanwhile.
            let by = |path: &Path| tree.open_by_path(path);
            for other in others_of(&real, FormatChoice::Auto, &by)? {
                let path = other
                    .strip_prefix(root)
                    .map_err(|_| publish_error(&other, PublishProblem::LeavesModel))?;
                if path.parent() != Some(Path::new("")) {
                    return Err(publish_error(&other, PublishProblem::LeavesModel));
                }
                // The others have different names.
                if Some(path) != tree.main.as_deref() {
                    tree.push(path)?;
                }
            }
        }
        if tree.files.is_empty() {
            return Err(publish_error(source, PublishProblem::Empty));
        }
        tree.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(tree)
    }

    /// Checks, if this process is root, that all files and directories belong to root and one other user. If
    /// there were several, one could prevent that the permissions of a file of another are followed.
    ///
    /// # Errors
    /// [`Error::Publish`] with [`PublishProblem::SeveralOwners`].
    pub(crate) fn check_owners(&self) -> Result<()> {
        let owners = self.access.iter().map(|it| it.attributes.owner);
        let mut owners = owners.filter(|owner| *owner != 0);
        match (effective_uid(), owners.next()) {
            (0, Some(one)) => match owners.find(|other| *other != one) {
                Some(other) => {
                    let reason = PublishProblem::SeveralOwners { one, other };
                    Err(publish_error(&self.source, reason))
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Notes the permissions of the root, of the directories above it, and of the one that has the files to
    /// which the links in a cache lead.
    fn note_access_above(&mut self, root: &OwnedFd) -> io::Result<()> {
        let above = directory::above(root)?.into_iter();
        self.above = above.map(|it| Access { changed: (0, 0), ..it }).collect();
        self.access.push(directory::access(root)?);
        if self.is_in_repository() {
            let blobs = beneath::locate(&self.boundary, Path::new(BLOBS), Reach::Beneath)?;
            self.access.push(directory::access(&blobs)?);
        }
        Ok(())
    }

    fn walk(&mut self, folder: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<()> {
        let here = self.root.join(path);
        let failed = |path: &Path, source| Error::Open { path: path.to_owned(), source };
        if depth > DEPTH_MAX {
            return Err(publish_error(&here, PublishProblem::TooDeep { max: DEPTH_MAX }));
        }
        // One more than permitted shows that there are too many.
        let mut entries = directory::entries_up_to(folder, ENTRIES_MAX + 3)
            .map_err(|error| failed(&here, error))?;
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (name, kind) in entries {
            let entry = path.join(&name);
            if is_reserved(&entry) {
                // The source is itself a published model.
                continue;
            }
            if kind != EntryKind::Directory {
                self.push(&entry)?;
                continue;
            }
            self.permit_one_more()?;
            let inner = directory::open_in(folder, Path::new(&name)).map_err(|error| {
                match beneath::leads_out(&error) {
                    true => publish_error(&self.root.join(&entry), PublishProblem::NotADirectory),
                    false => failed(&self.root.join(&entry), error),
                }
            })?;
            let access = noted_access(&inner);
            self.access.push(access.map_err(|error| failed(&self.root.join(&entry), error))?);
            self.folders.push(entry.clone());
            self.walk(inner.as_fd(), &entry, depth + 1)?;
        }
        Ok(())
    }

    fn permit_one_more(&self) -> Result<()> {
        if self.files.len() + self.folders.len() < ENTRIES_MAX {
            return Ok(());
        }
        Err(publish_error(&self.source, PublishProblem::TooMany { max: ENTRIES_MAX }))
    }

    fn push(&mut self, path: &Path) -> Result<()> {
        self.permit_one_more()?;
        let full = self.root.join(path);
        if is_reserved(path) {
            return Err(publish_error(&full, PublishProblem::ReservedName));
        }
        let text = path.to_str().ok_or_else(|| publish_error(&full, PublishProblem::NotUtf8))?;
        let (located, links) = self.locate(path, beneath::LINKS_MAX)?;
        self.links_count += links;
        if self.links_count > LINKS_MAX {
            let reason = PublishProblem::TooManyLinks { max: LINKS_MAX };
            return Err(publish_error(&self.source, reason));
        }
        let failed = |source| Error::Open { path: full.clone(), source };
        let status = file::status(&located).map_err(failed)?;
        let access = noted_access(&located);
        match status.kind {
            Kind::Regular => {}
            Kind::Directory => return Err(publish_error(&full, PublishProblem::NotADirectory)),
            kind => return Err(Error::NotRegular { path: full, kind: FileKind::from_kind(kind) }),
        }
        let version = FileVersion::from_status(&status);
        self.files.push(TreeFile { path: text.to_owned(), version, links });
        self.access.push(access.map_err(|source| Error::Open { path: full, source })?);
        Ok(())
    }

    /// Finds the file that has the path of this one in the root now, without opening it. Links that were added
    /// meanwhile are not followed, because that could take long.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Publish`].
    pub(crate) fn find_now(&self, file: &TreeFile) -> Result<OwnedFd> {
        self.locate(Path::new(&file.path), file.links).map(|(located, _)| located)
    }

    /// Finds the file that has this path in the root now, and returns it with the number of symbolic links that
    /// lead to it.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Publish`].
    fn locate(&self, path: &Path, links_max: u32) -> Result<(OwnedFd, u32)> {
        let full = || self.root.join(path);
        let name = self.prefix.join(path);
        let counted = beneath::locate_counted(&self.boundary, &name, links_max);
        let (located, links) = counted.map_err(|source| match beneath::leads_out(&source) {
            true => publish_error(&full(), PublishProblem::LeavesModel),
            false => Error::Open { path: full(), source },
        })?;
        if self.is_in_repository() && !self.is_in_cache(&located).unwrap_or(false) {
            return Err(publish_error(&full(), PublishProblem::LeavesModel));
        }
        Ok((located, links))
    }

    /// Returns `true` if a file is in the root, or one of the files of a cache.
    fn is_in_cache(&self, located: &OwnedFd) -> io::Result<bool> {
        let path = beneath::path_of(located)?;
        let of = |folder: &Path| beneath::path_of(directory::find_in(&self.boundary, folder)?);
        Ok(path.starts_with(of(&self.prefix)?) || path.parent() == Some(&*of(Path::new(BLOBS))?))
    }

    /// Opens a file of the model for reading.
    ///
    /// # Errors
    /// [`Error::Changed`] if it is another file or another version by now; those of [`SourceFile`].
    pub(crate) fn open(&self, file: &TreeFile) -> Result<SourceFile> {
        let full = self.root.join(&file.path);
        let opened = beneath::open_located(self.find(file)?)
            .map_err(|source| Error::Open { path: full.clone(), source })?;
        Ok(SourceFile::from_fd(opened)?.named(&full))
    }

    /// Opens the regular file that has this path in the root now.
    fn open_by_path(&self, path: &Path) -> Result<SourceFile> {
        let name = path
            .strip_prefix(&self.root)
            .map_err(|_| publish_error(path, PublishProblem::LeavesModel))?;
        let (located, _) = self.locate(name, beneath::LINKS_MAX)?;
        let opened = beneath::open_located(located).map_err(open_error(path))?;
        Ok(SourceFile::from_fd(opened)?.named(path))
    }

    /// Finds a file of the model without opening it.
    ///
    /// # Errors
    /// [`Error::Changed`] if it is another file or another version by now; [`Error::Open`],
    /// [`Error::Publish`].
    pub(crate) fn find(&self, file: &TreeFile) -> Result<OwnedFd> {
        let path = self.root.join(&file.path);
        let located = self.find_now(file)?;
        match file::status(&located) {
            Ok(status) if FileVersion::from_status(&status) == file.version => Ok(located),
            Ok(_) => Err(Error::Changed { path, change: Change::Replaced }),
            Err(source) => Err(Error::Open { path, source }),
        }
    }

    /// Opens a directory of the model; the empty path is the root.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub(crate) fn open_folder(&self, path: &Path) -> Result<OwnedFd> {
        let name = self.prefix.join(path);
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { &name };
        directory::open_in(&self.boundary, name)
            .map_err(|source| Error::Open { path: self.root.join(path), source })
    }

    /// Checks that the model has the same files in the same versions.
    ///
    /// # Errors
    /// [`Error::Changed`] with the first difference; those of [`Tree::of`].
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let now = Self::of(&self.source, self.links)?;
        let changed =
            |path: &str| Error::Changed { path: self.root.join(path), change: Change::Replaced };
        for (before, now) in self.files.iter().zip(&now.files) {
            if before != now {
                return Err(changed(&before.path));
            }
        }
        if self.is_same(&now) { Ok(()) } else { Err(changed("")) }
    }

    /// Returns `true` if both have the same files in the same versions, with the same permissions.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.root, &self.main, &self.folders, &self.files)
            == (&other.root, &other.main, &other.folders, &other.files)
            && (&self.above, &self.access) == (&other.above, &other.access)
    }

    /// Returns the name under which the model is published if no other name is requested.
    pub(crate) fn default_name(&self) -> String {
        match &self.main {
            Some(main) => name_of_file(main),
            None if self.is_in_repository() => name_of_repository(&self.root),
            None => name_of_folder(&self.root),
        }
    }

    /// Returns `true` if the record is of a model that was published from here, or from another revision of the
    /// same repository.
    pub(crate) fn is_source_of(&self, record: &Record) -> bool {
        // The record has text.
        let (source, root) = (record.source(), self.root.to_string_lossy());
        let root = Path::new(&*root);
        source == root || self.is_in_repository() && source.parent() == root.parent()
    }

    /// Returns `true` if the root is a revision in the cache of the Hugging Face Hub.
    fn is_in_repository(&self) -> bool {
        !self.prefix.as_os_str().is_empty()
    }

    /// Returns the directory that has all files.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the number of bytes of all files.
    pub(crate) fn content_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.version.len_bytes).fold(0, u64::saturating_add)
    }

    /// Returns the records of all files, without checksums.
    pub(crate) fn records(&self) -> Vec<FileRecord> {
        self.files.iter().map(|file| FileRecord::new(&file.path, &file.version)).collect()
    }
}

/// Returns the permissions of a file or directory. A program that writes to a file all the time changes its
/// status all the time, so they may be those of different times; then there may be a list.
fn noted_access(file: &OwnedFd) -> io::Result<Access> {
    match directory::access(file) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let attributes = directory::attributes(file)?;
            Ok(Access { attributes, changed: (0, 0), has_list: true })
        }
        found => found,
    }
}

/// Returns the name of a model in one file, or in several of which this is the one that is named.
pub(crate) fn name_of_file(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = [".safetensors.index.json", ".safetensors", ".gguf"]
        .into_iter()
        .find_map(|ending| name.strip_suffix(ending))
        .unwrap_or(&name);
    // `-00001-of-00003` is not a part of the name.
    match stem.len().checked_sub(15).and_then(|at| stem.split_at_checked(at)) {
        Some((name, split)) if !name.is_empty() && is_split(split) => name.to_owned(),
        _ => stem.to_owned(),
    }
}

/// Returns the name of a model in a directory.
pub(crate) fn name_of_folder(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("models--").unwrap_or(&name).to_owned()
}

/// Returns the name of a model in the cache of the Hugging Face Hub, for its `snapshots/REVISION`.
pub(crate) fn name_of_repository(revision: &Path) -> String {
    name_of_folder(revision.ancestors().nth(2).unwrap_or(Path::new("")))
}

/// Resolves `..` in an absolute path in which no component is a symbolic link.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            component => plain.push(component),
        }
    }
    plain
}

/// Returns `true` if a published model has a file of its own with this path.
pub(crate) fn is_reserved(path: &Path) -> bool {
    [record::NAME, record::PIN_NAME].map(Path::new).contains(&path)
}

fn is_split(text: &str) -> bool {
    let digits =
        |range| text.get(range).is_some_and(|it: &str| it.bytes().all(|it| it.is_ascii_digit()));
    text.starts_with('-') && digits(1..6) && text.get(6..10) == Some("-of-") && digits(10..15)
}

/// Returns the directory that no symbolic link may leave, and the path of the root in it.
fn boundary_of(root: &Path) -> (&Path, &Path) {
    let snapshots = root.parent().filter(|it| it.file_name() == Some(OsStr::new("snapshots")));
    // Without links: one could lead to a file system whose server does not answer.
    let has_blobs = |it: &&Path| directory::open_path(&it.join(BLOBS)).is_ok();
    let repository = snapshots.and_then(Path::parent).filter(has_blobs);
    match repository.and_then(|it| Some((it, root.strip_prefix(it).ok()?))) {
        Some(found) => found,
        None => (root, Path::new("")),
    }
}

pub(crate) fn publish_error(path: &Path, reason: PublishProblem) -> Error {
    Error::Publish { path: path.to_owned(), reason }
}

/// Makes the error of a file or directory of the source.
pub(crate) fn open_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Open { path, source }
}

/// Makes the error of a file or directory of the target.
pub(crate) fn write_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Write { path, source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_record_is_of_a_source_with_any_name() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join(OsStr::from_bytes(b"d\xff/m"));
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join("file"), b"x").unwrap();
        let tree = Tree::of(&source, Links::Followed).unwrap();
        assert!(tree.is_source_of(&Record::new(&source, None, Vec::new())));
        let dotted = Tree::of(&source.join("../m"), Links::Refused).unwrap();
        assert_eq!(dotted.root, tree.root);
        assert!(!tree.is_source_of(&Record::new(dir.path(), None, Vec::new())));
    }

    #[test]
    fn links_that_were_added_meanwhile_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), b"x").unwrap();
        symlink("file", path("link")).unwrap();
        let tree = Tree::of(dir.path(), Links::Followed).unwrap();
        let [file, link] = &tree.files[..] else { panic!("{tree:?}") };
        assert_eq!((file.links, link.links), (0, 1));
        tree.find(link).unwrap();
        fs::rename(path("file"), path("moved")).unwrap();
        symlink("moved", path("file")).unwrap();
        assert!(tree.find(file).is_err() && tree.find(link).is_err());
    }
}
