//! The header of a file of any format.

use std::ops::Range;

use longshore_mem::Granule;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::image::Image;
use crate::quoted::QuotedName;
use crate::reason::{AlignProblem, Reason};
use crate::{gguf, safetensors};

/// The checked header of a file of any format.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Header {
    /// The header of a safetensors file.
    Safetensors(safetensors::Header),
    /// The header of a GGUF file.
    Gguf(gguf::Header),
}

/// A tensor of a file of any format.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorView<'a> {
    /// The name, which is unique in the file. It may contain any character.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first in every format; none for a scalar. GGUF files store them
    /// innermost first, and ggml displays them in that order.
    pub shape: &'a [u64],
    /// The range of the data in the file, in bytes.
    pub data: Range<u64>,
}

impl<'a> TensorView<'a> {
    /// Makes a view from the parts of a tensor's description.
    pub const fn new(name: &'a str, dtype: Dtype, shape: &'a [u64], data: Range<u64>) -> Self {
        Self { name, dtype, shape, data }
    }

    /// Returns the length of the data in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.data.end - self.data.start
    }

    /// Returns `true` if the tensor only fills a gap ([`safetensors::PADDING_PREFIX`]).
    pub fn is_padding(&self) -> bool {
        matches!(self.dtype, Dtype::Safetensors(dtype) if safetensors::is_padding(self.name, dtype))
    }
}

impl Header {
    /// Returns the format of the file.
    pub fn format(&self) -> Format {
        match self {
            Self::Safetensors(_) => Format::Safetensors,
            Self::Gguf(_) => Format::Gguf,
        }
    }

    /// Returns the offset of the data in the file, in bytes.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Safetensors(header) => header.data_offset,
            Self::Gguf(header) => header.data_offset,
        }
    }

    /// Returns the number of tensors.
    pub fn tensor_count(&self) -> usize {
        match self {
            Self::Safetensors(header) => header.tensors.len(),
            Self::Gguf(header) => header.tensors.len(),
        }
    }

    /// Returns the tensors in the order of their data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        (0..self.tensor_count()).map(|index| self.view(index))
    }

    /// Returns the tensor of this name. The search is linear.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensors().find(|tensor| tensor.name == name)
    }

    /// Returns `true` if every tensor that has data begins at a multiple of `alignment` in the file.
    /// Padding is not checked.
    pub fn is_aligned(&self, alignment: Granule) -> bool {
        let mut all = self.tensors().filter(|it| it.len_bytes() > 0 && !it.is_padding());
        all.all(|tensor| alignment.is_aligned(tensor.data.start))
    }

    /// Computes an aligned layout of a file of `file_len_bytes`, in which each tensor begins at a
    /// multiple of `alignment`. Returns the layout, which is a whole file of the same format with the
    /// same tensors and metadata, and the header of that file. If the tensors are aligned already, the
    /// file stays as it is.
    ///
    /// # Errors
    /// [`Error`] if the format cannot represent such a file, or if the fields of this header were
    /// changed so that two tensors overlap or one lies outside the file.
    pub fn align(self, file_len_bytes: u64, alignment: Granule) -> Result<(Image, Self)> {
        let format = self.format();
        let failed = |problem| Error::new(format, Reason::CannotAlign { alignment, problem });
        self.check_tensors(file_len_bytes).map_err(failed)?;
        if self.is_aligned(alignment) {
            return Ok((Image::whole(file_len_bytes, alignment), self));
        }
        match self {
            Self::Safetensors(header) => {
                let (image, header) = header.aligned(alignment).map_err(failed)?;
                Ok((image, Self::Safetensors(header)))
            }
            Self::Gguf(header) => {
                let aligned = header.aligned(alignment);
                let (image, header) = aligned.map_err(|error| failed(error.problem))?;
                Ok((image, Self::Gguf(header)))
            }
        }
    }

    /// Checks that the tensors do not overlap and lie in a file of `len_bytes`. That is so in a parsed
    /// header, but its fields are public, and readers rely on parts that do not overlap.
    fn check_tensors(&self, len_bytes: u64) -> std::result::Result<(), AlignProblem> {
        let mut end = 0;
        for tensor in self.tensors() {
            let data = &tensor.data;
            let is_there = data.start >= end && data.end <= len_bytes;
            if data.start > data.end || !(is_there || data.is_empty()) {
                return Err(AlignProblem::Misplaced {
                    tensor: QuotedName::new(tensor.name),
                    data: data.clone(),
                    file_len_bytes: len_bytes,
                });
            }
            end = end.max(data.end);
        }
        Ok(())
    }

    fn view(&self, index: usize) -> TensorView<'_> {
        match self {
            Self::Safetensors(header) => {
                let safetensors::Tensor { name, dtype, shape, data } = &header.tensors[index];
                let (dtype, data) = (Dtype::Safetensors(*dtype), data.clone());
                TensorView { name, dtype, shape, data }
            }
            Self::Gguf(header) => {
                let gguf::Tensor { name, dtype, shape, data } = &header.tensors[index];
                let (dtype, data) = (Dtype::Ggml(*dtype), data.clone());
                TensorView { name, dtype, shape, data }
            }
        }
    }
}
