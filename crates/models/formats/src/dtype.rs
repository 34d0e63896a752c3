//! The types of the elements of tensors, of all formats.

use std::fmt;

use crate::{gguf, safetensors};

/// What the elements of a tensor are. [`fmt::Display`] writes the format's own name; what both
/// formats have in common, such as `F32` and `BF16`, has the same name in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// Of a safetensors file.
    Safetensors(safetensors::Dtype),
    /// Of a GGUF file: ggml's.
    Ggml(gguf::Dtype),
}

impl Dtype {
    /// The format's own name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safetensors(dtype) => dtype.name(),
            Self::Ggml(dtype) => dtype.name(),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
