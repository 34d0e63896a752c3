//! The access to servers: its options, and warnings about the files that were found.

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
    let mut remote = Remote::new();
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

/// Shows what the user should know about the files that were found, as warnings.
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
