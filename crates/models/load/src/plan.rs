//! Plans: the file ranges of a load, and their places in the buffer.

use std::ops::Range;
use std::path::PathBuf;

use longshore_formats::{Image, Part};
use longshore_mem::{AddrRange, FileOffset, Granule};

use crate::error::{Error, Result};
use crate::reason::MemoryLimit;
use crate::source::SourceFile;

/// The alignment of files in a buffer. No disk requires a larger one for direct I/O.
pub const FILE_ALIGNMENT: Granule = Granule::SIZE_4K;

/// The files of a load, and the place of each in the buffer.
///
/// A single whole file is the exact content of the buffer. Several files each begin at a multiple of
/// [`FILE_ALIGNMENT`], and the bytes between them are zero. After [`crate::Opened::align`], an aligned
/// layout can take the place of a file.
#[derive(Debug, Default)]
pub struct Plan {
    files: Vec<PlannedFile>,
    len_bytes: u64,
}

/// One file of a [`Plan`].
#[derive(Debug)]
pub struct PlannedFile {
    source: SourceFile,
    range: AddrRange<FileOffset>,
    buffer_range: Range<u64>,
    head: Vec<u8>,
    parts: Vec<Part>,
}

impl Plan {
    /// Makes an empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a file, and makes a plan of that whole file.
    ///
    /// # Errors
    /// Those of [`SourceFile::open`].
    pub fn from_path(path: impl Into<PathBuf>) -> Result<Self> {
        let mut plan = Self::new();
        plan.push(SourceFile::open(path)?)?;
        Ok(plan)
    }

    /// Appends a whole file.
    ///
    /// # Errors
    /// [`Error::NotEnoughMemory`] if the length of the buffer would reach 2^63 bytes.
    pub fn push(&mut self, source: SourceFile) -> Result<()> {
        let whole = 0..source.len();
        self.push_range(source, whole)
    }

    /// Appends a range of a file.
    ///
    /// # Errors
    /// [`Error::OutOfFile`] if the range is not within the file; [`Error::NotEnoughMemory`] if the
    /// length of the buffer would reach 2^63 bytes.
    pub fn push_range(&mut self, source: SourceFile, range: Range<u64>) -> Result<()> {
        let len_bytes = range.end.checked_sub(range.start);
        let claimed = len_bytes
            .filter(|_| range.end <= source.len())
            .and_then(|len| AddrRange::new(FileOffset::new(range.start), len).ok());
        let Some(validated) = claimed else {
            let (path, len_bytes) = (source.path().to_owned(), source.len());
            return Err(Error::OutOfFile { path, range, len_bytes });
        };
        let (start, len_bytes) = (validated.start().raw(), validated.len());
        let buffer_range = self.take(len_bytes, FILE_ALIGNMENT)?;
        let part = Part::new(start, buffer_range.start, len_bytes);
        let parts = if len_bytes == 0 { Vec::new() } else { vec![part] };
        self.files.push(PlannedFile {
            source,
            range: validated,
            buffer_range,
            head: Vec::new(),
            parts,
        });
        Ok(())
    }

    /// Appends an aligned layout of a file.
    pub(crate) fn push_image(&mut self, source: SourceFile, image: Image) -> Result<()> {
        let alignment = image.alignment().max(FILE_ALIGNMENT);
        let buffer_range = self.take(image.len_bytes(), alignment)?;
        let (head, mut parts) = image.into_parts();
        debug_assert!(parts.is_sorted_by(|a, b| a.file_offset + a.len_bytes <= b.file_offset));
        for part in &mut parts {
            part.buffer_offset += buffer_range.start;
        }
        let range = AddrRange::new(FileOffset::new(0), source.len()).map_err(|_| too_long())?;
        self.files.push(PlannedFile { source, range, buffer_range, head, parts });
        Ok(())
    }

    /// Takes the next `len_bytes` of the buffer, at a multiple of `alignment`.
    fn take(&mut self, len_bytes: u64, alignment: Granule) -> Result<Range<u64>> {
        let start = alignment.checked_round_up(self.len_bytes).ok_or_else(too_long)?;
        let end = start.checked_add(len_bytes).filter(|end| *end < 1 << 63).ok_or_else(too_long)?;
        self.len_bytes = end;
        Ok(start..end)
    }

    /// Returns the files in the order in which they were added.
    pub fn files(&self) -> &[PlannedFile] {
        &self.files
    }

    /// Returns the length of the buffer in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the number of bytes to read from files. Unlike the length of the buffer, it excludes
    /// padding between files and between aligned tensors, and the heads of aligned layouts.
    pub fn content_bytes(&self) -> u64 {
        self.files.iter().flat_map(|file| &file.parts).map(|part| part.len_bytes).sum()
    }

    pub(crate) fn into_sources(self) -> impl Iterator<Item = SourceFile> {
        self.files.into_iter().map(|file| file.source)
    }
}

fn too_long() -> Error {
    Error::NotEnoughMemory {
        needed_bytes: u64::MAX,
        limit_bytes: (1 << 63) - 1,
        limit: MemoryLimit::BufferLength,
    }
}

impl PlannedFile {
    /// Returns the file.
    pub fn source(&self) -> &SourceFile {
        &self.source
    }

    /// Returns the range of the file that is loaded.
    pub fn range(&self) -> AddrRange<FileOffset> {
        self.range
    }

    /// Returns the offset of the file in the buffer.
    pub fn buffer_offset(&self) -> u64 {
        self.buffer_range.start
    }

    /// Returns the range of the buffer that the file, or its aligned layout, takes.
    pub fn buffer_range(&self) -> Range<u64> {
        self.buffer_range.clone()
    }

    /// Returns the bytes before all parts; none if the file is not an aligned layout.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the parts of the file with their places in the buffer, in the order of the file.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns `true` if the buffer has an aligned layout in place of the file.
    pub(crate) fn is_image(&self) -> bool {
        !self.head.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn source(len_bytes: usize) -> SourceFile {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; len_bytes]).unwrap();
        SourceFile::from_fd(file.into()).unwrap()
    }

    #[test]
    fn files_follow_each_other_at_page_boundaries() {
        let mut plan = Plan::new();
        for len_bytes in [100, 0, 4096, 4097] {
            plan.push(source(len_bytes)).unwrap();
        }
        let offsets: Vec<u64> = plan.files().iter().map(PlannedFile::buffer_offset).collect();
        assert_eq!(offsets, [0, 4096, 4096, 8192]);
        assert_eq!((plan.len_bytes(), plan.content_bytes()), (8192 + 4097, 100 + 4096 + 4097));
    }

    #[test]
    fn a_range_that_is_not_within_the_file_is_refused() {
        let (start, end) = (2u64, 1u64);
        for range in [0..101, 101..101, start..end, 0..u64::MAX] {
            let refused = Plan::new().push_range(source(100), range.clone());
            assert!(matches!(refused, Err(Error::OutOfFile { .. })), "{range:?}");
        }
        Plan::new().push_range(source(100), 100..100).unwrap();
    }
}
