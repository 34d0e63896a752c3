//! The modes in which files are read.

use std::fmt;
use std::str::FromStr;

/// The way in which content gets from the disk into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReadMode {
    /// The best way for each range: copied from the page cache if it is resident, or else the first of
    /// direct, uncached and buffered that is available.
    #[default]
    Auto,
    /// Direct I/O, past the page cache (`O_DIRECT`). The load fails if that is not available.
    Direct,
    /// Through the page cache, which keeps the file.
    Buffered,
    /// Through the page cache, which drops the pages after each read (`RWF_DONTCACHE`, Linux 6.14). The
    /// load fails if that is not available.
    Uncached,
}

/// The error for an unknown mode name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown read mode '{0}' (expected auto, direct, buffered or uncached)")]
pub struct ParseReadModeError(String);

impl FromStr for ReadMode {
    type Err = ParseReadModeError;

    fn from_str(word: &str) -> Result<Self, ParseReadModeError> {
        Ok(match word {
            "auto" => Self::Auto,
            "direct" => Self::Direct,
            "buffered" => Self::Buffered,
            "uncached" => Self::Uncached,
            _ => return Err(ParseReadModeError(word.to_owned())),
        })
    }
}

/// Writes the word that [`FromStr`] parses.
impl fmt::Display for ReadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Uncached => "uncached",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_names_can_be_parsed() {
        for word in ["auto", "direct", "buffered", "uncached"] {
            assert_eq!(word.parse::<ReadMode>().unwrap().to_string(), word);
        }
        assert_eq!("mmap".parse::<ReadMode>(), Err(ParseReadModeError("mmap".into())));
    }
}
