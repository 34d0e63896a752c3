//! A piece of a file on its way into the buffer, and what each read of it leads to.

use std::ops::Range;

use longshore_formats::Part;

use crate::plan::PlannedFile;

/// Which way a piece takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// From the disk into the buffer.
    Direct,
    /// From the disk into memory beside the buffer, and copied from there to where it goes.
    Staged,
    /// From the page cache, where it is known to be.
    Resident,
    /// Through the page cache, leaving nothing there.
    Uncached,
    /// Through the page cache.
    Buffered,
}

/// Bytes of one file that are read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the file in the plan.
    pub(crate) file: usize,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: u64,
    /// Bytes wanted.
    pub(crate) len_bytes: u64,
    /// Bytes asked for: more than wanted where direct I/O needs a whole block at the end.
    pub(crate) read_bytes: u64,
    /// What reads of it start at multiples of: 1 but for direct pieces.
    pub(crate) step_bytes: u64,
    pub(crate) route: Route,
}

/// What to do after a read of a piece returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Every byte wanted is there.
    Complete,
    /// Read on: so many bytes of the piece are there for good.
    Again { done_bytes: u64 },
    /// The file ended at this byte of it, before the piece did.
    EndedAt(u64),
}

impl Piece {
    /// The bytes of the buffer that reads of the piece may write.
    pub(crate) fn target(&self) -> Range<u64> {
        self.buffer_offset..self.buffer_offset + self.read_bytes
    }

    /// The bytes of the file that are wanted.
    pub(crate) fn file_range(&self) -> Range<u64> {
        self.file_offset..self.file_offset + self.len_bytes
    }

    /// Decides how to go on when a read that began `done_bytes` into the piece returned
    /// `read_bytes`.
    ///
    /// A direct read that stops in the middle of a block can only have met the end of the file; one
    /// that stops at a block is begun anew there.
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

    /// The piece without its first `done_bytes`, to be read some other way.
    pub(crate) fn rest(&self, done_bytes: u64) -> Stretch {
        Stretch {
            file: self.file,
            file_offset: self.file_offset + done_bytes,
            buffer_offset: self.buffer_offset + done_bytes,
            len_bytes: self.len_bytes - done_bytes,
        }
    }
}

/// Bytes of a file that share a route, before they are cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) file: usize,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: u64,
    pub(crate) len_bytes: u64,
}

impl Stretch {
    /// A part of a file.
    pub(crate) fn of_part(file: usize, part: &Part) -> Self {
        let Part { file_offset, buffer_offset, len_bytes, .. } = *part;
        Self { file, file_offset, buffer_offset, len_bytes }
    }

    /// What of the parts of `file`, whose index in the plan is `index`, lies in `range` of the
    /// file, in the order of the file.
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

    /// Cuts at multiples of `unit_bytes` in the buffer, so that two pieces never share a huge page
    /// but where two files do.
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

    /// The `len_bytes` bytes from `skip_bytes` on.
    pub(crate) fn part(self, skip_bytes: u64, len_bytes: u64) -> Self {
        debug_assert!(skip_bytes + len_bytes <= self.len_bytes);
        Self {
            file: self.file,
            file_offset: self.file_offset + skip_bytes,
            buffer_offset: self.buffer_offset + skip_bytes,
            len_bytes,
        }
    }

    /// The bytes of the file.
    pub(crate) fn file_range(&self) -> Range<u64> {
        self.file_offset..self.file_offset + self.len_bytes
    }

    /// The whole stretch as one piece that need not be aligned.
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

    const STRETCH: Stretch =
        Stretch { file: 0, file_offset: 8192, buffer_offset: 4096, len_bytes: 10_000 };

    #[test]
    fn a_short_read_goes_on_and_an_early_end_is_told() {
        let mut piece = STRETCH.piece(Route::Direct);
        (piece.step_bytes, piece.read_bytes) = (512, 10_240);
        assert_eq!(piece.after_read(0, 10_000), Next::Complete);
        assert_eq!(piece.after_read(0, 10_240), Next::Complete, "the file grew");
        assert_eq!(piece.after_read(0, 512), Next::Again { done_bytes: 512 });
        assert_eq!(piece.after_read(512, 9_488), Next::Complete);
        assert_eq!(piece.after_read(512, 100), Next::EndedAt(8192 + 612));
        assert_eq!(piece.after_read(512, 0), Next::EndedAt(8192 + 512));
        let buffered = STRETCH.piece(Route::Buffered);
        assert_eq!(buffered.after_read(0, 1), Next::Again { done_bytes: 1 });
        assert_eq!(buffered.after_read(1, 0), Next::EndedAt(8193));
    }

    proptest! {
        #[test]
        fn cuts_cover_the_stretch_once_and_meet_the_boundaries(
            start in 0u64..100, len_bytes in 0u64..1000, unit in 1u64..128,
        ) {
            let whole = Stretch { file: 3, file_offset: 7, buffer_offset: start, len_bytes };
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
