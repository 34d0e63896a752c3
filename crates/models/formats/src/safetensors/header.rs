//! The header of a file.

use std::collections::BTreeMap;
use std::ops::Range;

use super::dtype::Dtype;

/// What a safetensors file holds, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The tensors, in the order of their data. Together they are the file from `data_offset` to
    /// its end, without gap or overlap.
    pub tensors: Vec<Tensor>,
    /// Free-form strings by name.
    pub metadata: BTreeMap<String, String>,
    /// Where the data begins: the length of all before it, in bytes.
    pub data_offset: u64,
}

/// One tensor of a [`Header`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Its name, unlike every other's in the file. It may hold any character.
    pub name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; none for a scalar. If one is zero there is no data.
    pub shape: Vec<u64>,
    /// Its bytes in the file.
    pub data: Range<u64>,
}

impl Tensor {
    /// Makes a tensor of these elements and dimensions at these bytes of the file.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<u64>, data: Range<u64>) -> Self {
        Self { name: name.into(), dtype, shape, data }
    }

    /// The length of its data in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.data.end - self.data.start
    }
}

impl Header {
    /// Makes the header of a file whose data begins at `data_offset`. The tensors are in the order of
    /// their data, without gap or overlap.
    pub fn new(tensors: Vec<Tensor>, metadata: BTreeMap<String, String>, data_offset: u64) -> Self {
        Self { tensors, metadata, data_offset }
    }

    /// The length in bytes of the file that this is the header of.
    pub fn file_len_bytes(&self) -> u64 {
        self.tensors.last().map_or(self.data_offset, |last| last.data.end)
    }

    /// The tensor of that name, found by looking at one after the other.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
