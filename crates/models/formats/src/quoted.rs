//! Text from files, made safe for messages.

use std::borrow::Cow;
use std::fmt;

/// The number of characters of a name that a message shows.
const QUOTED_CHARS_MAX: usize = 100;

/// A name from a file, shortened to its first 100 characters. [`fmt::Display`] writes it in quotes, and
/// makes it [`printable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotedName {
    start: Box<str>,
    len_bytes: usize,
}

impl QuotedName {
    /// Shortens a name.
    pub fn new(name: &str) -> Self {
        let cut = name.char_indices().nth(QUOTED_CHARS_MAX).map_or(name.len(), |(at, _)| at);
        Self { start: name[..cut].into(), len_bytes: name.len() }
    }

    /// Returns the first 100 characters of the name, unescaped. Any characters are possible.
    pub fn as_str(&self) -> &str {
        &self.start
    }

    /// Returns the length of the whole name in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl fmt::Display for QuotedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = printable(&self.start);
        if self.start.len() < self.len_bytes {
            return write!(f, "\"{shown}…\" ({} bytes)", self.len_bytes);
        }
        write!(f, "\"{shown}\"")
    }
}

/// Returns a name from a file for a message: in quotes, [`printable`], and shortened to 100 characters.
pub fn quoted(name: &str) -> String {
    QuotedName::new(name).to_string()
}

/// Returns text from a file in a form that is safe to print on a terminal. Control characters, and
/// others that are invisible or change how the following text is displayed, are escaped as in a Rust
/// string.
///
/// ```
/// let name = longshore_formats::printable("weight\u{1b}[2J");
/// assert_eq!(name, "weight\\u{1b}[2J");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |char: char| {
        // `escape_debug` escapes these, too, but they are safe on a terminal.
        matches!(char, '"' | '\'' | '\\') || char.escape_debug().len() == 1
    };
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for char in text.chars() {
        if is_plain(char) {
            shown.push(char);
        } else {
            shown.extend(char.escape_debug());
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_shortened() {
        assert_eq!(quoted("a\"b\u{1b}[0m\n"), r#""a"b\u{1b}[0m\n""#);
        assert_eq!(quoted(&"é".repeat(100)), format!("\"{}\"", "é".repeat(100)));
        assert_eq!(quoted(&"é".repeat(101)), format!("\"{}…\" (202 bytes)", "é".repeat(100)));
        // A right-to-left override.
        assert_eq!(printable("a\u{202e}b\\c"), "a\\u{202e}b\\c");
        assert!(matches!(printable("model.layers.0 'ä'"), Cow::Borrowed(_)));
    }
}
