//! Prefaulting pages ahead of the reads, within the prefault window, and the pieces that are ready to be
//! read.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::piece::Piece;
use super::target::Target;

/// The interval at which a waiting thread checks whether the fill is stopped.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);

/// A source of pieces for the threads that read. It returns each piece once, and pieces do not overlap in
/// the buffer.
pub(crate) trait Feed: Sync {
    /// Returns the next piece to read. With `patience`, waits for one, but no longer than a moment.
    fn next(&self, patience: bool) -> Fed;

    /// Records that a piece was read, or cannot be read by its route.
    fn used(&self, piece: &Piece);
}

/// The answer of a [`Feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fed {
    /// The caller must read this piece.
    Piece(Piece),
    /// No piece is ready yet.
    NotYet,
    /// There will be no more pieces.
    End,
}

/// The progress of prefaulting and reading a list of pieces.
pub(super) struct Frontier<'a> {
    pieces: &'a [Piece],
    ahead_bytes: u64,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of pieces whose pages are prefaulted.
    populated: usize,
    /// The number of pieces that [`Feed::next`] has returned.
    taken: usize,
    /// The number of bytes that are prefaulted and not yet read.
    outstanding_bytes: u64,
}

impl<'a> Frontier<'a> {
    pub(super) fn new(pieces: &'a [Piece], ahead_bytes: u64) -> Self {
        Self { pieces, ahead_bytes, state: Mutex::default(), moved: Condvar::new() }
    }

    /// Prefaults the pieces in order, at most `ahead_bytes` ahead of the reads, but always at least one
    /// piece.
    pub(super) fn run(&self, target: &Target<'_>) {
        for piece in self.pieces {
            let mut state = self.state();
            while state.outstanding_bytes > 0
                && state.outstanding_bytes + piece.read_bytes > self.ahead_bytes
            {
                if target.tracker.should_stop() {
                    return;
                }
                state = self.wait(state);
            }
            drop(state);
            if target.tracker.should_stop() || !target.populate(piece) {
                break;
            }
            let mut state = self.state();
            state.populated += 1;
            state.outstanding_bytes += piece.read_bytes;
            drop(state);
            self.moved.notify_all();
        }
        self.moved.notify_all();
    }

    /// Returns the piece at `index` if its pages are prefaulted. With `patience`, waits for them, but no
    /// longer than [`GLANCE`].
    pub(super) fn get(&self, index: usize, patience: bool) -> Option<Piece> {
        let mut state = self.state();
        if patience && state.populated <= index {
            state = self.wait(state);
        }
        (index < state.populated).then(|| self.pieces[index])
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.moved.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Feed for Frontier<'_> {
    fn next(&self, patience: bool) -> Fed {
        let mut state = self.state();
        if state.taken == self.pieces.len() {
            return Fed::End;
        }
        if patience && state.populated <= state.taken {
            state = self.wait(state);
        }
        if state.populated <= state.taken {
            return Fed::NotYet;
        }
        state.taken += 1;
        Fed::Piece(self.pieces[state.taken - 1])
    }

    fn used(&self, piece: &Piece) {
        self.state().outstanding_bytes -= piece.read_bytes;
        self.moved.notify_all();
    }
}
