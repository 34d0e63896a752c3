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

    /// Returns the number of elements in a block, which cannot be divided: 1 unless the type is quantized, as
    /// many types of GGUF files are, or smaller than a byte.
    pub const fn block_elements(self) -> u64 {
        match self {
            // 2 elements of 4 bits in a byte, and 4 of 6 bits in 3 bytes.
            Self::Safetensors(safetensors::Dtype::F4) => 2,
            Self::Safetensors(safetensors::Dtype::F6E2m3 | safetensors::Dtype::F6E3m2) => 4,
            Self::Safetensors(_) => 1,
            Self::Ggml(dtype) => dtype.block_elements(),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
