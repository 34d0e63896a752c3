//! Reads by `preadv2`: each thread prefaults the pages of a read just before the read.
//!
//! This is the fastest way for content in the page cache. A huge page is zeroed, and filled while it is
//! still in the cache of the core, so zeroing costs little compared with the copy.
#![expect(unsafe_code, reason = "lends ranges of the buffer to its reads")]

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_mem::{FileOffset, VolatileSliceMut};
use longshore_sys::file::{self, ReadFlags};

use super::ahead::{Fed, Feed};
use super::piece::{Piece, Route};
use super::target::{InFlight, Target};
use crate::object::ReadControl;
use crate::source::SourceFile;

/// The number of bytes that are prefaulted and then read, small enough for a core's second-level cache.
const BITE_BYTES: u64 = 2 << 20;

/// The reads that workers make. Tests implement it to inject faults.
pub(crate) trait Reads: Sync {
    /// Makes one read by `route`, which can be short.
    fn read(
        &self,
        source: &SourceFile,
        route: Route,
        memory: &mut VolatileSliceMut<'_>,
        offset: FileOffset,
    ) -> io::Result<usize>;

    /// Returns `true` if io_uring may make the direct reads instead.
    fn through_ring(&self) -> bool {
        true
    }
}

/// Reads by the kernel.
pub(crate) struct KernelReads;

impl Reads for KernelReads {
    fn read(
        &self,
        source: &SourceFile,
        route: Route,
        memory: &mut VolatileSliceMut<'_>,
        offset: FileOffset,
    ) -> io::Result<usize> {
        let flags = ReadFlags {
            resident_only: route == Route::Resident,
            uncached: route == Route::Uncached,
        };
        match (route, source.direct(), source.buffered()) {
            (Route::Direct | Route::Staged, Some((direct, _)), _) => {
                file::read_at(direct, memory, offset, flags)
            }
            (_, _, Some(buffered)) => file::read_at(buffered, memory, offset, flags),
            (_, _, None) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// A queue of pieces that several threads read.
pub(super) struct Queue<'a> {
    pieces: &'a [Piece],
    next: AtomicUsize,
}

impl<'a> Queue<'a> {
    pub(super) fn new(pieces: &'a [Piece]) -> Self {
        Self { pieces, next: AtomicUsize::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the number of pieces that no thread has taken.
    pub(super) fn left(&self) -> usize {
        self.pieces.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }
}

impl Feed for Queue<'_> {
    fn next(&self, _patience: bool) -> Fed {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        self.pieces.get(index).map_or(Fed::End, |piece| Fed::Piece(*piece))
    }

    fn used(&self, _piece: &Piece) {}
}

/// Reads pieces until there are no more or the fill is stopped.
pub(crate) fn run(feed: &dyn Feed, target: &Target<'_>, reads: &dyn Reads) {
    while !target.tracker.should_stop() {
        match feed.next(true) {
            Fed::Piece(piece) => {
                read_piece(target, reads, piece);
                feed.used(&piece);
            }
            Fed::NotYet => {}
            Fed::End => return,
        }
    }
}

fn read_piece(target: &Target<'_>, reads: &dyn Reads, piece: Piece) {
    let source = target.file(&piece).source();
    let mut flight = Some(InFlight { piece, done_bytes: 0 });
    while let Some(current) = flight {
        if target.tracker.should_stop() {
            return;
        }
        // SAFETY: a feed returns each piece once, and the window of the previous
        // read was dropped.
        let Some(window) = (unsafe { target.window(&current) }) else { return };
        let Some(mut bite) = populated_bite(target, &current, window) else { return };
        let offset = FileOffset::new(piece.file_offset + current.done_bytes);
        if let Some(object) = source.object() {
            let read = target.tracker.begin_remote_read(bite.len());
            match object.read(&mut bite, offset.raw(), &read) {
                Ok(()) => {
                    read.filled(bite.len());
                    flight = target.book(current, Ok(bite.len()));
                }
                Err(error) => return target.fail_object(&piece, error),
            }
            continue;
        }
        let result = reads.read(source, piece.route, &mut bite, offset);
        flight = match result {
            // The page was evicted meanwhile, or the file system does not support reads without
            // waiting. The rest is read from the disk later.
            Err(error) if piece.route == Route::Resident && cannot_now(&error) => {
                target.give_back(current);
                return;
            }
            result => target.book(current, result),
        };
    }
}

fn cannot_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Unsupported)
}

/// Prefaults and returns the range of the next read. For direct reads that is the rest of the piece,
/// because disks are faster with larger reads.
fn populated_bite<'m>(
    target: &Target<'_>,
    flight: &InFlight,
    window: VolatileSliceMut<'m>,
) -> Option<VolatileSliceMut<'m>> {
    let mut part = flight.piece;
    part.buffer_offset += flight.done_bytes;
    part.read_bytes -= flight.done_bytes;
    if !matches!(part.route, Route::Direct | Route::Remote) {
        // Stop at the next boundary, so that the next read begins at a huge page.
        let to_boundary = BITE_BYTES - part.buffer_offset % BITE_BYTES;
        part.read_bytes = part.read_bytes.min(to_boundary);
    }
    if !target.populate(&part) {
        return None;
    }
    let len_bytes = usize::try_from(part.read_bytes).unwrap_or(window.len());
    window.split_at_mut(len_bytes).ok().map(|(bite, _)| bite)
}
