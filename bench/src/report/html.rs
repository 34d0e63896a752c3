//! HTML from text.

/// Escapes text for an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // HTML does not allow control characters, and a terminal would obey some of them.
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns an identifier for the page, from any text.
pub(super) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            slug.push(character.to_ascii_lowercase());
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_matches('-').to_owned()
}

/// Adds markup to a page under construction.
///
/// Only for markup: text from a file must go through [`escape`] first.
macro_rules! put {
    ($out:expr, $($part:tt)*) => {
        $out.push_str(&format!($($part)*))
    };
}
pub(super) use put;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let hostile = "</td><script>alert(\"1\")</script> & 'x'\u{1b}[2J";
        let escaped = escape(hostile);
        assert!(!escaped.contains(['<', '>', '"', '\'', '\u{1b}']), "{escaped}");
        assert_eq!(escape("a & b\n"), "a &amp; b\n");
    }

    #[test]
    fn slugs_are_identifiers() {
        assert_eq!(slug("mix, hot, 16 maps"), "mix-hot-16-maps");
        assert_eq!(slug("\"><script>"), "script");
    }
}
