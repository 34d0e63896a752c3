//! What the headers of all formats have in common.

use std::ops::Range;

use longshore_mem::Granule;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::image::Image;
use crate::quoted::QuotedName;
use crate::reason::{AlignProblem, Reason};
use crate::{gguf, safetensors};

/// What a file holds, checked, of whatever format it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Header {
    /// Of a safetensors file.
    Safetensors(safetensors::Header),
    /// Of a GGUF file.
    Gguf(gguf::Header),
}

/// A tensor of a file of whatever format.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorView<'a> {
    /// Its name, unlike every other's in the file. It may hold any character.
    pub name: &'a str,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, outermost first in every format; none for a scalar. GGUF files have them the
    /// other way round, which is how ggml shows them.
    pub shape: &'a [u64],
    /// Its bytes in the file.
    pub data: Range<u64>,
}

impl TensorView<'_> {
    /// The length of its data in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.data.end - self.data.start
    }

    /// Whether it only fills a gap ([`safetensors::PADDING_PREFIX`]).
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

    /// Where the data begins: the length of all before it, in bytes.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Safetensors(header) => header.data_offset,
            Self::Gguf(header) => header.data_offset,
        }
    }

    /// How many tensors there are.
    pub fn tensor_count(&self) -> usize {
        match self {
            Self::Safetensors(header) => header.tensors.len(),
            Self::Gguf(header) => header.tensors.len(),
        }
    }

    /// The tensors, in the order of their data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        (0..self.tensor_count()).map(|index| self.view(index))
    }

    /// The tensor of that name, found by looking at one after the other.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensors().find(|tensor| tensor.name == name)
    }

    /// Whether every tensor that has data begins at a multiple of `alignment` in the file.
    pub fn is_aligned(&self, alignment: Granule) -> bool {
        let mut all = self.tensors().filter(|it| it.len_bytes() > 0 && !it.is_padding());
        all.all(|tensor| alignment.is_aligned(tensor.data.start))
    }

    /// Lays the tensors of a file of `file_len_bytes` out anew, so that each begins at a multiple of
    /// `alignment`. Returns the content that takes the place of the file, a whole file of its format
    /// with the same tensors and metadata, and the header of that. A file whose tensors lie so already
    /// stays as it is.
    ///
    /// # Errors
    /// [`Error`] if the format has no room for such a file, or if the fields of this header were
    /// changed so that two tensors share bytes, or one lies outside the file.
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

    /// Checks that the tensors lie in a file of `len_bytes`, one behind the other. A header that was
    /// parsed has only such, but its fields are public, and readers rely on parts that share no byte.
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
