//! A tensor that a stream yields.

use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

use longshore_formats::{Dtype, QuotedName};

use super::copied::Copied;
use super::core::Extent;
use super::selection::Pick;

/// A tensor, or rows of it, in memory that no other code has.
///
/// It dereferences to its bytes, in the order of the file. Dropping it gives a large tensor's memory back
/// to the stream, which it may outlive. A tensor below 1 MiB has memory of its own.
pub struct StreamedTensor {
    name: String,
    file_index: usize,
    dtype: Dtype,
    shape: Vec<u64>,
    rows: Option<Range<u64>>,
    data: Data,
}

/// The memory of a tensor.
pub(super) enum Data {
    /// Memory of the stream.
    Extent(Extent),
    /// Memory of the allocator.
    Copied(Copied),
}

impl StreamedTensor {
    pub(super) fn new(pick: &Pick, data: Data) -> Self {
        let Pick { file, name, dtype, shape, rows, .. } = pick;
        Self {
            name: name.clone(),
            file_index: *file,
            dtype: *dtype,
            shape: shape.clone(),
            rows: rows.clone(),
            data,
        }
    }

    /// Returns the name, which may contain any character.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index of its file in the plan.
    pub fn file_index(&self) -> usize {
        self.file_index
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the dimensions of what was read, outermost first; none for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the rows that were read; `None` if all were.
    pub fn rows(&self) -> Option<Range<u64>> {
        self.rows.clone()
    }

    /// Returns the bytes. A change of them is lost with the tensor.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.data {
            Data::Extent(extent) => extent.bytes_mut(),
            Data::Copied(copied) => copied.bytes_mut(),
        }
    }

    /// Returns the address of the bytes. Code that dereferences it must follow the aliasing rules.
    pub fn host(&self) -> NonNull<[u8]> {
        match &self.data {
            Data::Extent(extent) => extent.host(),
            Data::Copied(copied) => copied.host(),
        }
    }

    /// Returns `true` if the tensor has memory of its own, and not of the stream.
    pub fn is_copy(&self) -> bool {
        matches!(self.data, Data::Copied(_))
    }
}

impl Deref for StreamedTensor {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.data {
            Data::Extent(extent) => extent.bytes(),
            Data::Copied(copied) => copied.bytes(),
        }
    }
}

impl fmt::Debug for StreamedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamedTensor")
            .field("name", &QuotedName::new(&self.name))
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}
