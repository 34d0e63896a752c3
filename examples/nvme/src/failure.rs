//! The errors of the program.

use std::io;

use longshore::domain::backend::BackendError;
use longshore_nvme::{CommandError, Error, ExtentsError, SubmitError};

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The reason that the program failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Driver(#[from] Error),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("the list of extents: {0}")]
    Extents(#[from] ExtentsError),
    #[error(transparent)]
    Domain(#[from] longshore::domain::Error),
    #[error(transparent)]
    Memory(#[from] longshore::heap::Error),
    #[error("freeing bounce buffers: {0}")]
    Shrink(#[source] BackendError),
    #[error("{operation}: {source}")]
    Io {
        operation: String,
        #[source]
        source: io::Error,
    },
    #[error("{0}")]
    Arguments(String),
}

impl<T> From<SubmitError<T>> for Failure {
    fn from(refused: SubmitError<T>) -> Self {
        Self::Driver(refused.error)
    }
}
