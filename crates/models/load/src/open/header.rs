//! Reads the headers of files.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};

use longshore_formats::gguf::{self, Parsed};
use longshore_formats::{Format, safetensors};
use longshore_mem::{FileOffset, VolatileSliceMut};
use longshore_sys::file::{self, ReadFlags};

use crate::checksum::Hasher;
use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::publish::PublishProblem;
use crate::reason::{FormatProblem, MemoryLimit};
use crate::source::{Opener, SourceFile};

/// The length of the first read of a safetensors file, which shows whether the file can be one. It is
/// one page, which the kernel reads anyway.
const SAFETENSORS_FIRST_BYTES: usize = 4096;
/// The length of the first read of a GGUF file, in bytes. It is doubled until the header is complete.
const GGUF_FIRST_BYTES: usize = 64 << 10;

/// Reads the header of a safetensors file through the page cache.
///
/// # Errors
/// [`Error::Format`], [`Error::Read`], [`Error::NotEnoughMemory`]; [`Error::Truncated`] if the file is
/// shorter than when it was opened.
pub fn read_safetensors_header(source: &SourceFile) -> Result<safetensors::Header> {
    safetensors_header(source, &|path: &Path| SourceFile::open(path))
}

/// Reads the header of a safetensors file, with the permission of `by`.
pub(super) fn safetensors_header(
    source: &SourceFile,
    by: &dyn Opener,
) -> Result<safetensors::Header> {
    let file_len_bytes = source.len();
    let mut first = [0; SAFETENSORS_FIRST_BYTES];
    let first = &mut first[..file_len_bytes.min(SAFETENSORS_FIRST_BYTES as u64) as usize];
    read_exact(source, first, 0)?;
    let refused = |error| Error::format(source.path(), error);
    let end = safetensors::header_end(first, file_len_bytes).map_err(refused)?;

    by.permit_header(source, end as u64)?;
    let mut bytes = Vec::new();
    reserve(&mut bytes, end)?;
    bytes.extend_from_slice(&first[..first.len().min(end)]);
    let read_bytes = bytes.len();
    bytes.resize(end, 0);
    read_exact(source, &mut bytes[read_bytes..], read_bytes as u64)?;
    let mut hasher = Hasher::new(DigestKind::Sha256);
    hasher.update(&bytes);
    source.note_header(end as u64, hasher)?;
    safetensors::Header::parse(&bytes, file_len_bytes).map_err(refused)
}

/// Reads the header of a GGUF file through the page cache. Because the length of the header is not known
/// in advance, this can read some of the data, too.
///
/// # Errors
/// [`Error::Format`], [`Error::Read`], [`Error::NotEnoughMemory`]; [`Error::Truncated`] if the file is
/// shorter than when it was opened.
pub fn read_gguf_header(source: &SourceFile) -> Result<gguf::Header> {
    gguf_header(source, &|path: &Path| SourceFile::open(path))
}

/// Reads the header of a GGUF file, with the permission of `by`.
pub(super) fn gguf_header(source: &SourceFile, by: &dyn Opener) -> Result<gguf::Header> {
    let file_len_bytes = source.len();
    let len_max = file_len_bytes.min(gguf::HEADER_LEN_MAX_BYTES) as usize;
    let mut bytes = Vec::new();
    let mut end = GGUF_FIRST_BYTES;
    let mut hasher = Hasher::new(DigestKind::Sha256);
    loop {
        let wanted = end.max(bytes.len() * 2).min(len_max);
        let read_bytes = bytes.len();
        by.permit_header(source, (wanted - read_bytes) as u64)?;
        reserve(&mut bytes, wanted)?;
        bytes.resize(wanted, 0);
        read_exact(source, &mut bytes[read_bytes..], read_bytes as u64)?;
        hasher.update(&bytes[read_bytes..]);
        match gguf::Header::parse_beginning(bytes, file_len_bytes) {
            Ok(Parsed::Complete(header)) => {
                source.note_header(wanted as u64, hasher)?;
                return Ok(header);
            }
            Ok(Parsed::Short { bytes: so_far, end: needed }) => (bytes, end) = (so_far, needed),
            Err(error) => return Err(Error::format(source.path(), error)),
        }
    }
}

/// The limit on the headers of all shards or splits of one model together, in bytes: the same as for one
/// GGUF file. It is needed because one file can be many shards, under several names. The headers of all
/// 163 shards of the largest published models have about 11 MB.
const HEADERS_LEN_MAX_BYTES: u64 = gguf::HEADER_LEN_MAX_BYTES;

/// An opener for the files of one model, which limits the sum of their headers.
pub(super) struct OfOneModel<'a> {
    by: &'a dyn Opener,
    format: Format,
    permitted_bytes: Cell<u64>,
}

impl<'a> OfOneModel<'a> {
    pub(super) fn new(by: &'a dyn Opener, format: Format) -> Self {
        Self { by, format, permitted_bytes: Cell::new(0) }
    }
}

impl Opener for OfOneModel<'_> {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        self.by.open(path)
    }

    fn shard_path(&self, path: &Path, name: &str) -> PathBuf {
        self.by.shard_path(path, name)
    }

    fn permit_header(&self, source: &SourceFile, len_bytes: u64) -> Result<()> {
        let sum_bytes = self.permitted_bytes.get().saturating_add(len_bytes);
        if sum_bytes > HEADERS_LEN_MAX_BYTES {
            let max_bytes = HEADERS_LEN_MAX_BYTES;
            let reason = FormatProblem::HeadersTooLong { sum_bytes, max_bytes };
            let (path, format) = (source.path().to_owned(), self.format);
            return Err(Error::Format { path, format, reason });
        }
        self.permitted_bytes.set(sum_bytes);
        self.by.permit_header(source, len_bytes)
    }

    fn permit_files(&self, source: &SourceFile, count: u64) -> Result<()> {
        self.by.permit_files(source, count)
    }
}

/// The limit on the bytes that are read to check the headers of all files of a published model, which can
/// be many models, such as quantizations of one. They are checked one by one, so this limits the time.
const HEADERS_OF_DIRECTORY_MAX_BYTES: u64 = 768 << 20;

/// The check of the headers of all files of a published model, which limits their sum.
#[derive(Debug, Default)]
pub(crate) struct HeadersOfModel {
    permitted_bytes: Cell<u64>,
}

impl HeadersOfModel {
    /// Checks the header of a safetensors or GGUF file, by the ending of its name.
    ///
    /// # Errors
    /// Those of [`read_safetensors_header`] and [`read_gguf_header`]; [`Error::Publish`] with
    /// [`PublishProblem::HeadersTooLong`].
    pub(crate) fn check(&self, source: &SourceFile) -> Result<()> {
        match source.path().extension().and_then(|ending| ending.to_str()) {
            Some("gguf") => gguf_header(source, self).map(drop),
            _ => safetensors_header(source, self).map(drop),
        }
    }
}

impl Opener for HeadersOfModel {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        SourceFile::open(path)
    }

    fn permit_header(&self, source: &SourceFile, len_bytes: u64) -> Result<()> {
        let sum_bytes = self.permitted_bytes.get().saturating_add(len_bytes);
        let max_bytes = HEADERS_OF_DIRECTORY_MAX_BYTES;
        if sum_bytes > max_bytes {
            let reason = PublishProblem::HeadersTooLong { max_bytes };
            return Err(Error::Publish { path: source.path().to_owned(), reason });
        }
        self.permitted_bytes.set(sum_bytes);
        Ok(())
    }
}

/// Returns `true` if an opener failed because the file does not exist.
pub(super) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// Counts the files that `by` does not find. They are looked for only through `by`, because it can be
/// restricted to a folder or to certain files.
pub(super) fn count_missing(paths: impl Iterator<Item = PathBuf>, by: &dyn Opener) -> usize {
    paths.filter(|path| by.open(path).is_err_and(|error| is_not_found(&error))).count()
}

/// Reserves memory for `len` bytes in total.
fn reserve(bytes: &mut Vec<u8>, len: usize) -> Result<()> {
    bytes.try_reserve_exact(len - bytes.len()).map_err(|_| Error::NotEnoughMemory {
        needed_bytes: len as u64,
        limit_bytes: 0,
        limit: MemoryLimit::Header,
    })
}

/// Fills `bytes` from `offset` of the file, through the page cache.
pub(crate) fn read_exact(source: &SourceFile, bytes: &mut [u8], offset: u64) -> Result<()> {
    if let Some(object) = source.object() {
        return read_object(source, object, bytes, offset);
    }
    let local = source.require_local()?;
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let rest = &mut bytes[done..];
        let range = at..at + rest.len() as u64;
        let read = file::read_into(local, rest, FileOffset::new(at), ReadFlags::default());
        let path = || source.path().to_owned();
        match read {
            Ok(0) => {
                let len_bytes = source.len();
                return Err(Error::Truncated { path: path(), ended_at: at, len_bytes });
            }
            Ok(read) => done += read,
            Err(source) => {
                return Err(Error::Read { path: path(), range, done_bytes: 0, source });
            }
        }
    }
    Ok(())
}

/// Fills `bytes` from `offset` of a file of another machine.
fn read_object(
    source: &SourceFile,
    object: &dyn Object,
    bytes: &mut [u8],
    offset: u64,
) -> Result<()> {
    let range = offset..offset + bytes.len() as u64;
    if range.end > source.len() {
        let (path, len_bytes) = (source.path().to_owned(), source.len());
        return Err(Error::Truncated { path, ended_at: len_bytes, len_bytes });
    }
    let read = object.read(&mut VolatileSliceMut::from(bytes), offset, &|| false);
    read.map_err(|error| Error::of_object(source.path(), range, 0, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_of_a_directory_are_limited_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, b"\x08\0\0\0\0\0\0\0{}      ").unwrap();
        let source = SourceFile::open(&path).unwrap();
        let headers = HeadersOfModel::default();
        headers.permitted_bytes.set(HEADERS_OF_DIRECTORY_MAX_BYTES - 20);
        headers.check(&source).unwrap();
        let refused = headers.check(&source).unwrap_err();
        let Error::Publish { reason, .. } = refused else { panic!("{refused}") };
        let max_bytes = HEADERS_OF_DIRECTORY_MAX_BYTES;
        assert_eq!(reason, PublishProblem::HeadersTooLong { max_bytes });
    }
}
