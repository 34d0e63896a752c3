//! Prefaulting pages ahead of the reads, within the prefault window.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::piece::Piece;
use super::target::Target;

/// The interval at which a waiting thread checks whether the fill is stopped.
const GLANCE: Duration = Duration::from_millis(20);

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

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Records that a prefaulted piece was read.
    pub(super) fn used(&self, piece: &Piece) {
        self.state().outstanding_bytes -= piece.read_bytes;
        self.moved.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.moved.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0
    }
}
