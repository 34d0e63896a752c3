//! Reads by `preadv2`, each thread populating what it reads just before it does.
//!
//! For content in the page cache that is the fastest there is: a huge page is zeroed and then
//! copied into while it is still in the core's cache, so the zeroing costs little beside the copy.
#![expect(unsafe_code, reason = "takes the window of the piece it reads")]

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_mem::{FileOffset, VolatileSliceMut};
use longshore_sys::file::{self, ReadFlags};

use super::piece::{Piece, Route};
use super::target::{InFlight, Target};
use crate::source::SourceFile;

/// Populated and read in one go: small enough to stay in a core's second-level cache.
const BITE_BYTES: u64 = 2 << 20;

/// The reads that workers make. The kernel's, but for tests that stand in for it.
pub(crate) trait Reads: Sync {
    /// Reads once, by `route`, as far as one call goes.
    fn read(
        &self,
        source: &SourceFile,
        route: Route,
        memory: &mut VolatileSliceMut<'_>,
        offset: FileOffset,
    ) -> io::Result<usize>;

    /// Whether direct reads may go through io_uring instead.
    fn through_ring(&self) -> bool {
        true
    }
}

/// The kernel's reads.
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
        match (route, source.direct()) {
            (Route::Direct | Route::Staged, Some((direct, _))) => {
                file::read_at(direct, memory, offset, flags)
            }
            _ => file::read_at(source.buffered(), memory, offset, flags),
        }
    }
}

/// Pieces that several threads read, each taking the next.
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

    /// Reads pieces until none is left or the fill is stopped.
    pub(super) fn run(&self, target: &Target<'_>, reads: &dyn Reads) {
        while !target.tracker.should_stop() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(index) else { return };
            read_piece(target, reads, *piece);
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
        // SAFETY: each piece is taken from the queue by one thread, and the window of the last
        // read is gone.
        let Some(window) = (unsafe { target.window(&current) }) else { return };
        let Some(mut bite) = populated_bite(target, &current, window) else { return };
        let offset = FileOffset::new(piece.file_offset + current.done_bytes);
        let result = reads.read(source, piece.route, &mut bite, offset);
        flight = match result {
            // It was evicted meanwhile, or cannot be read without waiting at all: what is left is
            // read from the disk, after the others.
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

/// The next bytes to read, whose pages exist. For direct reads that is the whole piece, since the
/// disk is faster the more it is asked for at once.
fn populated_bite<'m>(
    target: &Target<'_>,
    flight: &InFlight,
    window: VolatileSliceMut<'m>,
) -> Option<VolatileSliceMut<'m>> {
    let mut part = flight.piece;
    part.buffer_offset += flight.done_bytes;
    part.read_bytes -= flight.done_bytes;
    if part.route != Route::Direct {
        // Up to the next boundary, so that the next bite begins a huge page.
        let to_boundary = BITE_BYTES - part.buffer_offset % BITE_BYTES;
        part.read_bytes = part.read_bytes.min(to_boundary);
    }
    if !target.populate(&part) {
        return None;
    }
    let len_bytes = usize::try_from(part.read_bytes).unwrap_or(window.len());
    window.split_at_mut(len_bytes).ok().map(|(bite, _)| bite)
}
