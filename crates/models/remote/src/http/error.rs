//! The errors of reads from servers.

use std::io::{self, ErrorKind};

use super::connection::Limits;
use crate::xet::{InvalidXet, XetId};

/// The error of a read from a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The file does not exist.
    #[error("the server has no such file (status {status})")]
    NotFound {
        /// The status code.
        status: u16,
    },
    /// The server refuses access.
    #[error("the server refuses access (status {status}); check the credentials")]
    Refused {
        /// The status code.
        status: u16,
    },
    /// The storage to which the Hugging Face Hub redirects refuses ranges, also with another signature.
    #[error("the storage of the Hub refuses ranges of the file (status {status})")]
    RangesRefused {
        /// The status code.
        status: u16,
        /// The name of the file in Xet storage.
        file: Box<XetId>,
    },
    /// Xet storage sent something else than the protocol describes.
    #[error("the Xet storage of the Hub sends data that is not valid: {0}")]
    Xet(#[from] InvalidXet),
    /// The server failed, also after several tries.
    #[error("the server responded with status {status}")]
    Status {
        /// The status code.
        status: u16,
    },
    /// The server sends whole files only, or encodes them.
    #[error("the server does not send ranges of the file as it is ({reason})")]
    NoRanges {
        /// The deviation.
        reason: &'static str,
    },
    /// The file is not the version that was opened.
    #[error("the file changed on the server")]
    Changed,
    /// No credentials were found, or they could not be renewed.
    #[error("{0}")]
    Credentials(String),
    /// The bucket is in another region than that of the request.
    #[error("the bucket is in the region {region}; set AWS_REGION")]
    OtherRegion {
        /// The region.
        region: String,
    },
    /// The caller stopped the call.
    #[error("the read was stopped")]
    Stopped,
    /// The time limit passed.
    #[error("the time limit has passed")]
    TimeLimit,
    /// The connection failed, also after several tries.
    #[error(transparent)]
    Connection(#[from] io::Error),
}

impl From<HttpError> for io::Error {
    /// Returns the error of the system call if there was one, so that its number is kept.
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Connection(error) => error,
            error => Self::new(error.kind(), error),
        }
    }
}

impl HttpError {
    /// Makes the error for a status other than that of a range.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            401 | 403 | 407 => Self::Refused { status },
            404 | 410 => Self::NotFound { status },
            412 => Self::Changed,
            _ => Self::Status { status },
        }
    }

    /// Returns `true` if the next try may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Self::Connection(error) => {
                use ErrorKind::{InvalidData, InvalidInput, PermissionDenied};
                !matches!(error.kind(), InvalidInput | InvalidData | PermissionDenied)
            }
            _ => false,
        }
    }

    /// Returns the kind of the nearest error of a file of this machine.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Refused { .. } | Self::RangesRefused { .. } | Self::Credentials(_) => {
                ErrorKind::PermissionDenied
            }
            Self::TimeLimit => ErrorKind::TimedOut,
            Self::Connection(error) => error.kind(),
            _ => ErrorKind::Other,
        }
    }
}

impl Limits<'_> {
    /// Returns [`HttpError::Stopped`] or [`HttpError::TimeLimit`] if the call is to end.
    pub(crate) fn check_ended(&self) -> Result<(), HttpError> {
        self.check().map_err(|error| match error.kind() {
            ErrorKind::Interrupted => HttpError::Stopped,
            _ => HttpError::TimeLimit,
        })
    }
}
