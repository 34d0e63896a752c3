//! The element types of all formats.

use std::fmt;

use crate::{gguf, safetensors};

/// The type of a tensor's elements. [`fmt::Display`] writes the format's own name. Types that both
/// formats have, such as `F32` and `BF16`, have the same name in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// A type of a safetensors file.
    Safetensors(safetensors::Dtype),
    /// A type of a GGUF file, which is one of ggml's.
    Ggml(gguf::Dtype),
}

impl Dtype {
    /// Returns the format's own name.
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
