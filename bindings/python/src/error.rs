//! Converts errors of the library to the Python exceptions that `longshore/errors.py` defines.

use std::io;
use std::path::Path;

use longshore_formats::Format;
use longshore_formats::directory::DirectoryProblem;
use longshore_heap as heap;
use longshore_load::{Error, HubName, HubProblem};
use longshore_remote::is_remote;
use longshore_serve::{self as serve, Reason};
use pyo3::prelude::*;

use crate::servers;

/// Returns the exception to raise for an error of a load.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    if let Error::Cancelled { .. } = error
        && let Some(exception) = servers::take_raised()
    {
        return exception;
    }
    let (class, nearest) = class(error);
    let errno = errno(error).unwrap_or(nearest);
    let mut message = message(error);
    if let Error::StreamFull { .. } = error {
        message += ". The variable of a `for` loop keeps a tensor until the next one is there: delete it at the \
                    end of the loop's body";
    }
    exception(py, class, Some(errno), &message, path(error)).unwrap_or_else(|broken| broken)
}

/// Returns the exception to raise for an error of a server or of the connection to it.
pub(crate) fn raised_by_server(py: Python<'_>, error: &serve::Error) -> PyErr {
    let ((class, nearest), path) = match error {
        serve::Error::Load(error) => return raised(py, error),
        serve::Error::Open { path, source } => (opening(source), Some(path.as_path())),
        serve::Error::NoServer { .. } | serve::Error::NoDefaultServer { .. } => {
            (("ServerError", libc::ECONNREFUSED), None)
        }
        serve::Error::SocketDenied { .. } | serve::Error::UntrustedServer { .. } => {
            (("PermissionDeniedError", libc::EACCES), None)
        }
        serve::Error::NotAUserId { .. } => (("LongshoreError", libc::EINVAL), None),
        serve::Error::NotFound { .. }
        | serve::Error::Ambiguous { .. }
        | serve::Error::OtherUser { .. } => (("NotFoundError", libc::ENOENT), None),
        serve::Error::Cancelled { .. } => (("CancelledError", libc::ECANCELED), None),
        serve::Error::Refused { reason, .. } => (refused(*reason), None),
        serve::Error::ServerGone => (("ServerError", libc::ECONNRESET), None),
        serve::Error::TimedOut { .. } => (("ServerError", libc::ETIMEDOUT), None),
        serve::Error::Untrustworthy { .. } => (("ServerError", libc::EBADMSG), None),
        _ => (("LongshoreError", libc::EIO), None),
    };
    let errno = errno(error).unwrap_or(nearest);
    // The library names the option of the command.
    let message = message(error).replace("with --socket or", "with socket= or");
    exception(py, class, Some(errno), &message, path).unwrap_or_else(|broken| broken)
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

/// Returns the name of the class, and the nearest errno if the kernel reported none, as in the C
/// library.
fn class(error: &Error) -> (&'static str, i32) {
    match error {
        Error::Open { source, .. } => opening(source),
        Error::NotRegular { .. } | Error::OutOfFile { .. } => ("LongshoreError", libc::EINVAL),
        Error::Read { path, source, .. } if is_remote(path) || HubName::is_one(path) => {
            match opening(source) {
                ("LongshoreError", errno) => ("ReadError", errno),
                found => found,
            }
        }
        Error::Read { .. } => ("ReadError", libc::EIO),
        Error::Truncated { .. } | Error::Changed { .. } => ("FileChangedError", libc::ESTALE),
        Error::NotEnoughMemory { .. } => ("OutOfMemoryError", libc::ENOMEM),
        Error::Heap(heap::Error::OutOfMemory { .. } | heap::Error::TooLong { .. }) => {
            ("OutOfMemoryError", libc::ENOMEM)
        }
        Error::Heap(heap::Error::NoSuchHeap { .. }) => ("UnavailableError", libc::ENOENT),
        Error::Heap(heap::Error::AboveUdmabufLimit { .. }) => ("UnavailableError", libc::EFBIG),
        Error::Heap(heap::Error::Unavailable { .. } | heap::Error::CannotSealContent { .. })
        | Error::ModeUnavailable { .. } => ("UnavailableError", libc::EOPNOTSUPP),
        Error::Cancelled { .. } => ("CancelledError", libc::ECANCELED),
        Error::StreamFull { .. } => ("StreamFullError", libc::EDEADLK),
        Error::Stream { .. } => ("LongshoreError", libc::EINVAL),
        Error::Mismatch { .. } => ("ChecksumError", libc::EBADMSG),
        Error::Directory { reason, .. } => match reason {
            DirectoryProblem::Incomplete { .. } | DirectoryProblem::NoComponent { .. } => {
                ("FormatError", libc::EBADMSG)
            }
            DirectoryProblem::NoModel { .. }
            | DirectoryProblem::NoVariant { .. }
            | DirectoryProblem::NothingIncluded { .. } => ("NotFoundError", libc::ENOENT),
            _ => ("LongshoreError", libc::EINVAL),
        },
        Error::Hub { reason: HubProblem::Name(_), .. } => ("LongshoreError", libc::EINVAL),
        Error::Hub { .. } => ("NotFoundError", libc::ENOENT),
        Error::Format { format: Format::Safetensors, .. } => {
            ("SafetensorFormatError", libc::EBADMSG)
        }
        Error::Format { .. }
        | Error::Manifest { .. }
        | Error::NoTensors { .. }
        | Error::Refused { .. } => ("FormatError", libc::EBADMSG),
        _ => ("LongshoreError", libc::EIO),
    }
}

/// Returns the class and the nearest errno for a file that cannot be opened, or that a server does not send.
fn opening(source: &io::Error) -> (&'static str, i32) {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ("NotFoundError", libc::ENOENT),
        io::ErrorKind::PermissionDenied => ("PermissionDeniedError", libc::EACCES),
        io::ErrorKind::TimedOut => ("TimedOutError", libc::ETIMEDOUT),
        io::ErrorKind::InvalidInput => ("LongshoreError", libc::EINVAL),
        _ => ("LongshoreError", libc::EIO),
    }
}

/// Returns the kernel's errno, from the first cause that has one.
fn errno(error: &dyn std::error::Error) -> Option<i32> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(errno) = error.downcast_ref().and_then(io::Error::raw_os_error) {
            return Some(errno);
        }
        cause = error.source();
    }
    None
}

/// Formats the error and its causes in one line.
fn message(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // A transparent error has the same message as its cause.
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
        | Error::Format { path, .. }
        | Error::NoTensors { path }
        | Error::Directory { path, .. }
        | Error::Refused { path, .. } => Some(path),
        _ => None,
    }
}

/// Returns the exception for a tensor name that several files have.
pub(crate) fn ambiguous(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let message = format!("several files have a tensor {}; see 'files'", name.repr()?);
    exception(py, "FormatError", None, &message, None)
}

/// Returns the class and the errno for a server's refusal.
fn refused(reason: Reason) -> (&'static str, i32) {
    match reason {
        Reason::NotServed => ("PermissionDeniedError", libc::EACCES),
        Reason::NotHeld => ("NotFoundError", libc::ENOENT),
        Reason::Changed => ("FileChangedError", libc::ESTALE),
        Reason::NoMemory => ("OutOfMemoryError", libc::ENOMEM),
        Reason::TooMany => ("UnavailableError", libc::EDQUOT),
        Reason::Malformed => ("FormatError", libc::EBADMSG),
        Reason::NoSuchFile | Reason::NoModel => ("NotFoundError", libc::ENOENT),
        Reason::Denied => ("PermissionDeniedError", libc::EACCES),
        Reason::SeveralModels => ("LongshoreError", libc::EINVAL),
        Reason::Unreadable | Reason::RemoteFailed => ("LongshoreError", libc::EIO),
        Reason::Version => ("ServerError", libc::EPROTO),
        _ => ("ServerError", libc::EACCES),
    }
}
