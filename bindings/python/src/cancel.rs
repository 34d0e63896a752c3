//! `longshore.CancelToken`: stops loads from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;

/// A token that stops calls of `load` and `attach` from another thread.
///
/// Pass it as `cancel`. A stopped call raises `CancelledError`, and so does each later call with this
/// token.
#[pyclass(frozen, weakref, module = "longshore")]
pub(crate) struct CancelToken(Mutex<State>);

struct State {
    cancelled: bool,
    /// The flags of calls that have not ended. Each call has its own, because an exception in one call
    /// must not stop the others.
    flags: Vec<Weak<AtomicBool>>,
}

impl CancelToken {
    /// Returns the token of the library for one call; without a token of the caller, only the call
    /// itself can set it.
    pub(crate) fn for_call(token: Option<&Self>) -> longshore_load::CancelToken {
        let Some(token) = token else { return longshore_load::CancelToken::new() };
        let mut state = token.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flag = Arc::new(AtomicBool::new(state.cancelled));
        state.flags.retain(|flag| flag.strong_count() > 0);
        state.flags.push(Arc::downgrade(&flag));
        longshore_load::CancelToken::from_flag(flag)
    }
}

#[pymethods]
impl CancelToken {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(State { cancelled: false, flags: Vec::new() }))
    }

    /// Stops all calls that have this token. Returns at once: the calls end when the reads in flight
    /// have ended.
    fn cancel(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.cancelled = true;
        for flag in state.flags.drain(..).filter_map(|flag| flag.upgrade()) {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// True if `cancel` was called.
    #[getter]
    fn cancelled(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).cancelled
    }

    fn __repr__(&self) -> &'static str {
        if self.cancelled() {
            "<longshore.CancelToken: cancelled>"
        } else {
            "<longshore.CancelToken>"
        }
    }
}
