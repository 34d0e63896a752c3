//! Copies of models of servers on this machine.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use longshore_mem::VolatileSliceMut;
use tempfile::TempDir;

use crate::atomic_file::AtomicFile;
use crate::error::{Error, Result};
use crate::find::{HubCache, HubName};
use crate::loader::Loaded;
use crate::object::Object;
use crate::open::{FormatChoice, is_index};
use crate::plan::Plan;
use crate::progress::CancelToken;
use crate::publish::{RemoteFile, RemoteModel, has_weights};
use crate::source::SourceFile;

/// The number of bytes that are written at once.
const CHUNK_BYTES: usize = 8 << 20;

/// A copy of a model of servers in a directory or in the cache of the Hugging Face Hub. Its files get their names
/// when all are complete.
#[derive(Debug)]
pub struct KeptCopy {
    partial: TempDir,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Directory(PathBuf),
    /// The directory of the cache, and the requested revision.
    Hub {
        cache: HubCache,
        revision: Option<String>,
    },
}

impl KeptCopy {
    /// Begins a copy in a new directory beside `directory`, which must be missing or empty.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn begin(directory: &Path) -> Result<Self> {
        let failed = write_error(directory);
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
        let directory = match fs::canonicalize(directory) {
            Ok(found) => {
                if fs::read_dir(&found).map_err(&failed)?.next().is_some() {
                    let reason = "the directory is not empty; name a new one, or remove it first";
                    return Err(failed(io::Error::new(ErrorKind::DirectoryNotEmpty, reason)));
                }
                let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
                if device(&found).map_err(&failed)? != device(&parent(&found)).map_err(&failed)? {
                    let reason = "another file system is mounted there; name a new directory in it";
                    return Err(failed(io::Error::new(ErrorKind::CrossesDevices, reason)));
                }
                found
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                std::path::absolute(directory).map_err(&failed)?
            }
            Err(error) => return Err(failed(error)),
        };
        let parent = parent(&directory);
        fs::create_dir_all(&parent).map_err(&failed)?;
        let partial = partial_in(&parent).map_err(failed)?;
        Ok(Self { partial, target: Target::Directory(directory) })
    }

    /// Begins a copy of a repository in a cache of the Hugging Face Hub. If `name` has a branch, that is the
    /// branch of the commit from then on.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn begin_in_hub(cache: HubCache, name: &HubName) -> Result<Self> {
        let failed = write_error(cache.directory());
        fs::create_dir_all(cache.directory()).map_err(&failed)?;
        let partial = partial_in(cache.directory()).map_err(failed)?;
        let branch = name.revision.as_deref().unwrap_or("main");
        let revision = (!HubName::is_commit(branch)).then(|| branch.to_owned());
        Ok(Self { partial, target: Target::Hub { cache, revision } })
    }

    /// Returns `true` for a copy in a cache of the Hub. Load with [`Manifest::of_hub`](crate::Manifest::of_hub) for
    /// it, because the names of its files are their checksums.
    pub fn is_in_hub(&self) -> bool {
        matches!(self.target, Target::Hub { .. })
    }

    /// Writes all files of the model: those that `loaded` has out of its buffer, after they were verified, and the
    /// others from their servers. `plan` is that of the load, whose files must be those of the model, as they are.
    /// Then they get their names: a directory at once, files in the cache of the Hub one by one, with the index last.
    ///
    /// # Errors
    /// [`Error::Write`], also if weights of the model were not loaded, or in another version; [`Error::Changed`],
    /// [`Error::Read`] and [`Error::Cancelled`]. No part of a file has a name then.
    pub fn finish(
        self,
        model: &RemoteModel,
        plan: &Plan,
        loaded: &Loaded,
        cancel: &CancelToken,
    ) -> Result<()> {
        let Self { partial, target } = self;
        // The temporary directory is closed to other users.
        let folder = partial.path().join("model");
        fs::create_dir(&folder).map_err(write_error(&folder))?;
        write(&folder, model, plan, loaded, cancel)?;
        match &target {
            Target::Directory(directory) => {
                fs::rename(&folder, directory).map_err(write_error(directory))?;
                sync(directory);
                Ok(())
            }
            Target::Hub { cache, revision } => {
                add_to_hub(cache, revision.as_deref(), model, &folder)
            }
        }
    }
}

fn partial_in(parent: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(".longshore.").suffix(".partial").tempdir_in(parent)
}

/// Writes all files of a model into a directory.
fn write(
    folder: &Path,
    model: &RemoteModel,
    plan: &Plan,
    loaded: &Loaded,
    cancel: &CancelToken,
) -> Result<()> {
    let bytes = loaded.buffer.read()?;
    let mut done_bytes = 0;
    for RemoteFile { path, source } in model.files() {
        let target = folder.join(path);
        let failed = write_error(&target);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(write_error(folder))?;
        }
        let mut file = AtomicFile::create(&target).map_err(&failed)?;
        file.check_room(source.len()).map_err(&failed)?;
        let planned = plan.files().iter().find(|file| file.source().path() == source.path());
        let is_same = |other: &SourceFile| version(other) == version(source);
        match planned.filter(|planned| !planned.is_image() && is_same(planned.source())) {
            Some(planned) => {
                let range = planned.buffer_range();
                let content = &bytes[range.start as usize..range.end as usize];
                for chunk in content.chunks(CHUNK_BYTES) {
                    check(cancel, done_bytes, plan)?;
                    file.file().write_all(chunk).map_err(&failed)?;
                }
            }
            None if planned.is_none() && !has_weights(Path::new(path)) => {
                copy(source, file.file(), cancel).map_err(|error| match error {
                    Error::Write { source, .. } => failed(source),
                    error => error,
                })?;
            }
            None => {
                let reason = "the load did not read these weights, so they were not verified";
                return Err(failed(io::Error::new(ErrorKind::InvalidInput, reason)));
            }
        }
        done_bytes += source.len();
        file.commit().map_err(failed)?;
    }
    Ok(())
}

/// Moves the files of a model into a cache of the Hub.
fn add_to_hub(
    cache: &HubCache,
    revision: Option<&str>,
    model: &RemoteModel,
    folder: &Path,
) -> Result<()> {
    let is_last = |file: &&RemoteFile| is_index(Path::new(&file.path), FormatChoice::Auto);
    let (last, first): (Vec<_>, Vec<_>) = model.files().iter().partition(is_last);
    let mut of_commit = None;
    for RemoteFile { path, source } in first.into_iter().chain(last) {
        let failed = write_error(source.path());
        let Ok(Some(HubName {
            kind, repository, revision: Some(commit), file: Some(file), ..
        })) = HubName::from_path(source.path())
        else {
            let reason = "only files of the Hub can be in its cache; name a directory";
            return Err(failed(io::Error::new(ErrorKind::InvalidInput, reason)));
        };
        let repository = cache.repository(kind, &repository);
        let name = repository.join("snapshots").join(&commit).join(&file);
        let written = folder.join(path);
        let parent = name.parent().unwrap_or(&repository);
        fs::create_dir_all(parent).map_err(write_error(parent))?;
        match blob(source) {
            Some(blob) => {
                let blobs = repository.join("blobs");
                fs::create_dir_all(&blobs).map_err(write_error(&blobs))?;
                fs::rename(&written, blobs.join(&blob)).map_err(write_error(&blobs))?;
                // From the folder of the file up to that of the repository.
                let up = "../".repeat(2 + file.matches('/').count());
                let link = |path: &Path| symlink(format!("{up}blobs/{blob}"), path);
                let _ = fs::remove_file(&written);
                link(&written).and_then(|()| fs::rename(&written, &name))
            }
            None => fs::rename(&written, &name),
        }
        .map_err(write_error(&name))?;
        sync(&name);
        of_commit = Some((repository, commit));
    }
    if let (Some(revision), Some((repository, commit))) = (revision, of_commit) {
        let name = repository.join("refs").join(revision);
        let parent = name.parent().unwrap_or(&repository);
        fs::create_dir_all(parent).map_err(write_error(parent))?;
        let write = || {
            let mut file = AtomicFile::create(&name)?;
            file.file().write_all(commit.as_bytes())?;
            file.commit()
        };
        write().map_err(write_error(&name))?;
    }
    Ok(())
}

/// Returns the name of the content of a file in a cache of the Hub: its checksum, SHA-256 or that of Git.
fn blob(source: &SourceFile) -> Option<String> {
    let object = source.object()?;
    let name = object.sha256().or_else(|| object.version())?.trim_matches('"');
    let is_checksum =
        matches!(name.len(), 40 | 64) && name.bytes().all(|it| it.is_ascii_hexdigit());
    is_checksum.then(|| name.to_owned())
}

/// Writes the entry of a path in its directory to the disk, where the file system can.
fn sync(path: &Path) {
    let parent = path.parent().map(fs::File::open);
    let _ = parent.map(|parent| parent.and_then(|parent| parent.sync_all()));
}

fn write_error(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Write { path: path.to_owned(), source }
}

/// Returns the length of a file, and the version that its server sends.
fn version(source: &SourceFile) -> (u64, Option<&str>) {
    (source.len(), source.object().and_then(Object::version))
}

/// Copies a file that was not loaded.
fn copy(source: &SourceFile, target: &mut fs::File, cancel: &CancelToken) -> Result<()> {
    let unwritten = write_error(source.path());
    let Some(object) = source.object() else {
        let path = source.path();
        let mut file = fs::File::open(path)
            .map_err(|error| Error::Open { path: path.to_owned(), source: error })?;
        return io::copy(&mut file, target).map(drop).map_err(unwritten);
    };
    let mut memory = vec![0; CHUNK_BYTES.min(source.len() as usize)];
    let mut at = 0;
    while at < source.len() {
        let wanted = (source.len() - at).min(CHUNK_BYTES as u64) as usize;
        let place = &mut memory[..wanted];
        let read =
            object.read(&mut VolatileSliceMut::from(&mut *place), at, &|| cancel.is_cancelled());
        let end = at + wanted as u64;
        read.map_err(|error| Error::of_object(source.path(), at..end, at, error))?;
        target.write_all(place).map_err(&unwritten)?;
        at = end;
    }
    Ok(())
}

fn check(cancel: &CancelToken, done_bytes: u64, plan: &Plan) -> Result<()> {
    match cancel.is_cancelled() {
        true => Err(Error::Cancelled { done_bytes, total_bytes: plan.content_bytes() }),
        false => Ok(()),
    }
}
