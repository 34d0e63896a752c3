//! The header of a file.

use std::ops::Range;

use longshore_mem::Granule;

use super::dtype::Dtype;
use super::metadata::Metadata;

/// The checked header of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The version of the format: 2 or 3.
    pub version: u32,
    /// The typed metadata values by name.
    pub metadata: Metadata,
    /// The tensors, in the order of their data.
    pub tensors: Vec<Tensor>,
    /// The alignment of all tensors in the file.
    pub alignment: Granule,
    /// The offset of the data in the file, in bytes.
    pub data_offset: u64,
    /// The indices into `tensors` in the order in which the file describes them; empty if both orders
    /// are the same.
    pub(super) described: Vec<u32>,
}

/// One tensor of a [`Header`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// The name, which is unique in the file. It may contain any character.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first; none for a scalar. The file stores them innermost first. The
    /// last one is the length of a row, a multiple of the block size of `dtype`. If one is zero, the
    /// tensor has no data.
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
    /// Returns the offset of the end of the last tensor in the file, in bytes. The file can be longer.
    pub fn data_end(&self) -> u64 {
        self.tensors.last().map_or(self.data_offset, |last| last.data.end)
    }

    /// Returns the tensor of this name. The search is linear.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
