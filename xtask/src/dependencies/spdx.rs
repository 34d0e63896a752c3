//! SPDX licence expressions, as far as packages use them.
//!
//! ```text
//!   any  = all { ("OR" | "/") all }
//!   all  = term { "AND" term }
//!   term = "(" any ")" | identifier ["WITH" exception]
//! ```

/// Returns whether the licences that `allows` accepts satisfy `expression`; `None` if it is malformed.
///
/// An exception only grants additional rights, so an allowed `X` satisfies `X WITH Y`.
pub(super) fn satisfied(expression: &str, allows: &dyn Fn(&str) -> bool) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut reader = Reader { words: spaced.split_whitespace().peekable(), allows };
    let verdict = reader.any()?;
    reader.words.next().is_none().then_some(verdict)
}

struct Reader<'a, W: Iterator<Item = &'a str>> {
    words: std::iter::Peekable<W>,
    allows: &'a dyn Fn(&str) -> bool,
}

impl<'a, W: Iterator<Item = &'a str>> Reader<'a, W> {
    fn any(&mut self) -> Option<bool> {
        let mut verdict = self.all()?;
        while self.take("OR") {
            verdict |= self.all()?;
        }
        Some(verdict)
    }

    fn all(&mut self) -> Option<bool> {
        let mut verdict = self.term()?;
        while self.take("AND") {
            verdict &= self.term()?;
        }
        Some(verdict)
    }

    fn term(&mut self) -> Option<bool> {
        if self.take("(") {
            let verdict = self.any()?;
            return self.take(")").then_some(verdict);
        }
        let verdict = (self.allows)(self.name()?);
        if self.take("WITH") {
            self.name()?;
        }
        Some(verdict)
    }

    fn name(&mut self) -> Option<&'a str> {
        self.words.next().filter(|word| !["(", ")", "OR", "AND", "WITH"].contains(word))
    }

    fn take(&mut self, word: &str) -> bool {
        self.words.next_if(|next| *next == word).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_their_spdx_precedence() {
        let allows = |identifier: &str| ["MIT", "Unicode-3.0"].contains(&identifier);
        let cases = [
            ("MIT", Some(true)),
            ("GPL-2.0-only", Some(false)),
            ("GPL-2.0-only OR MIT", Some(true)),
            ("MIT/GPL-2.0-only", Some(true)),
            ("GPL-2.0-only AND MIT", Some(false)),
            ("(MIT OR GPL-2.0-only) AND Unicode-3.0", Some(true)),
            ("(MIT OR Unicode-3.0) AND GPL-2.0-only", Some(false)),
            ("MIT OR MIT AND GPL-2.0-only", Some(true)),
            ("MIT WITH LLVM-exception OR GPL-2.0-only", Some(true)),
            ("", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT MIT", None),
            ("MIT WITH", None),
            ("MIT )", None),
        ];
        for (expression, expected) in cases {
            assert_eq!(satisfied(expression, &allows), expected, "{expression}");
        }
    }
}
