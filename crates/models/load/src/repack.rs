//! Writing files whose tensors are aligned to start with.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use longshore_mem::FileOffset;
use longshore_sys::file::{self, ReadFlags};
use longshore_sys::page_cache;

use crate::atomic_file::AtomicFile;
use crate::error::{Error, Result};
use crate::plan::PlannedFile;
use crate::progress::{CancelToken, Progress};

/// Copied at once.
const CHUNK_BYTES: usize = 4 << 20;

/// Writes what takes the place of `file` in a buffer into a file of its own: of a plan that was
/// aligned ([`crate::Opened::align`]) one whose tensors are.
///
/// It has its name only when it is complete and on the disk, and no more than 8 MiB of memory are
/// taken. Neither file stays in the page cache on account of it. It has the permission bits of
/// `file`.
///
/// # Errors
/// [`Error::Write`], also where there is no room for it, which is looked at first;
/// [`Error::Read`], [`Error::Truncated`] and [`Error::Changed`] where the file did
/// not stay what it was, [`Error::Cancelled`]; nothing is left then, and what had the name before
/// still has it, but where only the folder could not be written out in the end.
pub fn repack(
    file: &PlannedFile,
    target: &Path,
    cancel: &CancelToken,
    mut observe: impl FnMut(Progress),
) -> Result<()> {
    let failed = |source| Error::Write { path: target.to_owned(), source };
    let began = Instant::now();
    let buffer_range = file.buffer_range();
    let total_bytes = buffer_range.end - buffer_range.start;
    let mut beside = AtomicFile::create(target).map_err(failed)?;
    beside.check_room(total_bytes).map_err(failed)?;
    let owned = file.source().buffered().try_clone_to_owned();
    let owned =
        owned.map_err(|source| Error::Open { path: file.source().path().into(), source })?;
    beside.permit_as(&File::from(owned)).map_err(failed)?;
    let mut parts: Vec<_> = file.parts().iter().collect();
    parts.sort_unstable_by_key(|part| part.buffer_offset);

    let mut memory = vec![0; CHUNK_BYTES];
    beside.file().write_all(file.head()).map_err(failed)?;
    let mut done_bytes = file.head().len() as u64;
    for part in parts {
        let start = part.buffer_offset - buffer_range.start;
        write_zeros(beside.file(), start - done_bytes).map_err(failed)?;
        done_bytes = start;
        let end = part.file_offset + part.len_bytes;
        let mut at = part.file_offset;
        while at < end {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled { done_bytes, total_bytes });
            }
            let wanted = (end - at).min(CHUNK_BYTES as u64) as usize;
            let read = read_some(file, &mut memory[..wanted], at, done_bytes)?;
            beside.file().write_all(&memory[..read]).map_err(failed)?;
            at += read as u64;
            done_bytes += read as u64;
            observe(Progress::new(done_bytes, total_bytes, began.elapsed()));
        }
    }
    write_zeros(beside.file(), total_bytes - done_bytes).map_err(failed)?;
    file.source().check_unchanged()?;
    // Advice: where it is not taken, only the page cache is fuller. Writes out what was written.
    let _ = page_cache::evict(&*beside.file());
    beside.commit().map_err(failed)
}

/// Copies a file that says something about others, such as the index of shards, to `target`. As
/// [`repack`], it has its name only when it is complete and on the disk, and the permission bits of
/// `source`. Where both names lead to one file, that is left as it is.
///
/// # Errors
/// [`Error::Open`], [`Error::Write`]; what had the name before still has it then.
pub fn copy_file(source: &Path, target: &Path) -> Result<()> {
    let unread = |error| Error::Open { path: source.to_owned(), source: error };
    let failed = |error| Error::Write { path: target.to_owned(), source: error };
    let mut from = File::open(source).map_err(unread)?;
    let found = from.metadata().map_err(unread)?;
    let same = |there: &std::fs::Metadata| (there.dev(), there.ino()) == (found.dev(), found.ino());
    if std::fs::metadata(target).is_ok_and(|there| same(&there)) {
        return Ok(());
    }
    let mut beside = AtomicFile::create(target).map_err(failed)?;
    beside.check_room(found.len()).map_err(failed)?;
    beside.permit_as(&from).map_err(failed)?;
    io::copy(&mut from, beside.file()).map_err(failed)?;
    beside.commit().map_err(failed)
}

fn write_zeros(file: &mut File, len_bytes: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(len_bytes), file).map(drop)
}

/// Reads once, leaving nothing in the page cache where the kernel can do that.
fn read_some(file: &PlannedFile, into: &mut [u8], at: u64, done_bytes: u64) -> Result<usize> {
    let source = file.source();
    let mut read = |uncached| {
        let flags = ReadFlags { uncached, ..ReadFlags::default() };
        file::read_into(source.buffered(), into, FileOffset::new(at), flags)
    };
    let path = || source.path().to_owned();
    match read(true).or_else(|_| read(false)) {
        Ok(0) => Err(Error::Truncated { path: path(), ended_at: at, len_bytes: source.len() }),
        Ok(read) => Ok(read),
        Err(error) => {
            let range = at..at + into.len() as u64;
            Err(Error::Read { path: path(), range, done_bytes, source: error })
        }
    }
}
