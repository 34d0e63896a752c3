//! The header of a file.

use std::ops::Range;

use longshore_mem::Granule;

use super::dtype::Dtype;
use super::metadata::Metadata;

/// What a GGUF file holds, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The version of the format: 2 or 3.
    pub version: u32,
    /// Typed values by name.
    pub metadata: Metadata,
    /// The tensors, in the order of their data.
    pub tensors: Vec<Tensor>,
    /// What the offsets of all tensors in the file are multiples of.
    pub alignment: Granule,
    /// Where the data begins: the length of all before it, in bytes.
    pub data_offset: u64,
    /// Which of `tensors` the file describes first, second and so on; empty where that is their
    /// order.
    pub(super) described: Vec<u32>,
}

/// One tensor of a [`Header`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Its name, unlike every other's in the file. It may hold any character.
    pub name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; none for a scalar. The file has them the other way round.
    /// The last is the length of a row, whole blocks of the dtype. If one is zero there is no
    /// data.
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
    /// Where the last tensor ends, in bytes from the beginning of the file. There may be more of
    /// the file behind it.
    pub fn data_end(&self) -> u64 {
        self.tensors.last().map_or(self.data_offset, |last| last.data.end)
    }

    /// The tensor of that name, found by looking at one after the other.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
