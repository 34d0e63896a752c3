//! Repacking: writing files whose tensors are aligned.

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

/// The number of bytes that are copied at once.
const CHUNK_BYTES: usize = 4 << 20;

/// Writes the content that `file` has in a buffer to a new file. In a plan from
/// [`crate::Opened::align`] that is the aligned layout, so the new file has aligned tensors.
///
/// The new file gets its name when it is complete and on the disk, and has the permission bits of
/// `file`. This takes at most 8 MiB of memory, and leaves neither file in the page cache.
///
/// # Errors
/// [`Error::Write`], also if the file system has not enough free space, which is checked first;
/// [`Error::Read`]; [`Error::Truncated`] or [`Error::Changed`] if the file changed meanwhile;
/// [`Error::Cancelled`]. On an error no new file is left, and an existing `target` is unchanged, except
/// if only syncing the directory failed at the end.
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
    let owned = file.source().require_local()?.try_clone_to_owned();
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
    // This writes the file back and evicts it. If it fails, the file only stays in the page cache.
    let _ = page_cache::evict(&*beside.file());
    beside.commit().map_err(failed)
}

/// Copies a file that belongs to a model, such as the index of its shards, to `target`. As in
/// [`repack`], the copy gets its name when it is complete and on the disk, and has the permission bits
/// of `source`. If both paths refer to the same file, nothing is done.
///
/// # Errors
/// [`Error::Open`], [`Error::Write`]. On an error an existing `target` is unchanged.
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

/// Reads once, with `RWF_DONTCACHE` if the kernel supports it.
fn read_some(file: &PlannedFile, into: &mut [u8], at: u64, done_bytes: u64) -> Result<usize> {
    let source = file.source();
    let local = source.require_local()?;
    let mut read = |uncached| {
        let flags = ReadFlags { uncached, ..ReadFlags::default() };
        file::read_into(local, into, FileOffset::new(at), flags)
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
