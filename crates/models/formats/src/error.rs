//! The error of all parsers.

use std::fmt;

use crate::detail::Detail;
use crate::format::Format;
use crate::reason::Reason;

/// The error for a file that is not valid in the expected format.
///
/// [`fmt::Display`] writes one line. Text from the file is shortened in it, and made
/// [`printable`](crate::printable).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {format} file: {}", self.detail())]
pub struct Error {
    format: Format,
    /// Boxed to keep the `Result` of a parser small.
    reason: Box<Reason>,
}

/// The result of a parser.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(format: Format, reason: impl Into<Box<Reason>>) -> Self {
        Self { format, reason: reason.into() }
    }

    /// Returns the expected format of the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the problem of the file, for programs.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// Returns the text of the reason, as the end of a sentence about the file: the place of the
    /// problem, the expected content, and what can be done.
    pub fn detail(&self) -> impl fmt::Display + '_ {
        Detail { format: self.format, reason: &self.reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf;
    use crate::index::ShardIndex;
    use crate::quoted::QuotedName;
    use crate::reason::{
        Item, JsonErrorKind, LooksLike, ShardNameProblem, ShardProblem, Start, UnknownDtype,
    };
    use crate::safetensors::Header;

    fn header_error(header: &str) -> Error {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        Header::parse(&bytes, bytes.len() as u64).unwrap_err()
    }

    #[test]
    fn a_program_can_match_on_the_reason() {
        let error = header_error(r#"{"a":{"dtype":"F3\u001b"}}"#);
        let Reason::UnknownDtype { tensor, dtype: UnknownDtype::Name(name) } = error.reason()
        else {
            panic!("{error:?}");
        };
        assert_eq!((tensor.as_str(), name.as_str()), ("a", "F3\u{1b}"));

        let error = header_error("{\n\"a\":[");
        let Reason::Json { item: Some(item), error } = error.reason() else { panic!("{error:?}") };
        assert_eq!(*item, Item::Tensor(QuotedName::new("a")));
        assert_eq!((error.kind(), error.line()), (JsonErrorKind::UnexpectedValue, 2));
        assert!(error.to_string().ends_with(&format!("at line 2 column {}", error.column())));

        let error = gguf::Header::parse(b"<html><html><html><html>", 100).unwrap_err();
        let start = Start::Magic(*b"<htm");
        let reason = Reason::BadStart { start, looks_like: Some(LooksLike::WebPage) };
        assert_eq!(*error.reason(), reason);

        let error = ShardIndex::parse(br#"{"weight_map":{"a":"../b"}}"#).unwrap_err();
        let (name, problem) = (QuotedName::new("../b"), ShardNameProblem::ParentDirectory);
        let problem = ShardProblem::BadName { name, problem };
        assert_eq!(*error.reason(), Reason::Shards(problem));
    }

    #[test]
    fn long_names_are_not_copied() {
        let error = header_error(&format!(r#"{{"{}":{{}}}}"#, "é".repeat(1 << 20)));
        let Reason::Missing { item: Item::TensorField { tensor, .. } } = error.reason() else {
            panic!("{error:?}");
        };
        assert_eq!((tensor.as_str().len(), tensor.len_bytes()), (200, 2 << 20));
        assert!(size_of::<Error>() <= 16 && size_of::<Reason>() <= 128);
    }
}
