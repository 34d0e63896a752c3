//! The choice of a route for each piece.
//!
//! For a direct read, the file offset, the memory address and the length must have the alignment that
//! the file system reports (`statx`). If the file offset and the address have different remainders
//! modulo that alignment, no direct read is possible. If only the ends are unaligned, the partial first
//! block is read through the page cache. The partial last block is read as a whole block if the buffer
//! has room for it, and the bytes behind the content are zeroed afterwards.

use longshore_formats::Part;
use longshore_heap::Reservation;
use longshore_mem::{FileOffset, Granule};
use longshore_sys::file::{self, DirectAlignment, ReadFlags};
use longshore_sys::{page_cache, page_size_bytes};

use std::ops::Range;

use super::piece::{FileRange, Piece, Route};
use super::staged::{SPAN_BYTES, Span};
use super::tuning::Tuning;
use crate::error::{Error, Result};
use crate::mode::ReadMode;
use crate::plan::{FILE_ALIGNMENT, Plan, PlannedFile};
use crate::reason::ModeProblem;

/// The unit in which a partly resident piece is split. A smaller resident range is not worth a read of
/// its own.
const RESIDENCY_UNIT_BYTES: u64 = 1 << 20;

/// The shortest range of an aligned layout that is read directly. Shorter ranges are staged together
/// with their neighbours.
const DIRECT_PART_MIN_BYTES: u64 = 1 << 20;

/// A plan that was split into reads.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    /// The ranges that are read into their places.
    pub(crate) pieces: Vec<Piece>,
    /// The ranges that are read into a staging buffer, also with bytes that have no place in the buffer.
    pub(super) spans: Vec<Span>,
}

/// Splits the plan into pieces and chooses their routes, in the order of the files. Once `should_stop`
/// returns `true`, the result is incomplete.
pub(super) fn route(
    plan: &Plan,
    reservation: &Reservation,
    tuning: &Tuning,
    should_stop: impl Fn() -> bool,
) -> Result<Routed> {
    let mut routed = Routed::default();
    for (index, file) in plan.files().iter().enumerate() {
        if file.parts().is_empty() {
            continue;
        }
        // An aligned layout is split by file offsets, so that adjacent bytes of the file are read
        // together.
        let ranges = if file.is_image() {
            let runs = runs(file.parts(), tuning.piece_bytes);
            runs.into_iter().map(|range| in_file(index, range)).collect()
        } else {
            file.parts().iter().map(|part| FileRange::of_part(index, part)).collect::<Vec<_>>()
        };
        let router = FileRouter::new(file, Ways::of(file, reservation), tuning)?;
        for range in ranges {
            router.push(range, &mut routed, &should_stop);
        }
        router.advise_reads();
    }
    Ok(routed)
}

/// The choice of routes for the ranges of one file.
pub(crate) struct FileRouter<'a> {
    file: &'a PlannedFile,
    ways: Ways,
    mode: ReadMode,
    /// The probe of the page cache, in [`ReadMode::Auto`].
    residency: Option<Residency<'a>>,
    piece_bytes: u64,
}

impl<'a> FileRouter<'a> {
    fn new(file: &'a PlannedFile, ways: Ways, tuning: &Tuning) -> Result<Self> {
        let mode = if file.source().asked_direct() { ReadMode::Direct } else { tuning.mode };
        let mut residency = None;
        if file.source().object().is_some() {
            // The mode is one of files of this machine.
            let (mode, piece_bytes) = (ReadMode::Direct, tuning.piece_bytes);
            return Ok(Self { file, ways, mode, residency, piece_bytes });
        }
        match mode {
            ReadMode::Auto => residency = Some(Residency::new(file)),
            ReadMode::Direct => {
                ways.direct.as_ref().map_err(|reason| unavailable(file, mode, *reason))?;
            }
            ReadMode::Uncached if !takes_uncached(file) => {
                return Err(unavailable(file, mode, ModeProblem::NoUncachedIo));
            }
            ReadMode::Uncached => {}
            ReadMode::Buffered => read_ahead_again(file),
        }
        Ok(Self { file, ways, mode, residency, piece_bytes: tuning.piece_bytes })
    }

    /// Returns the router for ranges whose places in memory are congruent to their offsets in the file,
    /// modulo [`place_alignment`].
    ///
    /// # Errors
    /// [`Error::ModeUnavailable`].
    pub(crate) fn of_stream(file: &'a PlannedFile, tuning: &Tuning) -> Result<Self> {
        let direct = file.source().direct().ok_or(ModeProblem::NoDirectIo).and_then(|way| {
            let way = AlignedWay::new(0, 0, way.1).map(DirectWay::AsItIs);
            way.ok_or(ModeProblem::NoDirectIo)
        });
        let ways = Ways::of_object(file).unwrap_or_else(|| Ways::new(file, direct));
        let router = Self::new(file, ways, tuning)?;
        if router.residency.as_ref().is_some_and(|residency| residency.counts) {
            router.advise_reads();
        }
        Ok(router)
    }

    /// Advises the kernel of the pattern of the reads. If the page cache is probed by reads, this must be
    /// done after all probes.
    fn advise_reads(&self) {
        if self.mode != ReadMode::Auto {
            return;
        }
        if self.ways.direct.is_ok() {
            // Copying resident pages must not read neighbouring pages into the cache.
            let _ = self.file.source().buffered().map(page_cache::expect_random_reads);
        } else {
            read_ahead_again(self.file);
        }
    }

    /// Splits a range into reads.
    pub(crate) fn push(
        &self,
        range: FileRange,
        routed: &mut Routed,
        should_stop: &impl Fn() -> bool,
    ) {
        let Self { file, ways, .. } = self;
        for part in range.cut(self.piece_bytes).take_while(|_| !should_stop()) {
            match (self.mode, &self.residency) {
                (ReadMode::Auto, Some(residency)) => residency.split(part, |part, resident| {
                    if resident {
                        through_cache(file, part, Route::Resident, &mut routed.pieces);
                    } else {
                        ways.push_from_disk(file, part, routed);
                    }
                }),
                (ReadMode::Auto | ReadMode::Direct, _) => ways.push_from_disk(file, part, routed),
                (ReadMode::Uncached, _) => {
                    through_cache(file, part, Route::Uncached, &mut routed.pieces);
                }
                (ReadMode::Buffered, _) => {
                    through_cache(file, part, Route::Buffered, &mut routed.pieces);
                }
            }
        }
    }

    /// Splits a range into reads from the disk, without looking at the page cache.
    pub(crate) fn push_from_disk(&self, range: FileRange, routed: &mut Routed) {
        for part in range.cut(self.piece_bytes) {
            self.ways.push_from_disk(self.file, part, routed);
        }
    }
}

/// Returns the alignment of the places of ranges of a stream: direct reads need that of the file.
pub(crate) fn place_alignment(file: &PlannedFile) -> Granule {
    let direct = file.source().direct().map(|(_, way)| way.offset.max(way.memory));
    direct.unwrap_or(FILE_ALIGNMENT).max(FILE_ALIGNMENT)
}

/// Returns the ranges of a file that cover `parts`. Gaps of a whole unit or more are left out. In a
/// sparse file they can be nearly the whole file.
fn runs(parts: &[Part], unit_bytes: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for part in parts {
        let range = part.file_offset..part.file_offset + part.len_bytes;
        match runs.last_mut() {
            Some(last) if range.start / unit_bytes <= (last.end - 1) / unit_bytes + 1 => {
                last.end = range.end;
            }
            _ => runs.push(range),
        }
    }
    runs
}

/// Makes a range whose buffer offset is its file offset, so that it can be split at file offsets.
fn in_file(file: usize, range: Range<u64>) -> FileRange {
    let len_bytes = range.end - range.start;
    FileRange { file, file_offset: range.start, buffer_offset: range.start, len_bytes }
}

/// Adds the pieces that read `part` by a route without alignment.
fn through_cache(file: &PlannedFile, part: FileRange, route: Route, pieces: &mut Vec<Piece>) {
    if file.is_image() {
        let wanted = FileRange::within(part.file, file, part.file_range());
        pieces.extend(wanted.map(|wanted| wanted.piece(route)));
    } else {
        pieces.push(part.piece(route));
    }
}

/// Undoes the `POSIX_FADV_RANDOM` of probing. Advice that the kernel ignores costs only speed.
fn read_ahead_again(file: &PlannedFile) {
    let _ = file.source().buffered().map(page_cache::expect_sequential_reads);
}

/// Splits `ranges` into reads from the disk, without looking at the page cache.
pub(super) fn from_disk(
    plan: &Plan,
    reservation: &Reservation,
    tuning: &Tuning,
    ranges: &[FileRange],
) -> Routed {
    let mut routed = Routed::default();
    for range in ranges {
        let file = &plan.files()[range.file];
        let ways = Ways::of(file, reservation);
        if file.is_image() {
            ways.push_from_disk(file, in_file(range.file, range.file_range()), &mut routed);
            continue;
        }
        for part in range.cut(tuning.piece_bytes) {
            ways.push_from_disk(file, part, &mut routed);
        }
    }
    routed
}

fn unavailable(file: &PlannedFile, mode: ReadMode, reason: ModeProblem) -> Error {
    Error::ModeUnavailable { path: file.source().path().to_owned(), mode, reason }
}

/// The best route from the disk for one file, and a route for its partial blocks.
struct Ways {
    direct: std::result::Result<DirectWay, ModeProblem>,
    through_cache: Route,
}

/// The way in which a file is read with direct I/O.
enum DirectWay {
    /// In whole ranges: file offsets and buffer addresses have the same misalignment.
    AsItIs(AlignedWay),
    /// Part by part: an aligned layout, a range whose file offset and buffer address differ in
    /// misalignment, or a mapping of a dma-buf, into which the kernel refuses direct reads.
    Parts(PartsWay),
}

impl Ways {
    fn of(file: &PlannedFile, reservation: &Reservation) -> Self {
        let of_object = Self::of_object(file);
        of_object.unwrap_or_else(|| Self::new(file, DirectWay::of(file, reservation)))
    }

    /// Returns the ways of a file of another machine. Parts of an aligned layout are staged, so that one request
    /// reads many.
    fn of_object(file: &PlannedFile) -> Option<Self> {
        file.source().object()?;
        let direct = match file.is_image() {
            true => Ok(DirectWay::Parts(PartsWay { memory: None, offset: FILE_ALIGNMENT })),
            false => Err(ModeProblem::NoDirectIo),
        };
        Some(Self { direct, through_cache: Route::Remote })
    }

    fn new(file: &PlannedFile, direct: std::result::Result<DirectWay, ModeProblem>) -> Self {
        match direct {
            // Only partial blocks at the ends are read through the page cache.
            Ok(way) => Self { direct: Ok(way), through_cache: Route::Buffered },
            Err(why_not) => {
                let uncached = takes_uncached(file);
                let through_cache = if uncached { Route::Uncached } else { Route::Buffered };
                Self { direct: Err(why_not), through_cache }
            }
        }
    }

    /// Adds the reads of `part` from the disk. For an aligned layout, `part` is a range of the file.
    fn push_from_disk(&self, file: &PlannedFile, part: FileRange, routed: &mut Routed) {
        match &self.direct {
            Ok(DirectWay::AsItIs(way)) => {
                way.pieces(part, self.through_cache, &mut routed.pieces);
            }
            Ok(DirectWay::Parts(way)) => way.push(file, part, routed),
            Err(_) => through_cache(file, part, self.through_cache, &mut routed.pieces),
        }
    }
}

/// Returns `true` if reads with `RWF_DONTCACHE` are supported. It tries to read one byte, because every
/// kernel accepts a read of no bytes.
fn takes_uncached(file: &PlannedFile) -> bool {
    let flags = ReadFlags { uncached: true, ..ReadFlags::default() };
    let read = |fd| file::read_into(fd, &mut [0], FileOffset::new(0), flags).is_ok();
    file.source().buffered().is_some_and(read)
}

/// The alignment of direct reads of a file that is loaded unchanged.
#[derive(Clone, Copy, Debug)]
struct AlignedWay {
    /// The alignment of offsets and lengths.
    offset: Granule,
    /// `true` if the buffer has room behind the file for the whole last block.
    tail_fits: bool,
}

impl DirectWay {
    /// Returns the way for a file, or the reason why direct I/O is not possible.
    fn of(file: &PlannedFile, reservation: &Reservation) -> std::result::Result<Self, ModeProblem> {
        let (_, alignment) = file.source().direct().ok_or(ModeProblem::NoDirectIo)?;
        let alike = AlignedWay::new(file.range().start().raw(), file.buffer_offset(), alignment)
            .filter(|_| reservation.takes_direct_io() && !file.is_image());
        Ok(alike.map_or_else(
            || {
                let memory = reservation.takes_direct_io().then_some(alignment.memory);
                Self::Parts(PartsWay { memory, offset: alignment.offset })
            },
            Self::AsItIs,
        ))
    }
}

impl AlignedWay {
    /// Returns `None` if no read of the range can be aligned both in the file and in memory.
    fn new(file_offset: u64, buffer_offset: u64, alignment: DirectAlignment) -> Option<Self> {
        let skew = file_offset ^ buffer_offset;
        // The file offset and the buffer offset must be equal modulo the alignment. The buffer itself
        // begins at a huge page.
        let strictest = alignment.offset.max(alignment.memory);
        if !strictest.is_aligned(skew) {
            return None;
        }
        let tail_fits =
            strictest <= FILE_ALIGNMENT && strictest.bytes() <= page_size_bytes() as u64;
        Some(Self { offset: strictest, tail_fits })
    }

    /// Adds the pieces that read `part` directly, and its partial blocks by `through_cache`.
    fn pieces(self, part: FileRange, through_cache: Route, pieces: &mut Vec<Piece>) {
        let head_bytes = self
            .offset
            .checked_round_up(part.file_offset)
            .map_or(part.len_bytes, |aligned| (aligned - part.file_offset).min(part.len_bytes));
        if head_bytes > 0 {
            pieces.push(part.part(0, head_bytes).piece(through_cache));
        }
        let body = part.part(head_bytes, part.len_bytes - head_bytes);
        let whole_blocks_bytes = self.offset.round_down(body.len_bytes);
        let tail_bytes = body.len_bytes - whole_blocks_bytes;
        let direct_bytes = if self.tail_fits { body.len_bytes } else { whole_blocks_bytes };
        if direct_bytes > 0 {
            let mut piece = body.part(0, direct_bytes).piece(Route::Direct);
            piece.step_bytes = self.offset.bytes();
            piece.read_bytes = direct_bytes.next_multiple_of(self.offset.bytes());
            pieces.push(piece);
        }
        if tail_bytes > 0 && !self.tail_fits {
            pieces.push(body.part(whole_blocks_bytes, tail_bytes).piece(through_cache));
        }
    }
}

/// The alignment of direct reads of a file that is read part by part.
#[derive(Clone, Copy, Debug)]
struct PartsWay {
    /// The alignment of addresses; `None` if nothing can be read directly into the buffer.
    memory: Option<Granule>,
    /// The alignment of offsets and lengths.
    offset: Granule,
}

impl PartsWay {
    /// Adds the reads of a range of the file: direct reads of long parts whose places suit direct I/O,
    /// and staged reads of the rest.
    fn push(self, file: &PlannedFile, range: FileRange, routed: &mut Routed) {
        let mut staged: Option<Range<u64>> = None;
        for part in FileRange::within(range.file, file, range.file_range()) {
            let body = self.body(part);
            let before = body.map_or(part.len_bytes, |body| body.file_offset - part.file_offset);
            extend(&mut staged, part.part(0, before).file_range());
            let Some(body) = body else { continue };
            push_spans(range.file, &mut staged, &mut routed.spans);
            let mut piece = body.piece(Route::Direct);
            piece.step_bytes = self.offset.bytes();
            routed.pieces.push(piece);
            let done = before + body.len_bytes;
            extend(&mut staged, part.part(done, part.len_bytes - done).file_range());
        }
        push_spans(range.file, &mut staged, &mut routed.spans);
    }

    /// Returns the whole blocks of a part if they are long enough and can be read directly to their
    /// place.
    fn body(self, part: FileRange) -> Option<FileRange> {
        // The buffer begins at a huge page, so its offsets have the same alignment as its addresses.
        let start = self.offset.checked_round_up(part.file_offset)?;
        let end = self.offset.round_down(part.file_offset + part.len_bytes);
        let len_bytes = end.checked_sub(start).filter(|len| *len >= DIRECT_PART_MIN_BYTES)?;
        let body = part.part(start - part.file_offset, len_bytes);
        self.memory?.is_aligned(body.buffer_offset).then_some(body)
    }
}

fn extend(staged: &mut Option<Range<u64>>, range: Range<u64>) {
    if !range.is_empty() {
        let start = staged.as_ref().map_or(range.start, |staged| staged.start);
        *staged = Some(start..range.end);
    }
}

fn push_spans(file: usize, staged: &mut Option<Range<u64>>, spans: &mut Vec<Span>) {
    let Some(range) = staged.take() else { return };
    spans.extend(in_file(file, range).cut(SPAN_BYTES).map(|part| {
        let FileRange { file, file_offset, len_bytes, .. } = part;
        Span { file, file_offset, len_bytes }
    }));
}

/// A probe for the ranges of a file that are in the page cache.
struct Residency<'a> {
    file: &'a PlannedFile,
    counts: bool,
}

impl<'a> Residency<'a> {
    fn new(file: &'a PlannedFile) -> Self {
        let stat = |fd| page_cache::stat(fd, FileOffset::new(0), 1).is_ok();
        let counts = file.source().buffered().is_some_and(stat);
        if !counts {
            // A probe of a page that is not resident must not read other pages.
            let _ = file.source().buffered().map(page_cache::expect_random_reads);
        }
        Self { file, counts }
    }

    /// Splits `part` into ranges that are resident and ranges that are not.
    fn split(&self, part: FileRange, mut each: impl FnMut(FileRange, bool)) {
        if !self.counts {
            // Without `cachestat`, try to read both ends without waiting. The read of the piece itself
            // finds the pages in between that are not resident.
            let at = |offset| self.is_resident(offset);
            let last = part.file_offset + part.len_bytes - 1;
            each(part, at(part.file_offset) && at(last));
            return;
        }
        let all = pages_of(part);
        match self.cached_pages(part) {
            0 => each(part, false),
            cached if cached >= all => each(part, true),
            _ => {
                let mut run: Option<(FileRange, bool)> = None;
                for unit in part.cut(RESIDENCY_UNIT_BYTES) {
                    let resident = self.cached_pages(unit) >= pages_of(unit);
                    match &mut run {
                        Some((so_far, state)) if *state == resident => {
                            so_far.len_bytes += unit.len_bytes;
                        }
                        _ => {
                            if let Some((done, state)) = run.replace((unit, resident)) {
                                each(done, state);
                            }
                        }
                    }
                }
                if let Some((done, state)) = run {
                    each(done, state);
                }
            }
        }
    }

    fn cached_pages(&self, part: FileRange) -> u64 {
        let offset = FileOffset::new(part.file_offset);
        let stat = |fd| page_cache::stat(fd, offset, part.len_bytes).ok();
        self.file.source().buffered().and_then(stat).map_or(0, |counted| counted.cached_pages)
    }

    fn is_resident(&self, offset: u64) -> bool {
        let is_resident = |fd| page_cache::is_resident(fd, FileOffset::new(offset)).ok();
        self.file.source().buffered().and_then(is_resident).unwrap_or(false)
    }
}

/// Returns the number of pages of the file that a range touches.
fn pages_of(part: FileRange) -> u64 {
    let page_bytes = page_size_bytes() as u64;
    (part.file_offset + part.len_bytes).div_ceil(page_bytes) - part.file_offset / page_bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covered(pieces: &[Piece], part: FileRange) -> bool {
        let mut at = part.file_offset;
        for piece in pieces {
            if piece.file_offset != at || piece.len_bytes == 0 {
                return false;
            }
            at += piece.len_bytes;
        }
        at == part.file_offset + part.len_bytes
    }

    fn part(file_offset: u64, len_bytes: u64) -> Part {
        Part::new(file_offset, 0, len_bytes)
    }

    #[test]
    fn gaps_between_distant_parts_are_skipped() {
        // This offset is 4 bytes into a unit.
        let far = 1 << 62;
        let parts = [part(10, 20), part(500, 1), part(far, 100), part(far + 250, 7)];
        let runs = runs(&parts, 100);
        assert_eq!(runs, [10..30, 500..501, far..far + 257]);
        let cut = |range: &Range<u64>| in_file(0, range.clone()).cut(100);
        assert_eq!(runs.iter().flat_map(cut).take(10).count(), 1 + 1 + 3);
    }

    proptest! {
        #[test]
        fn runs_contain_every_part_and_no_empty_unit(
            sizes in prop::collection::vec((0u64..300, 1u64..300), 1..20), unit in 1u64..128,
        ) {
            let mut end = 0;
            let parts: Vec<Part> = sizes.iter().map(|(gap, len_bytes)| {
                let start = end + gap;
                end = start + len_bytes;
                part(start, *len_bytes)
            }).collect();
            let runs = runs(&parts, unit);
            for part in &parts {
                let (start, end) = (part.file_offset, part.file_offset + part.len_bytes);
                let around = runs.iter().filter(|run| run.start <= start && end <= run.end);
                prop_assert_eq!(around.count(), 1);
            }
            prop_assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for window in runs.into_iter().flat_map(|run| in_file(0, run).cut(unit)) {
                let (start, end) = (window.file_offset, window.file_offset + window.len_bytes);
                let within = |part: &&Part| {
                    part.file_offset < end && start < part.file_offset + part.len_bytes
                };
                prop_assert!(parts.iter().any(|part| within(&part)), "{}..{}", start, end);
            }
        }
    }

    proptest! {
        #[test]
        fn direct_pieces_are_aligned_and_cover_their_part(
            file_offset in 0u64..20_000, len_bytes in 1u64..40_000, log2 in 0u32..14, tail_fits: bool,
        ) {
            let offset = Granule::new(1 << log2).unwrap();
            let way = AlignedWay { offset, tail_fits };
            let buffer_offset = 65_536 + file_offset % offset.bytes();
            let part = FileRange { file: 0, file_offset, buffer_offset, len_bytes };
            let mut pieces = Vec::new();
            way.pieces(part, Route::Buffered, &mut pieces);
            prop_assert!(covered(&pieces, part), "{:?}", pieces);
            for piece in &pieces {
                if piece.route == Route::Direct {
                    prop_assert!(offset.is_aligned(piece.file_offset));
                    prop_assert!(offset.is_aligned(piece.buffer_offset));
                    prop_assert!(offset.is_aligned(piece.read_bytes));
                    prop_assert!(piece.read_bytes - piece.len_bytes < offset.bytes());
                    prop_assert!(tail_fits || piece.read_bytes == piece.len_bytes);
                } else {
                    prop_assert_eq!(piece.read_bytes, piece.len_bytes);
                    prop_assert!(piece.len_bytes < offset.bytes());
                }
            }
        }
    }
}
