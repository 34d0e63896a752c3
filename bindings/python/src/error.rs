//! Errors of the library as Python's exceptions, which `longshore/errors.py` defines.

use std::io;
use std::path::Path;

use longshore_heap as heap;
use longshore_load::Error;
use longshore_serve::{self as serve, Reason};
use pyo3::prelude::*;

/// An error as the exception to raise.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let (class, errno) = class(error);
    exception(py, class, errno, &message(error), path(error)).unwrap_or_else(|broken| broken)
}

/// An error of a server or on the way to it as the exception to raise.
pub(crate) fn raised_by_server(py: Python<'_>, error: &serve::Error) -> PyErr {
    let (class, path) = match error {
        serve::Error::Load(error) => return raised(py, error),
        serve::Error::Open { path, source } => (opening(source), Some(path.as_path())),
        serve::Error::NoServer { .. } => ("UnavailableError", None),
        serve::Error::SocketDenied { .. } => ("PermissionDeniedError", None),
        serve::Error::NotFound { .. } => ("NotFoundError", None),
        serve::Error::Cancelled { .. } => ("CancelledError", None),
        serve::Error::Refused { reason, .. } => (refused(*reason), None),
        serve::Error::ServerGone
        | serve::Error::TimedOut { .. }
        | serve::Error::Untrustworthy { .. } => ("ServerError", None),
        _ => ("LongshoreError", None),
    };
    exception(py, class, errno(error), &message(error), path).unwrap_or_else(|broken| broken)
}

fn exception(
    py: Python<'_>,
    class: &str,
    errno: Option<i32>,
    message: &str,
    path: Option<&Path>,
) -> PyResult<PyErr> {
    let class = py.import("longshore.errors")?.getattr(class)?;
    let exception = class.call1((errno, message))?;
    if let Some(path) = path {
        exception.setattr("filename", path.as_os_str())?;
    }
    Ok(PyErr::from_value(exception))
}

/// The name of the class, and what the kernel said or would say.
fn class(error: &Error) -> (&'static str, Option<i32>) {
    match error {
        Error::Open { source, .. } => (opening(source), source.raw_os_error()),
        Error::NotRegular { .. } | Error::OutOfFile { .. } => {
            ("LongshoreError", Some(libc::EINVAL))
        }
        Error::Read { source, .. } => ("ReadError", source.raw_os_error()),
        Error::Truncated { .. } | Error::Changed { .. } => ("FileChangedError", None),
        Error::NotEnoughMemory { .. } => ("OutOfMemoryError", Some(libc::ENOMEM)),
        Error::Heap(heap::Error::OutOfMemory { .. } | heap::Error::TooLong { .. }) => {
            ("OutOfMemoryError", Some(libc::ENOMEM))
        }
        Error::Heap(
            heap::Error::NoSuchHeap { .. }
            | heap::Error::Unavailable { .. }
            | heap::Error::AboveUdmabufLimit { .. }
            | heap::Error::CannotSealContent { .. },
        )
        | Error::ModeUnavailable { .. } => ("UnavailableError", errno(error)),
        Error::Cancelled { .. } => ("CancelledError", Some(libc::ECANCELED)),
        Error::Mismatch { .. } => ("ChecksumError", None),
        Error::Format { format: "safetensors", .. } => ("SafetensorFormatError", None),
        Error::Format { .. } | Error::Manifest { .. } => ("FormatError", None),
        _ => ("LongshoreError", errno(error)),
    }
}

fn opening(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "NotFoundError",
        io::ErrorKind::PermissionDenied => "PermissionDeniedError",
        _ => "LongshoreError",
    }
}

/// What the kernel said, of the first cause that has it.
fn errno(error: &dyn std::error::Error) -> Option<i32> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        cause = error.source();
    }
    None
}

/// The error and its causes in one line.
fn message(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // A transparent error says the same as its cause.
        if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    message
}

fn path(error: &Error) -> Option<&Path> {
    match error {
        Error::Open { path, .. }
        | Error::NotRegular { path, .. }
        | Error::OutOfFile { path, .. }
        | Error::Read { path, .. }
        | Error::Truncated { path, .. }
        | Error::Changed { path, .. }
        | Error::ModeUnavailable { path, .. }
        | Error::Mismatch { path, .. }
        | Error::Manifest { path, .. }
        | Error::Format { path, .. } => Some(path),
        _ => None,
    }
}

/// That several files have a tensor of the same name.
pub(crate) fn ambiguous(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let message = format!("several files have a tensor {}; see 'files'", name.repr()?);
    exception(py, "FormatError", None, &message, None)
}

/// What a server's refusal is here.
fn refused(reason: Reason) -> &'static str {
    match reason {
        Reason::NotServed => "PermissionDeniedError",
        Reason::NotHeld => "NotFoundError",
        Reason::Changed => "FileChangedError",
        Reason::NoMemory => "OutOfMemoryError",
        Reason::TooMany => "UnavailableError",
        Reason::Unreadable => "LongshoreError",
        _ => "ServerError",
    }
}
