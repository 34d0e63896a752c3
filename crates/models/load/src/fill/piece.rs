//! A piece of a file that is read into the buffer, and the next step after each of its reads.

use std::ops::Range;

use longshore_formats::Part;

use crate::plan::PlannedFile;

/// The route by which a piece is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// From the disk into the buffer.
    Direct,
    /// From the disk into a staging buffer, and copied from there to its place.
    Staged,
    /// From the page cache, where it is resident.
    Resident,
    /// Through the page cache, which does not keep the pages.
    Uncached,
    /// Through the page cache.
    Buffered,
    /// From another machine.
    Remote,
}

/// A range of a file that is read together, and its place in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The index of the file in the plan.
    pub(crate) file: usize,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: u64,
    /// The length of the content in bytes.
    pub(crate) len_bytes: u64,
    /// The length of the reads in bytes. It is larger than the content if direct I/O needs a whole block
    /// at the end.
    pub(crate) read_bytes: u64,
    /// The alignment of the start of each read; 1 for pieces that are not direct.
    pub(crate) step_bytes: u64,
    pub(crate) route: Route,
}

/// The next step after a read of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The piece is complete.
    Complete,
    /// Continue reading: this many bytes of the piece are complete.
    Again { done_bytes: u64 },
    /// The file ended at this offset, before the end of the piece.
    EndedAt(u64),
}

impl Piece {
    /// Returns the range of the buffer that reads of the piece may write.
    pub(crate) fn target(&self) -> Range<u64> {
        self.buffer_offset..self.buffer_offset + self.read_bytes
    }

    /// Returns the range of the file that is content of the piece.
    pub(crate) fn file_range(&self) -> Range<u64> {
        self.file_offset..self.file_offset + self.len_bytes
    }

    /// Returns the next step after a read that began `done_bytes` into the piece and returned
    /// `read_bytes`.
    ///
    /// A direct read that stops within a block has reached the end of the file. One that stops at the
    /// end of a block is continued there.
    pub(crate) fn after_read(&self, done_bytes: u64, read_bytes: u64) -> Next {
        let reached = done_bytes + read_bytes;
        if reached >= self.len_bytes {
            return Next::Complete;
        }
        if read_bytes == 0 || !reached.is_multiple_of(self.step_bytes) {
            return Next::EndedAt(self.file_offset + reached);
        }
        Next::Again { done_bytes: reached }
    }

    /// Returns the range of the piece without its first `done_bytes`, to be read by another route.
    pub(crate) fn rest(&self, done_bytes: u64) -> FileRange {
        FileRange {
            file: self.file,
            file_offset: self.file_offset + done_bytes,
            buffer_offset: self.buffer_offset + done_bytes,
            len_bytes: self.len_bytes - done_bytes,
        }
    }
}

/// A range of a file and its place in the buffer, before it is split into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) file: usize,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: u64,
    pub(crate) len_bytes: u64,
}

impl FileRange {
    /// Makes the range of a part.
    pub(crate) fn of_part(file: usize, part: &Part) -> Self {
        let Part { file_offset, buffer_offset, len_bytes, .. } = *part;
        Self { file, file_offset, buffer_offset, len_bytes }
    }

    /// Returns the intersections of the parts of `file` with `range` of the file, in the order of the
    /// file. `index` is the index of the file in the plan.
    pub(crate) fn within(
        index: usize,
        file: &PlannedFile,
        range: Range<u64>,
    ) -> impl Iterator<Item = Self> + '_ {
        let parts = file.parts();
        let first = parts.partition_point(|part| part.file_offset + part.len_bytes <= range.start);
        let touched = parts[first..].iter().take_while(move |part| part.file_offset < range.end);
        touched.map(move |part| {
            let start = part.file_offset.max(range.start);
            let end = (part.file_offset + part.len_bytes).min(range.end);
            Self::of_part(index, part).part(start - part.file_offset, end - start)
        })
    }

    /// Splits the range at multiples of `unit_bytes` in the buffer, so that two pieces share a huge page
    /// only if two files do.
    pub(crate) fn cut(self, unit_bytes: u64) -> impl Iterator<Item = Self> {
        let end = self.buffer_offset + self.len_bytes;
        let mut at = self.buffer_offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let boundary = (at / unit_bytes + 1).saturating_mul(unit_bytes).min(end);
            let part = self.part(at - self.buffer_offset, boundary - at);
            at = boundary;
            Some(part)
        })
    }

    /// Returns the `len_bytes` bytes that begin at `skip_bytes`.
    pub(crate) fn part(self, skip_bytes: u64, len_bytes: u64) -> Self {
        debug_assert!(skip_bytes + len_bytes <= self.len_bytes);
        Self {
            file: self.file,
            file_offset: self.file_offset + skip_bytes,
            buffer_offset: self.buffer_offset + skip_bytes,
            len_bytes,
        }
    }

    /// Returns the range of the file.
    pub(crate) fn file_range(&self) -> Range<u64> {
        self.file_offset..self.file_offset + self.len_bytes
    }

    /// Returns the whole range as one piece without alignment.
    pub(crate) fn piece(self, route: Route) -> Piece {
        Piece {
            file: self.file,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len_bytes: self.len_bytes,
            read_bytes: self.len_bytes,
            step_bytes: 1,
            route,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGE: FileRange =
        FileRange { file: 0, file_offset: 8192, buffer_offset: 4096, len_bytes: 10_000 };

    #[test]
    fn a_short_read_is_continued_and_an_early_end_is_an_error() {
        let mut piece = RANGE.piece(Route::Direct);
        (piece.step_bytes, piece.read_bytes) = (512, 10_240);
        assert_eq!(piece.after_read(0, 10_000), Next::Complete);
        assert_eq!(piece.after_read(0, 10_240), Next::Complete, "the file grew");
        assert_eq!(piece.after_read(0, 512), Next::Again { done_bytes: 512 });
        assert_eq!(piece.after_read(512, 9_488), Next::Complete);
        assert_eq!(piece.after_read(512, 100), Next::EndedAt(8192 + 612));
        assert_eq!(piece.after_read(512, 0), Next::EndedAt(8192 + 512));
        let buffered = RANGE.piece(Route::Buffered);
        assert_eq!(buffered.after_read(0, 1), Next::Again { done_bytes: 1 });
        assert_eq!(buffered.after_read(1, 0), Next::EndedAt(8193));
    }

    proptest! {
        #[test]
        fn cuts_cover_the_range_once_and_end_at_boundaries(
            start in 0u64..100, len_bytes in 0u64..1000, unit in 1u64..128,
        ) {
            let whole = FileRange { file: 3, file_offset: 7, buffer_offset: start, len_bytes };
            let mut at = start;
            for part in whole.cut(unit) {
                prop_assert_eq!(part.buffer_offset, at);
                prop_assert_eq!(part.file_offset, 7 + at - start);
                prop_assert!(part.len_bytes > 0);
                prop_assert_eq!(at / unit, (at + part.len_bytes - 1) / unit);
                at += part.len_bytes;
            }
            prop_assert_eq!(at, start + len_bytes);
        }
    }
}
