//! The target of a fill: it prefaults pages, lends ranges of the buffer to reads, and handles their
//! results.

use std::io;
use std::time::Instant;

use longshore_heap::Reservation;
use longshore_iov::{Cursor, Dest, copy};
use longshore_mem::VolatileSliceMut;

use super::piece::{Next, Piece};
use super::tracker::Tracker;
use crate::error::Error;
use crate::object::ObjectError;
use crate::plan::{Plan, PlannedFile};
use crate::progress::{CancelToken, Progress};

/// The memory and the progress of one fill.
pub(crate) struct Target<'a> {
    pub(super) plan: &'a Plan,
    reservation: &'a Reservation,
    pub(crate) tracker: Tracker<'a>,
    /// The function that gets complete ranges of the buffer; `None` if the tracker keeps them.
    completed: Option<&'a Completed<'a>>,
}

/// A function that gets the offset and the length of a complete range of the buffer.
pub(crate) type Completed<'a> = dyn Fn(u64, u64) + Sync + 'a;

/// A piece that is being read. Pass the result of each read to [`Target::book`].
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) piece: Piece,
    pub(super) done_bytes: u64,
}

impl<'a> Target<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        reservation: &'a Reservation,
        cancel: &'a CancelToken,
        follow: bool,
    ) -> Self {
        let tracker = Tracker::new(plan.content_bytes(), cancel, follow);
        Self { plan, reservation, tracker, completed: None }
    }

    /// Makes the target of a stream of `total_bytes`. The files are those of `plan`, but their places in
    /// the buffer are those of the pieces.
    pub(crate) fn of_stream(
        plan: &'a Plan,
        reservation: &'a Reservation,
        total_bytes: u64,
        cancel: &'a CancelToken,
        completed: &'a Completed<'a>,
    ) -> Self {
        let tracker = Tracker::new(total_bytes, cancel, false);
        Self { plan, reservation, tracker, completed: Some(completed) }
    }

    fn complete(&self, buffer_offset: u64, len_bytes: u64) {
        match self.completed {
            Some(completed) => completed(buffer_offset, len_bytes),
            None => self.tracker.complete(buffer_offset, len_bytes),
        }
    }

    /// Reports the progress to `observe`, and the number of bytes of memory that the fill can still
    /// take.
    pub(super) fn report(&self, observe: &mut dyn FnMut(Progress, u64)) {
        let progress = self.tracker.progress();
        let left_bytes = match self.tracker.takes_no_more() {
            true => 0,
            false => self.plan.len_bytes().saturating_sub(progress.done_bytes),
        };
        observe(progress, left_bytes);
    }

    pub(super) fn fail_read(&self, piece: &Piece, done_bytes: u64, source: io::Error) {
        let range = piece.file_range();
        self.tracker.fail(Error::Read {
            path: self.file(piece).source().path().to_owned(),
            range: range.start + done_bytes..range.end,
            done_bytes: self.tracker.done_bytes(),
            source,
        });
    }

    pub(super) fn fail_object(&self, piece: &Piece, error: ObjectError) {
        let path = self.file(piece).source().path();
        let done_bytes = self.tracker.done_bytes();
        self.tracker.fail(Error::of_object(path, piece.file_range(), done_bytes, error));
    }

    pub(crate) fn file(&self, piece: &Piece) -> &'a PlannedFile {
        &self.plan.files()[piece.file]
    }

    /// Prefaults the pages of a piece. Returns `false` if that fails or the fill is stopped.
    pub(crate) fn populate(&self, piece: &Piece) -> bool {
        let Some(_prefaulting) = self.tracker.begin_prefault() else { return false };
        let began = Instant::now();
        let made = self.reservation.populate(piece.target());
        self.tracker.populated(began.elapsed());
        made.map_err(|error| self.tracker.fail(error.into())).is_ok()
    }

    /// Returns the range of the buffer that the next read of a piece writes.
    ///
    /// # Safety
    /// Only the caller has this piece, and it has no other window of it.
    #[expect(unsafe_code, reason = "lends out the range of one piece")]
    pub(super) unsafe fn window(&self, flight: &InFlight) -> Option<VolatileSliceMut<'a>> {
        let target = flight.piece.target();
        let range = target.start + flight.done_bytes..target.end;
        // SAFETY: pieces do not overlap, and only the caller has this one.
        match unsafe { self.reservation.window(range) } {
            Ok(window) => Some(window),
            Err(error) => {
                self.tracker.fail(error.into());
                None
            }
        }
    }

    /// Records the result of a read. Returns the piece if it needs another read.
    pub(super) fn book(&self, flight: InFlight, result: io::Result<usize>) -> Option<InFlight> {
        let InFlight { piece, done_bytes } = flight;
        let read_bytes = match result {
            Ok(read_bytes) => read_bytes as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Some(flight),
            Err(error) => {
                self.fail_read(&piece, done_bytes, error);
                return None;
            }
        };
        match piece.after_read(done_bytes, read_bytes) {
            Next::Again { done_bytes: now_done } => {
                self.tracker.count(piece.route, now_done - done_bytes);
                Some(InFlight { piece, done_bytes: now_done })
            }
            Next::EndedAt(ended_at) => {
                let source = self.file(&piece).source();
                let (path, len_bytes) = (source.path().to_owned(), source.len());
                self.tracker.fail(Error::Truncated { path, ended_at, len_bytes });
                None
            }
            Next::Complete => {
                self.clear_slack(&flight);
                self.tracker.count(piece.route, piece.len_bytes - done_bytes);
                self.complete(piece.buffer_offset, piece.len_bytes);
                None
            }
        }
    }

    /// Zeroes the bytes that a read wrote behind the content.
    #[expect(unsafe_code, reason = "writes to the tail padding of a piece")]
    fn clear_slack(&self, flight: &InFlight) {
        let piece = flight.piece;
        let slack = piece.buffer_offset + piece.len_bytes..piece.target().end;
        if slack.is_empty() {
            return;
        }
        // SAFETY: the tail padding belongs to this piece alone, whose reads have ended.
        let cleared = unsafe { self.reservation.window(slack) }.map(|window| {
            let len_bytes = window.len();
            let zeroed = copy::zero(&mut Cursor::<Dest>::foreign_buf(window), len_bytes);
            debug_assert_eq!(zeroed, Ok(len_bytes), "a read has filled it");
        });
        if let Err(error) = cleared {
            self.tracker.fail(error.into());
        }
    }

    /// Gives back a piece whose rest cannot be read by its route. The rest is read from the disk later.
    pub(super) fn give_back(&self, flight: InFlight) {
        self.complete(flight.piece.buffer_offset, flight.done_bytes);
        self.tracker.give_back(flight.piece.rest(flight.done_bytes));
    }
}
