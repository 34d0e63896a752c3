//! File formats.

use std::fmt;

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Safetensors.
    Safetensors,
    /// The index of a model in several safetensors files.
    SafetensorsIndex,
    /// GGUF.
    Gguf,
    /// The `model_index.json` of a diffusers model, which names its components.
    Pipeline,
}

/// Writes the name of the format in messages.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Safetensors => "safetensors",
            Self::SafetensorsIndex => "safetensors index",
            Self::Gguf => "GGUF",
            Self::Pipeline => "diffusers index",
        })
    }
}
