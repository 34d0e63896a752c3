//! Copies of models of servers on this machine.

mod hub;
mod partial;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use longshore_mem::VolatileSliceMut;
use longshore_sys::directory;

use crate::atomic_file::check_room;
use crate::checksum::Hasher;
use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::find::{HubCache, HubName};
use crate::loader::Loaded;
use crate::object::Object;
use crate::plan::Plan;
use crate::progress::CancelToken;
use crate::publish::{RemoteFile, RemoteModel, has_weights};
use crate::source::SourceFile;
use hub::{add, blob_of};
use partial::{Partial, open_parent, write_error};

/// The number of bytes that are written at once.
const CHUNK_BYTES: usize = 8 << 20;

/// A copy of a model of servers in a new directory or in the cache of the Hugging Face Hub. Its files get their names
/// when all are complete.
#[derive(Debug)]
pub struct KeptCopy {
    partial: Partial,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Directory(PathBuf),
    Hub {
        cache: HubCache,
        /// The requested branch; `None` if a commit was requested.
        branch: Option<String>,
    },
}

impl KeptCopy {
    /// Begins a copy in a hidden directory beside `directory`, which must not exist.
    ///
    /// # Errors
    /// [`Error::Write`], also if the file system has too little room for the model.
    pub fn begin(directory: &Path, model: &RemoteModel) -> Result<Self> {
        let begin = || {
            let directory = std::path::absolute(directory)?;
            if fs::symlink_metadata(&directory).is_ok() {
                return Err(exists());
            }
            let (Some(parent), Some(_)) = (directory.parent(), directory.file_name()) else {
                let reason = "the path does not end with the name of a directory";
                return Err(io::Error::new(ErrorKind::InvalidInput, reason));
            };
            let partial = begin_in(parent, model)?;
            Ok(Self { partial, target: Target::Directory(directory) })
        };
        begin().map_err(write_error(directory))
    }

    /// Begins a copy of a repository in a cache of the Hugging Face Hub. If `name` has a branch, that is the
    /// branch of the commit from then on.
    ///
    /// # Errors
    /// As of [`KeptCopy::begin`].
    pub fn begin_in_hub(cache: HubCache, name: &HubName, model: &RemoteModel) -> Result<Self> {
        let partial = begin_in(cache.directory(), model).map_err(write_error(cache.directory()))?;
        let branch = name.revision.as_deref().unwrap_or("main");
        let branch = (!HubName::is_commit(branch)).then(|| branch.to_owned());
        Ok(Self { partial, target: Target::Hub { cache, branch } })
    }

    /// Writes all files of the model: those that `loaded` has out of its buffer, after they were verified, and the
    /// others from their servers. `plan` is that of the load, whose files must be those of the model, as they are.
    /// Then they get their names: a directory at once, files in the cache of the Hub one by one, with the index last.
    ///
    /// The cache of the Hub has files under their SHA-256 checksums, so those are compared.
    ///
    /// # Errors
    /// [`Error::Write`], also if weights of the model were not loaded, or in another version; [`Error::Mismatch`];
    /// [`Error::Changed`], [`Error::Read`] and [`Error::Cancelled`]. No part of a file has a name then.
    pub fn finish(
        self,
        model: &RemoteModel,
        plan: &Plan,
        loaded: &Loaded,
        cancel: &CancelToken,
    ) -> Result<()> {
        let Self { partial, target } = self;
        let bytes = loaded.buffer.read()?;
        let is_hub = matches!(target, Target::Hub { .. });
        for RemoteFile { path, source } in model.files() {
            let failed = write_error(source.path());
            let (folder, name) = open_parent(partial.folder(), Path::new(path)).map_err(&failed)?;
            let file = directory::create_file_in(&folder, name).map_err(&failed)?;
            let hasher = blob_of(source).filter(|_| is_hub);
            let hasher = hasher.map(|sum| (sum, Hasher::new(DigestKind::Sha256)));
            let mut copied = Copied { file, source, hasher, done_bytes: 0, cancel };
            let planned = plan.files().iter().find(|file| file.source().path() == source.path());
            let is_same = |other: &SourceFile| version(other) == version(source);
            match planned.filter(|planned| !planned.is_image() && is_same(planned.source())) {
                Some(planned) => {
                    let range = planned.buffer_range();
                    let content = &bytes[range.start as usize..range.end as usize];
                    content.chunks(CHUNK_BYTES).try_for_each(|chunk| copied.push(chunk))?;
                }
                None if planned.is_none() && !has_weights(Path::new(path)) => copied.receive()?,
                None => {
                    let reason = "the load did not read these weights, so they were not verified";
                    return Err(failed(io::Error::new(ErrorKind::InvalidInput, reason)));
                }
            }
            copied.finish()?;
        }
        match &target {
            Target::Directory(path) => {
                let name = Path::new(path.file_name().unwrap_or_default());
                let completed = partial.complete(name).map_err(|error| match error.kind() {
                    ErrorKind::AlreadyExists => exists(),
                    _ => error,
                });
                completed.map_err(write_error(path))
            }
            Target::Hub { cache, branch } => add(cache, branch.as_deref(), model, &partial),
        }
    }
}

fn exists() -> io::Error {
    let reason = "it exists; load it, or name a new directory for the copy";
    io::Error::new(ErrorKind::AlreadyExists, reason)
}

fn begin_in(parent: &Path, model: &RemoteModel) -> io::Result<Partial> {
    fs::create_dir_all(parent)?;
    let partial = Partial::create(directory::open_followed(parent)?)?;
    check_room(partial.folder(), parent, model.content_bytes())?;
    Ok(partial)
}

/// A file that is written.
struct Copied<'a> {
    file: File,
    source: &'a SourceFile,
    /// The checksum that the content must have.
    hasher: Option<(String, Hasher)>,
    done_bytes: u64,
    cancel: &'a CancelToken,
}

impl Copied<'_> {
    fn push(&mut self, chunk: &[u8]) -> Result<()> {
        if self.cancel.is_cancelled() {
            let (done_bytes, total_bytes) = (self.done_bytes, self.source.len());
            return Err(Error::Cancelled { done_bytes, total_bytes });
        }
        self.file.write_all(chunk).map_err(write_error(self.source.path()))?;
        if let Some((_, hasher)) = &mut self.hasher {
            hasher.update(chunk);
        }
        self.done_bytes += chunk.len() as u64;
        Ok(())
    }

    /// Copies a file that was not loaded.
    fn receive(&mut self) -> Result<()> {
        let source = self.source;
        let Some(object) = source.object() else {
            let path = source.path();
            let opened = File::open(path).and_then(|mut file| io::copy(&mut file, &mut self.file));
            return opened.map(drop).map_err(write_error(path));
        };
        let mut memory = vec![0; CHUNK_BYTES.min(source.len() as usize)];
        while self.done_bytes < source.len() {
            let at = self.done_bytes;
            let wanted = (source.len() - at).min(CHUNK_BYTES as u64) as usize;
            let place = &mut memory[..wanted];
            let stop = || self.cancel.is_cancelled();
            let read = object.read(&mut VolatileSliceMut::from(&mut *place), at, &stop);
            let range = at..at + wanted as u64;
            read.map_err(|error| Error::of_object(source.path(), range, at, error))?;
            self.push(&memory[..wanted])?;
        }
        Ok(())
    }

    /// Compares the checksum, and writes the file to the disk.
    fn finish(self) -> Result<()> {
        let path = self.source.path();
        if let Some((expected, hasher)) = self.hasher {
            let (kind, found) = (DigestKind::Sha256, hasher.finish());
            if found != expected {
                return Err(Error::Mismatch { path: path.to_owned(), kind, expected, found });
            }
        }
        self.file.sync_all().map_err(write_error(path))
    }
}

/// Returns the length of a file, and the version that its server sends.
fn version(source: &SourceFile) -> (u64, Option<&str>) {
    (source.len(), source.object().and_then(Object::version))
}
