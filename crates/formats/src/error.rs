//! The error of all parsers.

/// A file that is not of the format it is meant to be of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {format} file: {reason}")]
pub struct Error {
    format: &'static str,
    reason: String,
}

/// The result of a parser.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(format: &'static str, reason: impl Into<String>) -> Self {
        Self { format, reason: reason.into() }
    }

    /// Returns the name of the format: `safetensors`, `safetensors index` or `GGUF`.
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// Returns what is wrong with the file, as the end of a sentence about it. Text out of the file is
    /// shortened and [`printable`](crate::printable).
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
