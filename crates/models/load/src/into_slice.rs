//! Loads into memory of the caller, for small files.
//!
//! A load into a buffer of a heap creates a memfd and maps it, and starts threads. For a small file
//! this takes much longer than the reading itself.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use longshore_heap::{Heap, PageReport};

use crate::error::{Error, Result};
use crate::loader::{LoadedFile, Loader};
use crate::open::read_exact;
use crate::plan::{Plan, PlannedFile};
use crate::progress::Progress;
use crate::report::{BytesByRoute, Engine, Report};
use crate::source::SourceFile;
use crate::verify::FileHasher;

impl Loader<'_> {
    /// Reads every file of `plan` into `content` through the page cache, on the calling thread. Bytes
    /// between files and between aligned tensors become zero.
    ///
    /// It uses no descriptor, mapping or thread of its own, so it is faster than [`Loader::load`] up to
    /// about 1 MiB. The heap, the mode, the prefault window and the sizes of reads have no effect, and
    /// the report has no page sizes. The progress is reported once, at the end.
    ///
    /// # Errors
    /// Those of [`Loader::load`], except the errors of a heap; [`Error::OutOfFile`] if `content` does
    /// not have the length of the plan.
    pub fn load_into(
        mut self,
        plan: &Plan,
        content: &mut [u8],
    ) -> Result<(Vec<LoadedFile>, Report)> {
        let began = Instant::now();
        if content.len() as u64 != plan.len_bytes() {
            let path = plan.files().first().map(|file| file.source().path().to_owned());
            return Err(Error::OutOfFile {
                path: path.unwrap_or_default(),
                range: 0..content.len() as u64,
                len_bytes: plan.len_bytes(),
            });
        }
        content.fill(0);
        let mut done_bytes = 0;
        for file in plan.files() {
            place(content, file.buffer_offset(), file.head().len() as u64)
                .copy_from_slice(file.head());
            for part in file.parts() {
                if self.cancel.is_cancelled() {
                    let total_bytes = plan.content_bytes();
                    return Err(Error::Cancelled { done_bytes, total_bytes });
                }
                let bytes = place(content, part.buffer_offset, part.len_bytes);
                read_exact(file.source(), bytes, part.file_offset)?;
                done_bytes += part.len_bytes;
            }
        }
        let digests = plan.files().iter().map(|file| self.digests_of(file, content));
        let digests = digests.collect::<Result<_>>()?;
        for file in plan.files() {
            file.source().check_unchanged()?;
        }
        let files = self.files(plan, digests)?;
        let elapsed = began.elapsed();
        if let Some(observe) = &mut self.observe {
            observe(Progress::new(done_bytes, done_bytes, elapsed));
        }
        let report = Report { heap: self.heap.clone(), ..Report::of_small(done_bytes, elapsed) };
        Ok((files, report))
    }

    /// Computes the requested checksums of a file, which are those of the file on the disk: if the buffer
    /// has an aligned layout in its place, the bytes between its parts are read from the file.
    fn digests_of(&self, file: &PlannedFile, content: &mut [u8]) -> Result<Vec<String>> {
        if self.digests.is_empty() {
            return Ok(Vec::new());
        }
        let mut hasher = FileHasher::new(&self.digests, file);
        let mut aside = Vec::new();
        let mut reached = file.range().start().raw();
        let end = reached + file.range().len();
        for part in file.parts() {
            aside.resize((part.file_offset - reached) as usize, 0);
            read_exact(file.source(), &mut aside, reached)?;
            hasher.update(&aside);
            hasher.update(place(content, part.buffer_offset, part.len_bytes));
            reached = part.file_offset + part.len_bytes;
        }
        aside.resize((end - reached) as usize, 0);
        read_exact(file.source(), &mut aside, reached)?;
        hasher.update(&aside);
        hasher.finish()
    }
}

impl LoadedFile {
    /// Makes the description of a file without checksums.
    pub const fn new(path: PathBuf, buffer_offset: u64, len_bytes: u64) -> Self {
        Self { path, buffer_offset, len_bytes, digests: Vec::new() }
    }
}

impl Report {
    /// Makes the report of `content_bytes` that were read through the page cache into memory of the
    /// caller. It has no page sizes, and the heap is [`Heap::Auto`].
    pub fn of_small(content_bytes: u64, elapsed: Duration) -> Self {
        Self {
            content_bytes,
            elapsed,
            allocating: Duration::ZERO,
            mapping: Duration::ZERO,
            reading: elapsed,
            prefault_share: 0.0,
            heap: Heap::Auto,
            pages: PageReport::default(),
            by_route: BytesByRoute { buffered: content_bytes, ..BytesByRoute::default() },
            engine: Engine::Threads { ring_refused: None },
            page_cache_growth_bytes: None,
        }
    }
}

impl SourceFile {
    /// Reads a range of the file into `bytes` through the page cache, on the calling thread, and checks
    /// that the file has not changed since it was opened.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Truncated`], [`Error::Changed`]; [`Error::OutOfFile`] if the range is
    /// not within the file.
    pub fn read_range(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        if range.end > self.len() {
            let (path, len_bytes) = (self.path().to_owned(), self.len());
            return Err(Error::OutOfFile { path, range, len_bytes });
        }
        read_exact(self, bytes, offset)?;
        self.check_unchanged()
    }
}

/// Returns a range of the content. A plan has no ranges outside its length.
fn place(content: &mut [u8], offset: u64, len_bytes: u64) -> &mut [u8] {
    let Range { start, end } = offset as usize..(offset + len_bytes) as usize;
    &mut content[start..end]
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use longshore_mem::Granule;

    use super::*;
    use crate::{CancelToken, DigestKind, FormatChoice, Manifest};

    fn source(bytes: &[u8]) -> SourceFile {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        SourceFile::from_fd(file.into()).unwrap()
    }

    fn safetensors(folder: &std::path::Path) -> PathBuf {
        let header = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
            "b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(b"abcdefgh");
        let path = folder.join("m.safetensors");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn the_content_is_that_of_a_load_into_a_buffer() {
        let folder = tempfile::tempdir().unwrap();
        let path = safetensors(folder.path());
        for alignment in [None, Some(Granule::SIZE_4K)] {
            let open = || {
                let opened = crate::open(&[&path, &path], FormatChoice::Auto).unwrap();
                match alignment {
                    Some(alignment) => opened.align(alignment).unwrap(),
                    None => opened,
                }
            };
            let opened = open();
            let mut content = vec![0xff; opened.plan.len_bytes() as usize];
            let loader = || Loader::new().heap(Heap::Memfd).digest(DigestKind::Xxh3);
            let (files, report) = loader().load_into(&opened.plan, &mut content).unwrap();
            let loaded = loader().load(&opened.plan).unwrap();
            assert_eq!(content, *loaded.buffer.read().unwrap());
            assert_eq!(report.content_bytes, loaded.report.content_bytes);
            for (one, other) in files.iter().zip(&loaded.files) {
                assert_eq!(one.buffer_offset, other.buffer_offset);
                assert_eq!((&one.digests, one.len_bytes), (&other.digests, other.len_bytes));
            }
        }
    }

    #[test]
    fn errors_are_those_of_a_load_into_a_buffer() {
        let folder = tempfile::tempdir().unwrap();
        let path = safetensors(folder.path());
        let plan = Plan::from_path(&path).unwrap();
        let mut content = vec![0; plan.len_bytes() as usize];

        let cancel = CancelToken::new();
        cancel.cancel();
        let cancelled = Loader::new().cancel(&cancel).load_into(&plan, &mut content);
        assert!(matches!(cancelled, Err(Error::Cancelled { done_bytes: 0, .. })), "{cancelled:?}");

        let sums = folder.path().join("sums");
        std::fs::write(&sums, "00000000  m.safetensors\n").unwrap();
        let manifest = Manifest::open(sums).unwrap();
        let differs = Loader::new().manifest(&manifest).load_into(&plan, &mut content);
        assert!(matches!(differs, Err(Error::Mismatch { .. })), "{differs:?}");

        let short = Loader::new().load_into(&plan, &mut content[1..]);
        assert!(matches!(short, Err(Error::OutOfFile { .. })), "{short:?}");

        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(9).unwrap();
        let truncated = Loader::new().load_into(&plan, &mut content);
        assert!(matches!(truncated, Err(Error::Truncated { .. })), "{truncated:?}");
    }

    #[test]
    fn a_range_of_a_file_is_read_or_refused() {
        let file = source(b"0123456789");
        let mut bytes = [0; 4];
        file.read_range(3, &mut bytes).unwrap();
        assert_eq!(&bytes, b"3456");
        for offset in [7, u64::MAX] {
            let refused = file.read_range(offset, &mut bytes);
            assert!(matches!(refused, Err(Error::OutOfFile { .. })), "{offset}");
        }
    }
}
