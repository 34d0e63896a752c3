//! Which way each piece takes.
//!
//! A direct read needs the file offset, the memory and the length aligned as the file system says
//! (`statx`). Where the file and the buffer are skewed against each other it is impossible; where
//! only the ends are odd, the head goes through the page cache and the tail reads its whole last
//! block into the slack behind it, which is zeroed afterwards.

use longshore_heap::Reservation;
use longshore_mem::{FileOffset, Granule};
use longshore_sys::file::{self, DirectAlignment, ReadFlags};
use longshore_sys::{page_cache, page_size_bytes};

use super::Tuning;
use super::piece::{Piece, Route, Stretch};
use crate::error::{Error, Result};
use crate::mode::ReadMode;
use crate::plan::{FILE_ALIGNMENT, Plan, PlannedFile};

/// A piece that is partly resident is looked at in units of this: less is not worth a read of its
/// own beside the disk's.
const RESIDENCY_UNIT_BYTES: u64 = 1 << 20;

/// Cuts the plan into pieces and gives each its route, in the order of the buffer.
pub(super) fn pieces(
    plan: &Plan,
    reservation: &Reservation,
    tuning: &Tuning,
) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    for stretch in Stretch::of_plan(plan) {
        let file = &plan.files()[stretch.file];
        let ways = Ways::of(file, reservation);
        let mode = if file.source().asked_direct() { ReadMode::Direct } else { tuning.mode };
        match mode {
            ReadMode::Auto => {
                let probe = Residency::new(file);
                for part in stretch.cut(tuning.piece_bytes) {
                    probe.split(part, |part, resident| {
                        if resident {
                            pieces.push(part.piece(Route::Resident));
                        } else {
                            ways.push_from_disk(part, &mut pieces);
                        }
                    });
                }
                if ways.direct.is_ok() {
                    // What is resident is copied, and nothing beside it is to become so.
                    let _ = page_cache::expect_random_reads(file.source().buffered());
                } else {
                    read_ahead_again(file);
                }
            }
            ReadMode::Direct => {
                ways.direct.map_err(|reason| unavailable(file, mode, reason))?;
                for part in stretch.cut(tuning.piece_bytes) {
                    ways.push_from_disk(part, &mut pieces);
                }
            }
            ReadMode::Uncached => {
                if !takes_uncached(file) {
                    let reason = "this kernel or file system has no RWF_DONTCACHE (Linux 6.14; \
                                  ext4, xfs); use mode direct or auto";
                    return Err(unavailable(file, mode, reason));
                }
                pieces.extend(stretch.cut(tuning.piece_bytes).map(|p| p.piece(Route::Uncached)));
            }
            ReadMode::Buffered => {
                read_ahead_again(file);
                pieces.extend(stretch.cut(tuning.piece_bytes).map(|p| p.piece(Route::Buffered)));
            }
        }
    }
    Ok(pieces)
}

/// Undoes what probing asked for. An advice that is not taken costs speed and nothing else.
fn read_ahead_again(file: &PlannedFile) {
    let _ = page_cache::expect_sequential_reads(file.source().buffered());
}

/// The pieces that read `stretches` from the disk, whatever the page cache holds.
pub(super) fn from_disk(
    plan: &Plan,
    reservation: &Reservation,
    tuning: &Tuning,
    stretches: &[Stretch],
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for stretch in stretches {
        let ways = Ways::of(&plan.files()[stretch.file], reservation);
        for part in stretch.cut(tuning.piece_bytes) {
            ways.push_from_disk(part, &mut pieces);
        }
    }
    pieces
}

fn unavailable(file: &PlannedFile, mode: ReadMode, reason: &str) -> Error {
    Error::ModeUnavailable {
        path: file.source().path().to_owned(),
        mode,
        reason: reason.to_owned(),
    }
}

/// The best way from the disk for one file, and the next best for odd ends.
struct Ways {
    direct: std::result::Result<DirectWay, &'static str>,
    through_cache: Route,
}

impl Ways {
    fn of(file: &PlannedFile, reservation: &Reservation) -> Self {
        match DirectWay::of(file, reservation) {
            // What is left beside direct reads is less than a block at either end.
            Ok(way) => Self { direct: Ok(way), through_cache: Route::Buffered },
            Err(why_not) => {
                let uncached = takes_uncached(file);
                let through_cache = if uncached { Route::Uncached } else { Route::Buffered };
                Self { direct: Err(why_not), through_cache }
            }
        }
    }

    /// Adds the pieces that read `part` from the disk.
    fn push_from_disk(&self, part: Stretch, pieces: &mut Vec<Piece>) {
        match self.direct {
            Ok(direct) => direct.pieces(part, self.through_cache, pieces),
            Err(_) => pieces.push(part.piece(self.through_cache)),
        }
    }
}

/// Whether a read with `RWF_DONTCACHE` is accepted: asked with one of a single byte, since one of
/// none is accepted by every kernel.
fn takes_uncached(file: &PlannedFile) -> bool {
    let flags = ReadFlags { uncached: true, ..ReadFlags::default() };
    file::read_into(file.source().buffered(), &mut [0], FileOffset::new(0), flags).is_ok()
}

/// How direct reads of one file have to be aligned.
#[derive(Clone, Copy, Debug)]
struct DirectWay {
    /// Of offsets and lengths.
    offset: Granule,
    /// A tail's last block may be read whole: the slack behind the file in the buffer takes it.
    tail_fits: bool,
}

impl DirectWay {
    /// The way, or why there is none.
    fn of(
        file: &PlannedFile,
        reservation: &Reservation,
    ) -> std::result::Result<Self, &'static str> {
        let (_, alignment) = file.source().direct().ok_or(
            "its file system offers no direct I/O (statx reports no alignment, or O_DIRECT is \
             refused); use mode auto",
        )?;
        if !reservation.takes_direct_io() {
            return Err(
                "the kernel refuses direct I/O into a dma-heap buffer; use heap udmabuf or \
                        memfd, or mode auto",
            );
        }
        Self::new(file.range().start().raw(), file.buffer_offset(), alignment).ok_or(
            "the range begins at an offset that direct I/O cannot place at a page boundary; use \
             mode auto",
        )
    }

    /// `None` where no read of the range can be aligned in file and memory at once.
    fn new(file_offset: u64, buffer_offset: u64, alignment: DirectAlignment) -> Option<Self> {
        let skew = file_offset ^ buffer_offset;
        // Within a block the file and the buffer must run alike, or no offset fits both. The buffer
        // itself begins at a huge page.
        let strictest = alignment.offset.max(alignment.memory);
        if !strictest.is_aligned(skew) {
            return None;
        }
        let tail_fits =
            strictest <= FILE_ALIGNMENT && strictest.bytes() <= page_size_bytes() as u64;
        Some(Self { offset: strictest, tail_fits })
    }

    /// Adds the pieces that read `part` directly, and its odd ends by `through_cache`.
    fn pieces(self, part: Stretch, through_cache: Route, pieces: &mut Vec<Piece>) {
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

/// Which parts of a file are in the page cache.
struct Residency<'a> {
    file: &'a PlannedFile,
    counts: bool,
}

impl<'a> Residency<'a> {
    fn new(file: &'a PlannedFile) -> Self {
        let counts = page_cache::stat(file.source().buffered(), FileOffset::new(0), 1).is_ok();
        if !counts {
            // A probe that misses must not bring in more than its own page.
            let _ = page_cache::expect_random_reads(file.source().buffered());
        }
        Self { file, counts }
    }

    /// Splits `part` into runs that are resident and runs that are not.
    fn split(&self, part: Stretch, mut each: impl FnMut(Stretch, bool)) {
        if !self.counts {
            // Not told: try to read both ends without waiting. What is missing in between is
            // found out by the read itself.
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
                let mut run: Option<(Stretch, bool)> = None;
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

    fn cached_pages(&self, part: Stretch) -> u64 {
        let offset = FileOffset::new(part.file_offset);
        page_cache::stat(self.file.source().buffered(), offset, part.len_bytes)
            .map_or(0, |counted| counted.cached_pages)
    }

    fn is_resident(&self, offset: u64) -> bool {
        page_cache::is_resident(self.file.source().buffered(), FileOffset::new(offset))
            .unwrap_or(false)
    }
}

/// How many pages of the file a stretch touches.
fn pages_of(part: Stretch) -> u64 {
    let page_bytes = page_size_bytes() as u64;
    (part.file_offset + part.len_bytes).div_ceil(page_bytes) - part.file_offset / page_bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covered(pieces: &[Piece], part: Stretch) -> bool {
        let mut at = part.file_offset;
        for piece in pieces {
            if piece.file_offset != at || piece.len_bytes == 0 {
                return false;
            }
            at += piece.len_bytes;
        }
        at == part.file_offset + part.len_bytes
    }

    proptest! {
        #[test]
        fn direct_pieces_are_aligned_and_cover_their_part(
            file_offset in 0u64..20_000, len_bytes in 1u64..40_000, log2 in 0u32..14, tail_fits: bool,
        ) {
            let offset = Granule::new(1 << log2).unwrap();
            let way = DirectWay { offset, tail_fits };
            let buffer_offset = 65_536 + file_offset % offset.bytes();
            let part = Stretch { file: 0, file_offset, buffer_offset, len_bytes };
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
