//! How a file is read.

use std::fmt;
use std::str::FromStr;

/// Which way content takes from the disk into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReadMode {
    /// The best way for each range: out of the page cache where it is resident, else direct, else
    /// uncached, else buffered.
    #[default]
    Auto,
    /// Straight from the disk, past the page cache (`O_DIRECT`), or an error.
    Direct,
    /// Through the page cache, which then holds the file.
    Buffered,
    /// Through the page cache, dropping the pages behind (`RWF_DONTCACHE`, Linux 6.14), or an
    /// error.
    Uncached,
}

/// A word that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no read mode; there are auto, direct, buffered and uncached")]
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

/// The word that [`FromStr`] reads back.
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
    fn names_are_read_back_as_they_are_written() {
        for word in ["auto", "direct", "buffered", "uncached"] {
            assert_eq!(word.parse::<ReadMode>().unwrap().to_string(), word);
        }
        assert_eq!("mmap".parse::<ReadMode>(), Err(ParseReadModeError("mmap".into())));
    }
}
