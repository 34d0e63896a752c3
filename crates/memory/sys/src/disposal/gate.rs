//! Gates, which keep an exiting thread open until its descriptors have no other copies.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Makes a thread wait until the sender's copies of its descriptors are closed, so that the last close is
/// never one of these.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// The number of sets of copies that are not closed yet.
    copies: usize,
    /// `true` if the thread exits.
    is_closing: bool,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if the thread exits.
    pub(super) fn open(self: &Arc<Self>) -> Option<OpenGate> {
        let mut state = self.lock();
        if state.is_closing {
            return None;
        }
        state.copies += 1;
        Some(OpenGate(Arc::clone(self)))
    }

    pub(super) fn is_closing(&self) -> bool {
        self.lock().is_closing
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        let closed = self.changed.wait_while(state, |state| state.copies > 0);
        drop(closed.unwrap_or_else(PoisonError::into_inner));
    }
}

#[derive(Debug)]
pub(super) struct OpenGate(Arc<Gate>);

impl Drop for OpenGate {
    fn drop(&mut self) {
        self.0.lock().copies -= 1;
        self.0.changed.notify_all();
    }
}
