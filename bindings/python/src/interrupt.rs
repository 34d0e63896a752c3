//! Defers an interrupt (Ctrl-C) of a function that runs before a fork until the fork is over.
//!
//! Python ignores exceptions of functions that `os.register_at_fork` registered. A signal handler runs
//! as soon as Python code does, so its exception would be ignored, too.
#![expect(unsafe_code, reason = "calls Python's C interface")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;

/// The time that the functions of other packages get.
const DELAY: Duration = Duration::from_millis(20);

/// `true` if an interrupt is to be raised after the fork.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Records an interrupt that `raise_interrupt` raises.
#[pyfunction]
pub(crate) fn defer_interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Forgets a recorded interrupt, which is the parent's.
#[pyfunction]
pub(crate) fn forget_interrupt() {
    INTERRUPTED.store(false, Ordering::Relaxed);
}

/// Raises a recorded interrupt in the main thread, a moment later: Python would also ignore it in
/// functions that other packages registered and that run after this one.
#[pyfunction]
pub(crate) fn raise_interrupt() {
    if !INTERRUPTED.swap(false, Ordering::Relaxed) {
        return;
    }
    let raise = || {
        // SAFETY: the function only sets flags; signal handlers call it, without the GIL.
        unsafe { ffi::PyErr_SetInterrupt() };
    };
    let later = thread::Builder::new().spawn(move || {
        thread::sleep(DELAY);
        raise();
    });
    if later.is_err() {
        raise();
    }
}
