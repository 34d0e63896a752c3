//! The kinds of checksums.

use std::fmt;
use std::str::FromStr;

/// A checksum to compute over each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DigestKind {
    /// CRC-32C (Castagnoli, RFC 3720 appendix B.4), as eight hexadecimal digits.
    Crc32c,
    /// XXH3, 64 bits, seed 0, as sixteen hexadecimal digits.
    Xxh3,
    /// SHA-256 (FIPS 180-4), as 64 hexadecimal digits.
    Sha256,
}

/// The error for an unknown checksum name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown checksum '{0}' (expected crc32c, xxh3 or sha256)")]
pub struct ParseDigestKindError(String);

impl FromStr for DigestKind {
    type Err = ParseDigestKindError;

    fn from_str(word: &str) -> Result<Self, ParseDigestKindError> {
        Ok(match word {
            "crc32c" => Self::Crc32c,
            "xxh3" => Self::Xxh3,
            "sha256" => Self::Sha256,
            _ => return Err(ParseDigestKindError(word.to_owned())),
        })
    }
}

/// Writes the word that [`FromStr`] parses.
impl fmt::Display for DigestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Crc32c => "crc32c",
            Self::Xxh3 => "xxh3",
            Self::Sha256 => "sha256",
        })
    }
}
