//! Copies of models of servers on this machine.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::path::Path;

use longshore_mem::VolatileSliceMut;

use crate::atomic_file::AtomicFile;
use crate::error::{Error, Result};
use crate::loader::Loaded;
use crate::object::Object;
use crate::open::{FormatChoice, is_index};
use crate::plan::Plan;
use crate::progress::CancelToken;
use crate::publish::{RemoteFile, RemoteModel};
use crate::reason::Change;
use crate::source::SourceFile;

/// The number of bytes that are written at once.
const CHUNK_BYTES: usize = 8 << 20;

/// Writes all files of a model of servers into a directory, which is made if it is missing: those that `loaded` has
/// out of its buffer, after they were verified, and the others from their servers. `plan` is that of the load,
/// and has the files as they are.
///
/// Each file gets its name when it is complete and on the disk, and replaces an existing one. An index comes last,
/// so that an incomplete copy is no model.
///
/// # Errors
/// [`Error::Write`]; [`Error::Changed`] if a file of the model is another version than the loaded one;
/// [`Error::Read`] and [`Error::Cancelled`]. Files that are complete by then stay.
pub fn keep_copy(
    model: &RemoteModel,
    plan: &Plan,
    loaded: &Loaded,
    directory: &Path,
    cancel: &CancelToken,
) -> Result<()> {
    let failed = |path: &Path, source| Error::Write { path: path.to_owned(), source };
    let bytes = loaded.buffer.read()?;
    DirBuilder::new()
        .recursive(true)
        .create(directory)
        .map_err(|error| failed(directory, error))?;
    let is_index = |file: &&RemoteFile| is_index(Path::new(&file.path), FormatChoice::Auto);
    let (last, first): (Vec<_>, Vec<_>) = model.files().iter().partition(is_index);
    let mut done_bytes = 0;
    for RemoteFile { path, source } in first.into_iter().chain(last) {
        let target = directory.join(path);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        }
        let mut beside = AtomicFile::create(&target).map_err(|error| failed(&target, error))?;
        beside.check_room(source.len()).map_err(|error| failed(&target, error))?;
        let planned = plan.files().iter().find(|file| file.source().path() == source.path());
        match planned {
            Some(planned) => {
                if planned.is_image() || version(planned.source()) != version(source) {
                    let path = source.path().to_owned();
                    return Err(Error::Changed { path, change: Change::Replaced });
                }
                let range = planned.buffer_range();
                for chunk in bytes[range.start as usize..range.end as usize].chunks(CHUNK_BYTES) {
                    check(cancel, done_bytes, plan)?;
                    beside.file().write_all(chunk).map_err(|error| failed(&target, error))?;
                }
            }
            None => copy(source, beside.file(), cancel).map_err(|error| match error {
                Error::Write { source, .. } => failed(&target, source),
                error => error,
            })?,
        }
        done_bytes += source.len();
        beside.commit().map_err(|error| failed(&target, error))?;
    }
    Ok(())
}

/// Returns the length of a file, and the version that its server sends.
fn version(source: &SourceFile) -> (u64, Option<&str>) {
    (source.len(), source.object().and_then(Object::version))
}

fn check(cancel: &CancelToken, done_bytes: u64, plan: &Plan) -> Result<()> {
    match cancel.is_cancelled() {
        true => Err(Error::Cancelled { done_bytes, total_bytes: plan.content_bytes() }),
        false => Ok(()),
    }
}

/// Copies a file that was not loaded.
fn copy(source: &SourceFile, target: &mut fs::File, cancel: &CancelToken) -> Result<()> {
    let unwritten = |error| Error::Write { path: source.path().to_owned(), source: error };
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
        target.write_all(place).map_err(unwritten)?;
        at = end;
    }
    Ok(())
}
