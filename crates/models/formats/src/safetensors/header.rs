//! The header of a file.

use std::collections::BTreeMap;
use std::ops::Range;

use super::dtype::Dtype;

/// The checked header of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The tensors, in the order of their data. They fill the file from `data_offset` to its end,
    /// without gap or overlap.
    pub tensors: Vec<Tensor>,
    /// Free-form strings by name.
    pub metadata: BTreeMap<String, String>,
    /// The offset of the data in the file, in bytes.
    pub data_offset: u64,
}

/// One tensor of a [`Header`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// The name, which is unique in the file. It may contain any character.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first; none for a scalar. If one is zero, the tensor has no data.
    pub shape: Vec<u64>,
    /// The range of the data in the file, in bytes.
    pub data: Range<u64>,
}

impl Tensor {
    /// Makes the description of a tensor whose data is at this range of the file.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<u64>, data: Range<u64>) -> Self {
        Self { name: name.into(), dtype, shape, data }
    }

    /// Returns the length of the data in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.data.end - self.data.start
    }
}

impl Header {
    /// Makes the header of a file whose data begins at `data_offset`. The tensors must be in the order
    /// of their data, without gap or overlap.
    pub fn new(tensors: Vec<Tensor>, metadata: BTreeMap<String, String>, data_offset: u64) -> Self {
        Self { tensors, metadata, data_offset }
    }

    /// Returns the length of the whole file in bytes.
    pub fn file_len_bytes(&self) -> u64 {
        self.tensors.last().map_or(self.data_offset, |last| last.data.end)
    }

    /// Returns the tensor of this name. The search is linear.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
