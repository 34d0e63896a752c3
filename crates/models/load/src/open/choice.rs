//! Which format a file is taken to be of.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use longshore_formats::gguf::MAGIC;

use super::header::read_exact;
use crate::error::Result;
use crate::source::SourceFile;

/// What files are taken to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FormatChoice {
    /// What their names say: `*.safetensors` is safetensors, `*.safetensors.index.json` stands for
    /// the shards it names, `*.gguf` is GGUF, the first of several splits standing for all, and
    /// anything else is raw.
    #[default]
    Auto,
    /// Bytes that nothing is known of, whatever the name.
    Raw,
    /// Safetensors whatever the name; `*.index.json` stands for the shards it names.
    Safetensors,
    /// GGUF whatever the name; the first of several splits stands for all.
    Gguf,
}

impl FormatChoice {
    /// What a file that holds a model is by its first bytes, whatever its name: GGUF if it says so,
    /// and else safetensors, which says nothing.
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

/// A word that names no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no format; there are auto, raw, safetensors and gguf")]
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

/// The word that [`FromStr`] reads back.
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

/// What a file is opened as.
pub(super) enum Kind {
    Raw,
    Safetensors,
    Index,
    Gguf,
}

impl Kind {
    /// Names may be anything but UTF-8: only their ends count.
    pub(super) fn of(path: &Path, choice: FormatChoice) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Variants have their name in front of the last ending: model.safetensors.index.fp16.json.
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
    fn names_tell_the_format() {
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
    fn words_are_read_back_as_they_are_written() {
        for word in ["auto", "raw", "safetensors", "gguf"] {
            assert_eq!(word.parse::<FormatChoice>().unwrap().to_string(), word);
        }
        assert!("GGUF".parse::<FormatChoice>().is_err());
    }
}
