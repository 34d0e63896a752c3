//! The access to servers: its options, and warnings about the files that were found.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use longshore_remote::Remote;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Makes the access to servers; `longshore.load` describes the arguments, and Python checks the timeout.
///
/// # Errors
/// `ValueError` for an option that no object store has. Errors never show the values.
pub(crate) fn access(
    storage_options: &[(String, String)],
    timeout: Option<f64>,
) -> PyResult<Remote> {
    // Of a call that succeeded nevertheless.
    drop(take_raised());
    let is_stopped = AtomicBool::new(false);
    let mut remote = Remote::new().stop_when(move || {
        // A signal comes once.
        is_stopped.load(Ordering::Relaxed)
            || is_interrupted() && {
                is_stopped.store(true, Ordering::Relaxed);
                true
            }
    });
    for (name, value) in storage_options {
        remote = remote
            .storage_option(name, value)
            .map_err(|error| PyValueError::new_err(format!("storage_options: {error}")))?;
    }
    Ok(match timeout {
        Some(seconds) => {
            remote.time_limit(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
        }
        None => remote,
    })
}

/// The exception of a signal handler that ended a request, and the thread in which it is to be raised.
static RAISED: Mutex<Option<(ThreadId, PyErr)>> = Mutex::new(None);

/// Runs the handlers of signals that have come, and returns `true` if one raised an exception, such as
/// `KeyboardInterrupt`.
fn is_interrupted() -> bool {
    let handled: PyResult<()> = Python::attach(|py| {
        py.check_signals()?;
        Ok(())
    });
    match handled {
        Ok(()) => false,
        Err(error) => {
            let raised = Some((thread::current().id(), error));
            *RAISED.lock().unwrap_or_else(PoisonError::into_inner) = raised;
            true
        }
    }
}

/// Returns the exception that ended a request, if there is one.
pub(crate) fn take_raised() -> Option<PyErr> {
    let mut raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
    let own = raised.take_if(|(thread, _)| *thread == thread::current().id());
    own.map(|(_, error)| error)
}

/// Shows the notes about the files that were found as warnings.
///
/// # Errors
/// The exception of a warning, if the program made one of it.
pub(crate) fn warn(py: Python<'_>, remote: &Remote) -> PyResult<()> {
    let notes = remote.notes();
    if notes.is_empty() {
        return Ok(());
    }
    let warn = py.import("longshore._servers")?.getattr("warn")?;
    notes.into_iter().try_for_each(|note| warn.call1((note,)).map(drop))
}
