//! The error of all parsers.

use std::fmt;

/// A format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Safetensors.
    Safetensors,
    /// The index of a model in several safetensors files.
    SafetensorsIndex,
    /// GGUF.
    Gguf,
}

/// The name of the format in messages.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Safetensors => "safetensors",
            Self::SafetensorsIndex => "safetensors index",
            Self::Gguf => "GGUF",
        })
    }
}

/// A file that is not of the format it is meant to be of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {format} file: {reason}")]
pub struct Error {
    format: Format,
    reason: String,
}

/// The result of a parser.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(format: Format, reason: impl Into<String>) -> Self {
        Self { format, reason: reason.into() }
    }

    /// Returns the format that the file was meant to be of.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns what is wrong with the file, as the end of a sentence about it. Text out of the file is
    /// shortened and [`printable`](crate::printable).
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
