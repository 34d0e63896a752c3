//! Copies of the results of lookups, which several clients share.

use std::io;

use longshore_load::Error;

use crate::error::with_causes;
use crate::served::Looked;

/// Copies the result of a lookup of a model on a server.
pub(crate) fn copy(looked: &Looked) -> Looked {
    match looked {
        Looked::Found(Ok(found)) => Looked::Found(Ok(found.clone())),
        Looked::Found(Err(error)) => Looked::Found(Err(copy_error(error))),
        Looked::Failed(error) => Looked::Failed(copy_error(error)),
        Looked::Refused { path, why } => {
            Looked::Refused { path: path.clone(), why: copy_cause(why) }
        }
        Looked::Unshown(others) => Looked::Unshown(others.clone()),
    }
}

fn copy_error(error: &Error) -> Error {
    match error {
        Error::Open { path, source } => {
            Error::Open { path: path.clone(), source: copy_cause(source) }
        }
        Error::Changed { path, change } => Error::Changed { path: path.clone(), change: *change },
        Error::Directory { path, reason } => {
            Error::Directory { path: path.clone(), reason: reason.clone() }
        }
        Error::Process { operation, source } => {
            Error::Process { operation, source: copy_cause(source) }
        }
        Error::Read { path, range, done_bytes, source } => Error::Read {
            path: path.clone(),
            range: range.clone(),
            done_bytes: *done_bytes,
            source: copy_cause(source),
        },
        Error::Format { path, format, reason } => {
            Error::Format { path: path.clone(), format: *format, reason: reason.clone() }
        }
        Error::Cancelled { done_bytes, total_bytes } => {
            Error::Cancelled { done_bytes: *done_bytes, total_bytes: *total_bytes }
        }
        error => {
            let source = io::Error::other(with_causes(error));
            Error::Process { operation: "looking for the model", source }
        }
    }
}

fn copy_cause(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), with_causes(error))
}
