//! The choice of the format of a file.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use longshore_formats::gguf::MAGIC;

use super::header::read_exact;
use crate::error::Result;
use crate::source::SourceFile;

/// The choice of the format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FormatChoice {
    /// The format that the file name implies: `*.safetensors` is safetensors, `*.safetensors.index.json`
    /// is the index of shards that are opened in its place, `*.gguf` is GGUF, and any other file is raw.
    /// If a GGUF file is the first of several splits, all splits are opened.
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
        let mut first = [0; MAGIC.len()];
        if source.len() >= first.len() as u64 {
            read_exact(source, &mut first, 0)?;
        }
        Ok(if first == MAGIC { Self::Gguf } else { Self::Safetensors })
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

/// The kind of file that a path is opened as.
pub(super) enum Kind {
    Raw,
    Safetensors,
    Index,
    Gguf,
}

impl Kind {
    /// Returns the kind from the name and the choice. The name need not be UTF-8.
    pub(super) fn of(path: &Path, choice: FormatChoice) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
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
                Kind::Safetensors => 's',
                Kind::Index => 'i',
                Kind::Gguf => 'g',
            })
        };
        for (name, expected) in [
            ("a/model.safetensors", "srsg"),
            ("model.safetensors.index.json", "irig"),
            ("model.safetensors.index.fp16.json", "irig"),
            ("weights.index.json", "rrig"),
            ("model.safetensors.json", "rrsg"),
            ("model.gguf", "grsg"),
            ("model-00002-of-00003.gguf", "grsg"),
            ("model.gguf.part", "rrsg"),
            (".safetensors", "srsg"),
            ("model.safetensors/blob", "rrsg"),
            ("/", "rrsg"),
        ] {
            assert_eq!(kinds(name).iter().collect::<String>(), expected, "{name}");
        }
    }

    #[test]
    fn written_words_can_be_parsed() {
        for word in ["auto", "raw", "safetensors", "gguf"] {
            assert_eq!(word.parse::<FormatChoice>().unwrap().to_string(), word);
        }
        assert!("GGUF".parse::<FormatChoice>().is_err());
    }
}
