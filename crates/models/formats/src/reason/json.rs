//! The error of the JSON reader.

use std::fmt;

/// An error of the JSON reader. [`fmt::Display`] writes the expected value, the kind of value found, and
/// the line and column. It writes no strings of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    kind: JsonErrorKind,
    line: usize,
    column: usize,
    message: Box<str>,
}

/// A kind of [`JsonError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonErrorKind {
    /// The text is not JSON, or nested too deeply.
    Syntax,
    /// The text ends within a value.
    UnexpectedEnd,
    /// A value is not of the type that is expected at its place.
    UnexpectedValue,
}

impl JsonError {
    /// Returns the kind of error.
    pub fn kind(&self) -> JsonErrorKind {
        self.kind
    }

    /// Returns the line at which reading stopped, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the byte within the line at which reading stopped, counted from 1.
    pub fn column(&self) -> usize {
        self.column
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for JsonError {}

impl From<&serde_json::Error> for JsonError {
    fn from(error: &serde_json::Error) -> Self {
        use serde_json::error::Category;
        let kind = match error.classify() {
            Category::Eof => JsonErrorKind::UnexpectedEnd,
            Category::Data => JsonErrorKind::UnexpectedValue,
            Category::Syntax | Category::Io => JsonErrorKind::Syntax,
        };
        let message = error.to_string().into();
        Self { kind, line: error.line(), column: error.column(), message }
    }
}
