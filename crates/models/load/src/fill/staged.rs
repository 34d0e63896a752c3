//! Staged reads: direct reads into a staging buffer, for bytes whose places do not suit direct I/O. The
//! bytes are copied to their places while they are in the CPU cache.
//!
//! A direct read needs a memory address that is aligned like the file offset. In an aligned layout
//! ([`longshore_formats::Image`]) most tensors have moved, so their addresses are not. A few threads
//! each read a contiguous span of the file, and copy its tensors to their places. While one thread
//! copies, the others read.
//!
//! One more thread prefaults the destination pages, ahead of the copies. If each thread prefaults its
//! own pages, all of them wait for the lock on the mappings of the process, and the disk idles: a load
//! then took 1.21 times as long as one without an alignment. With the extra thread it takes 1.05 to
//! 1.16 times as long, and more the faster the disk is. Non-temporal stores made no difference.
#![expect(unsafe_code, reason = "copies into ranges of the buffer")]

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_heap::Heap;
use longshore_iov::{Cursor, Dest, copy};
use longshore_mem::{FileOffset, Granule, VolatileSliceMut};

use super::ahead::{Feed, Frontier};
use super::piece::{FileRange, Piece, Route};
use super::target::{InFlight, Target};
use super::workers::Reads;
use crate::error::Error;
use crate::plan::Plan;

/// The maximum length of a staged read. Spans do not cross multiples of it in the file.
pub(super) const SPAN_BYTES: u64 = 4 << 20;

/// The maximum number of staged reads in flight.
pub(super) const SPANS_IN_FLIGHT_MAX: usize = 8;

/// The maximum length of all staging buffers together.
pub(crate) const STAGING_MAX_BYTES: u64 = SPANS_IN_FLIGHT_MAX as u64 * SPAN_BYTES;

/// A staged read: a range of a file with tensors and the gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) file: usize,
    pub(super) file_offset: u64,
    pub(super) len_bytes: u64,
}

/// The places of the bytes of all spans.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The pieces, in the order of the spans, and within a span in the order of the file.
    pub(super) pieces: Vec<Piece>,
    /// For each span, the index in `pieces` behind its last piece.
    ends: Vec<usize>,
}

/// A queue of spans that several threads read.
pub(super) struct Spans<'a> {
    spans: &'a [Span],
    places: &'a Places,
    /// The pages of the places, which another thread prefaults.
    frontier: &'a Frontier<'a>,
    next: AtomicUsize,
}

impl Places {
    pub(super) fn of(spans: &[Span], plan: &Plan) -> Self {
        let mut places = Self::default();
        for span in spans {
            let file = &plan.files()[span.file];
            let parts = FileRange::within(span.file, file, span.range());
            let route = match file.source().object() {
                None => Route::Staged,
                Some(_) => Route::Remote,
            };
            places.pieces.extend(parts.map(|part| part.piece(route)));
            places.ends.push(places.pieces.len());
        }
        places
    }

    fn of_span(&self, index: usize) -> Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[index]
    }
}

impl<'a> Spans<'a> {
    pub(super) fn new(spans: &'a [Span], places: &'a Places, frontier: &'a Frontier<'a>) -> Self {
        Self { spans, places, frontier, next: AtomicUsize::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Reads spans and copies their bytes to their places, until no span is left or the fill is stopped.
    /// The staging buffer is in huge pages if possible, because disks are faster with them.
    pub(super) fn run(&self, target: &Target<'_>, reads: &dyn Reads) {
        let mut memory = match Heap::Memfd.allocate(SPAN_BYTES) {
            Ok(memory) => memory,
            Err(error) => return target.tracker.fail(error.into()),
        };
        let mut staging = match memory.write() {
            Ok(staging) => staging,
            Err(error) => return target.tracker.fail(error.into()),
        };
        while !target.tracker.should_stop() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(span) = self.spans.get(index) else { return };
            let Some(staged) = read(span, target, reads, &mut staging) else { return };
            if self.place(index, staged, target).is_none() {
                return;
            }
        }
    }

    /// Copies the bytes of a span to their places, once their pages are prefaulted. Returns `None` if
    /// the fill fails or is stopped.
    fn place(&self, index: usize, staged: &[u8], target: &Target<'_>) -> Option<()> {
        let span = &self.spans[index];
        for at in self.places.of_span(index) {
            let piece = loop {
                if target.tracker.should_stop() {
                    return None;
                }
                if let Some(piece) = self.frontier.get(at, true) {
                    break piece;
                }
            };
            let from = (piece.file_offset - span.file_offset) as usize;
            let Some(bytes) = staged.get(from..from + piece.len_bytes as usize) else {
                target.tracker.fail(unfit("a piece is not within its span"));
                return None;
            };
            let flight = InFlight { piece, done_bytes: 0 };
            // SAFETY: parts of a layout do not overlap, each span is taken by one thread, and this
            // thread has no other window.
            let window = unsafe { target.window(&flight) }?;
            let copied = copy::write(&mut Cursor::<Dest>::foreign_buf(window), bytes);
            if target.book(flight, copied.map_err(io::Error::other)).is_some() {
                target.tracker.fail(unfit("a copy was incomplete"));
                return None;
            }
            self.frontier.used(&piece);
        }
        Some(())
    }
}

impl Span {
    fn range(&self) -> Range<u64> {
        self.file_offset..self.file_offset + self.len_bytes
    }
}

/// Reads a span and returns its bytes; `None` if the fill fails or is stopped.
fn read<'s>(
    span: &Span,
    target: &Target<'_>,
    reads: &dyn Reads,
    staging: &'s mut [u8],
) -> Option<&'s [u8]> {
    let source = target.plan.files()[span.file].source();
    let Range { start, end } = span.range();
    let block = source.direct().map_or(Granule::SIZE_4K, |(_, alignment)| alignment.offset);
    // The span lies between two multiples of SPAN_BYTES, and so do the blocks that it touches.
    let first = block.round_down(start);
    let room = block.checked_round_up(end).and_then(|end| usize::try_from(end - first).ok());
    let Some(staging) = room.and_then(|room| staging.get_mut(..room)) else {
        target.tracker.fail(unfit("the blocks of the disk do not fit into the staging buffer"));
        return None;
    };
    if let Some(object) = source.object() {
        let place = &mut staging[(start - first) as usize..(end - first) as usize];
        let read = object.read(&mut VolatileSliceMut::from(&mut *place), start, &|| {
            target.tracker.should_stop()
        });
        return match read {
            Ok(()) => Some(place),
            Err(error) => {
                let done_bytes = target.tracker.done_bytes();
                let failed = Error::of_object(source.path(), start..end, done_bytes, error);
                target.tracker.fail(failed);
                None
            }
        };
    }
    let mut done = 0;
    while first + done < end {
        if target.tracker.should_stop() {
            return None;
        }
        let mut rest = VolatileSliceMut::from(&mut staging[done as usize..]);
        match reads.read(source, Route::Staged, &mut rest, FileOffset::new(first + done)) {
            Ok(bytes) => {
                let reached = done + bytes as u64;
                // A read that stops within a block has reached the end of the file.
                if first + reached < end && (bytes == 0 || !block.is_aligned(reached)) {
                    let (path, len_bytes) = (source.path().to_owned(), source.len());
                    target.tracker.fail(Error::Truncated {
                        path,
                        ended_at: first + reached,
                        len_bytes,
                    });
                    return None;
                }
                done = reached;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let failed = Error::Read {
                    path: source.path().to_owned(),
                    range: (first + done).max(start)..end,
                    done_bytes: target.tracker.done_bytes(),
                    source: error,
                };
                target.tracker.fail(failed);
                return None;
            }
        }
    }
    // The blocks cover the span, so this range is within them.
    Some(&staging[(start - first) as usize..(end - first) as usize])
}

/// Returns the error for an internal inconsistency. It is not a panic, so that other threads stop, too.
fn unfit(reason: &'static str) -> Error {
    Error::Process { operation: "a staged read", source: io::Error::other(reason) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::fill::KernelReads;
    use crate::progress::CancelToken;

    #[test]
    fn an_inconsistent_span_fails_the_fill() {
        let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let plan = Plan::from_path(file.path()).unwrap();
        let reservation = Heap::Memfd.reserve(plan.len_bytes()).unwrap();
        let cancel = CancelToken::new();
        let span = Span { file: 0, file_offset: 5000, len_bytes: 4000 };
        let spans = [span];
        let piece = FileRange { file: 0, file_offset: 5000, buffer_offset: 0, len_bytes: 4000 };
        let places = Places { pieces: vec![piece.piece(Route::Staged)], ends: vec![1] };

        let target = Target::new(&plan, &reservation, &cancel, false);
        let mut memory = Heap::Memfd.allocate(16 << 10).unwrap();
        let mut large = memory.write().unwrap();
        let bytes = read(&span, &target, &KernelReads, &mut large);
        assert!(bytes.is_some_and(|bytes| *bytes == [7; 4000]));
        assert!(!target.tracker.should_stop());
        let mut small = vec![0; 100];
        assert_eq!(read(&span, &target, &KernelReads, &mut small), None);
        assert!(target.tracker.should_stop(), "the fill goes on");
        let refused = target.tracker.outcome().unwrap_err();
        assert!(matches!(refused, Error::Process { .. }), "{refused}");

        let target = Target::new(&plan, &reservation, &cancel, false);
        let frontier = Frontier::new(&places.pieces, 1 << 20);
        frontier.run(&target);
        let staged = Spans::new(&spans, &places, &frontier);
        assert_eq!(staged.place(0, &[7; 3999], &target), None);
        assert!(target.tracker.should_stop(), "the fill goes on");
        let refused = target.tracker.outcome().unwrap_err();
        assert!(refused.to_string().contains("a staged read"), "{refused}");
    }
}
