//! The choice of the format of a file.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use longshore_formats::gguf::MAGIC;
use longshore_formats::safetensors::HEADER_LEN_MAX_BYTES;

use super::header::read_exact;
use crate::error::Result;
use crate::source::SourceFile;

/// The choice of the format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FormatChoice {
    /// The format that the file name implies: `*.safetensors` is safetensors, `*.safetensors.index.json`
    /// is the index of shards that are opened in its place, and `*.gguf` is GGUF. If a GGUF file is the
    /// first of several splits, all splits are opened. The format of a file without an extension, such as
    /// a blob of the Hugging Face Hub's cache, is recognised by its first bytes. Any other file is raw.
    #[default]
    Auto,
    /// Raw bytes, for any name.
    Raw,
    /// Safetensors, for any name. In place of an index (`*.index.json`), its shards are opened.
    Safetensors,
    /// GGUF, for any name. If the file is the first of several splits, all splits are opened.
    Gguf,
}

impl FormatChoice {
    /// Returns the format of a model file from its first bytes: GGUF if it begins with the magic number
    /// of that format, or else safetensors, which has no magic number. The name does not matter.
    ///
    /// # Errors
    /// [`Error::Read`](crate::Error::Read), [`Error::Truncated`](crate::Error::Truncated).
    pub fn from_content(source: &SourceFile) -> Result<Self> {
        Ok(match Content::of(source)? {
            Content::Gguf => Self::Gguf,
            Content::Safetensors | Content::Unknown => Self::Safetensors,
        })
    }
}

/// The error for an unknown format name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format '{0}' (expected auto, raw, safetensors or gguf)")]
pub struct ParseFormatChoiceError(String);

impl FromStr for FormatChoice {
    type Err = ParseFormatChoiceError;

    fn from_str(word: &str) -> std::result::Result<Self, ParseFormatChoiceError> {
        Ok(match word {
            "auto" => Self::Auto,
            "raw" => Self::Raw,
            "safetensors" => Self::Safetensors,
            "gguf" => Self::Gguf,
            _ => return Err(ParseFormatChoiceError(word.to_owned())),
        })
    }
}

/// Writes the word that [`FromStr`] parses.
impl fmt::Display for FormatChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Raw => "raw",
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
        })
    }
}

/// The number of first bytes by which a file is recognised: the length of a safetensors header, and its
/// first character.
const RECOGNISED_BY_BYTES: usize = 9;

/// The format of a file according to its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Gguf,
    Safetensors,
    Unknown,
}

impl Content {
    /// Reads the first bytes.
    pub(super) fn of(source: &SourceFile) -> Result<Self> {
        let mut first = [0; RECOGNISED_BY_BYTES];
        let first = &mut first[..source.len().min(RECOGNISED_BY_BYTES as u64) as usize];
        read_exact(source, first, 0)?;
        Ok(Self::of_beginning(first))
    }

    /// Safetensors has no magic number: a file of this format begins with the length of its header, as a
    /// number of 64 bits, and the header begins with `{`.
    pub(super) fn of_beginning(beginning: &[u8]) -> Self {
        if beginning.starts_with(&MAGIC) {
            return Self::Gguf;
        }
        match beginning.first_chunk::<RECOGNISED_BY_BYTES>() {
            Some([header_len @ .., b'{'])
                if u64::from_le_bytes(*header_len) <= HEADER_LEN_MAX_BYTES =>
            {
                Self::Safetensors
            }
            _ => Self::Unknown,
        }
    }

    /// Returns the kind of a file with this content and without an extension.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Gguf => Kind::Gguf,
            Self::Safetensors => Kind::Safetensors,
            Self::Unknown => Kind::Raw,
        }
    }
}

/// The kind of file that a path is opened as.
pub(super) enum Kind {
    Raw,
    /// The name has no extension, so the content determines the format.
    Unnamed,
    Safetensors,
    Index,
    Gguf,
}

impl Kind {
    /// Returns the kind from the name and the choice. The name need not be UTF-8.
    pub(super) fn of(path: &Path, choice: FormatChoice) -> Self {
        let text = path.to_string_lossy();
        let is_url = ["https:/", "http:/"].iter().any(|it| text.starts_with(it));
        // The query of a URL, such as a signature, is no part of the name.
        let end = text.find(['?', '#']).filter(|_| is_url).unwrap_or(text.len());
        let name = Path::new(&text[..end]).file_name().unwrap_or_default().to_string_lossy();
        // Variants of a model have the variant before the extension: model.safetensors.index.fp16.json.
        let is_index = name.ends_with(".json")
            && (name.contains(".safetensors.index.")
                || choice == FormatChoice::Safetensors && name.ends_with(".index.json"));
        match choice {
            FormatChoice::Raw => Self::Raw,
            FormatChoice::Gguf => Self::Gguf,
            _ if is_index => Self::Index,
            FormatChoice::Safetensors => Self::Safetensors,
            FormatChoice::Auto if name.ends_with(".safetensors") => Self::Safetensors,
            FormatChoice::Auto if name.ends_with(".gguf") => Self::Gguf,
            FormatChoice::Auto if Path::new(&*name).extension().is_none() => Self::Unnamed,
            FormatChoice::Auto => Self::Raw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_and_the_choice_determine_the_kind() {
        use FormatChoice::{Auto, Gguf, Raw, Safetensors};
        let kinds = |name: &str| {
            [Auto, Raw, Safetensors, Gguf].map(|choice| match Kind::of(Path::new(name), choice) {
                Kind::Raw => 'r',
                Kind::Unnamed => 'u',
                Kind::Safetensors => 's',
                Kind::Index => 'i',
                Kind::Gguf => 'g',
            })
        };
        for (name, expected) in [
            ("a/model.safetensors", "srsg"),
            ("https://a/model.safetensors.index.json?signature=b/c.gguf", "irig"),
            ("http://a/model.gguf#x", "grsg"),
            ("model.gguf?x", "rrsg"),
            ("model.safetensors.index.json", "irig"),
            ("model.safetensors.index.fp16.json", "irig"),
            ("weights.index.json", "rrig"),
            ("model.safetensors.json", "rrsg"),
            ("model.gguf", "grsg"),
            ("model-00002-of-00003.gguf", "grsg"),
            ("model.gguf.part", "rrsg"),
            (".safetensors", "srsg"),
            ("model.safetensors/blob", "ursg"),
            ("blobs/0f1e", "ursg"),
            ("model.bin", "rrsg"),
            ("/", "ursg"),
        ] {
            assert_eq!(kinds(name).iter().collect::<String>(), expected, "{name}");
        }
    }

    #[test]
    fn the_first_bytes_determine_the_format_of_a_file_without_an_extension() {
        let safetensors = |header_len: u64, first: u8| {
            let mut beginning = header_len.to_le_bytes().to_vec();
            beginning.push(first);
            Content::of_beginning(&beginning)
        };
        assert_eq!(safetensors(2, b'{'), Content::Safetensors);
        assert_eq!(safetensors(100_000_000, b'{'), Content::Safetensors);
        assert_eq!(safetensors(100_000_001, b'{'), Content::Unknown);
        assert_eq!(safetensors(2, b'['), Content::Unknown);
        assert_eq!(Content::of_beginning(b"GGUF"), Content::Gguf);
        assert_eq!(Content::of_beginning(b"GGU"), Content::Unknown);
        assert_eq!(Content::of_beginning(&[0; 8]), Content::Unknown);
    }

    #[test]
    fn written_words_can_be_parsed() {
        for word in ["auto", "raw", "safetensors", "gguf"] {
            assert_eq!(word.parse::<FormatChoice>().unwrap().to_string(), word);
        }
        assert!("GGUF".parse::<FormatChoice>().is_err());
    }
}
