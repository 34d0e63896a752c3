//! An encoder of headers, for files whose tensors are at other offsets.

use longshore_mem::Granule;

use super::header::{Header, Tensor};
use super::limits::{
    ALIGNMENT_DEFAULT, ALIGNMENT_KEY, ALIGNMENT_MIN, HEADER_LEN_MAX_BYTES, MAGIC,
    METADATA_ENTRIES_MAX, OPENING_BYTES,
};
use super::metadata::{Entry, Metadata, Value};
use super::value_type::ValueType;
use crate::image::{Image, Part};
use crate::reason::AlignProblem;

/// A [`Header`] that was encoded for a file of another alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoded {
    /// The beginning of the file, up to the padding before the data.
    pub head: Vec<u8>,
    /// The offset of the data in the file. The bytes from the end of `head` to here are zero, and so is
    /// the padding between and behind tensors. They are not in `head`, because a large alignment needs
    /// many of them.
    pub data_offset: u64,
    /// The offset in the file of each tensor's data, in the order of [`Header::tensors`].
    pub offsets: Vec<u64>,
    /// The length of the file in bytes, with padding behind the last tensor, as ggml writes it.
    pub file_len_bytes: u64,
}

/// The error for a header that cannot be encoded for an alignment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("a GGUF file cannot have its tensors aligned to {alignment}: {problem}")]
pub struct EncodeError {
    /// The requested alignment.
    pub alignment: Granule,
    /// The problem.
    pub problem: AlignProblem,
}

impl Header {
    /// Encodes the header of a file with the same metadata and tensors, in which each tensor is at the
    /// next multiple of `alignment`, in the order of [`Header::tensors`]. The new header declares that
    /// alignment in `general.alignment`. All other metadata stays the same, byte for byte.
    ///
    /// If the file has that alignment already, the tensors stay where they are, with all gaps between
    /// them, and the result is the bytes from which the header was parsed.
    ///
    /// # Errors
    /// [`EncodeError`] if the alignment is below 8 bytes or above 2 GiB, which the format does not
    /// support, or if the header would exceed its limits or the file 2^64 bytes.
    pub fn encode_aligned(&self, alignment: Granule) -> Result<Encoded, EncodeError> {
        let refused = |problem| EncodeError { alignment, problem };
        let bytes = u32::try_from(alignment.bytes()).ok().filter(|bytes| *bytes >= ALIGNMENT_MIN);
        let bytes = bytes.ok_or(refused(AlignProblem::Unsupported))?;
        let mut metadata = self.metadata.clone();
        if alignment != ALIGNMENT_DEFAULT || metadata.get(ALIGNMENT_KEY).is_some() {
            metadata.set_u32(ALIGNMENT_KEY, bytes);
        }
        let too_long = || refused(AlignProblem::HeaderTooLong);
        if metadata.len() as u64 > METADATA_ENTRIES_MAX {
            return Err(too_long());
        }
        let unpadded = self.unpadded_len(&metadata);
        if unpadded > HEADER_LEN_MAX_BYTES {
            return Err(too_long());
        }
        let (data_offset, offsets, file_len_bytes) = if alignment == self.alignment {
            let offsets: Vec<u64> = self.tensors.iter().map(|tensor| tensor.data.start).collect();
            (self.data_offset, offsets, alignment.checked_round_up(self.data_end()))
        } else {
            self.places(alignment, unpadded)
        };
        let file_len_bytes = file_len_bytes.ok_or(refused(AlignProblem::FileTooLong))?;

        let head = self.written(&metadata, data_offset, &offsets);
        debug_assert_eq!(head.len() as u64, unpadded);
        Ok(Encoded { head, data_offset, offsets, file_len_bytes })
    }

    fn written(&self, metadata: &Metadata, data_offset: u64, offsets: &[u64]) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.unpadded_len(metadata) as usize);
        head.extend(MAGIC);
        head.extend(self.version.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((metadata.len() as u64).to_le_bytes());
        head.extend(&metadata.bytes);
        for index in self.as_described() {
            self.tensors[index].describe(offsets[index] - data_offset, &mut head);
        }
        head
    }

    /// Returns the length of the header with this metadata, without padding.
    fn unpadded_len(&self, metadata: &Metadata) -> u64 {
        let descriptions: usize = self.tensors.iter().map(description_len).sum();
        (OPENING_BYTES + metadata.bytes.len() + descriptions) as u64
    }

    /// Computes an aligned layout with the same metadata and tensors, each tensor at a multiple of
    /// `alignment`. Returns the layout and its header. An alignment below 8 bytes is raised to 8.
    ///
    /// # Errors
    /// Those of [`Header::encode_aligned`].
    pub(crate) fn aligned(&self, alignment: Granule) -> Result<(Image, Self), EncodeError> {
        let least = Granule::new(u64::from(ALIGNMENT_MIN)).unwrap_or(alignment);
        let alignment = alignment.max(least);
        let Encoded { head, data_offset, offsets, file_len_bytes } =
            self.encode_aligned(alignment)?;
        let mut header = Self { alignment, data_offset, ..self.clone() };
        if header.metadata.get(ALIGNMENT_KEY).is_some() || alignment != ALIGNMENT_DEFAULT {
            // The cast is lossless: `encode_aligned` has checked it.
            header.metadata.set_u32(ALIGNMENT_KEY, alignment.bytes() as u32);
        }
        let mut parts = Vec::with_capacity(offsets.len());
        for (tensor, start) in header.tensors.iter_mut().zip(offsets) {
            let (file_offset, len_bytes) = (tensor.data.start, tensor.len_bytes());
            parts.push(Part::new(file_offset, start, len_bytes));
            tensor.data = start..start + len_bytes;
        }
        Ok((Image::of_parts(head, parts, file_len_bytes, alignment), header))
    }

    /// Returns the offset of the data behind a header of this length, the offset of each tensor, and the
    /// length of the file; `None` for the length if it is above 2^64.
    fn places(&self, alignment: Granule, unpadded: u64) -> (u64, Vec<u64>, Option<u64>) {
        let data_offset = alignment.bytes() * unpadded.div_ceil(alignment.bytes());
        let mut end = Some(data_offset);
        let place = |tensor: &Tensor| {
            let start = end.unwrap_or(data_offset);
            let next = end.and_then(|end| end.checked_add(tensor.len_bytes()));
            end = next.and_then(|end| alignment.checked_round_up(end));
            start
        };
        let offsets = self.tensors.iter().map(place).collect();
        (data_offset, offsets, end)
    }

    /// Returns the indices of the tensors in the order of their descriptions.
    fn as_described(&self) -> impl Iterator<Item = usize> {
        let count = self.tensors.len();
        let in_order = self.described.len() != count;
        (0..count).map(move |at| if in_order { at } else { self.described[at] as usize })
    }
}

fn description_len(tensor: &Tensor) -> usize {
    8 + tensor.name.len() + 4 + 8 * tensor.shape.len() + 4 + 8
}

impl Tensor {
    fn describe(&self, offset: u64, into: &mut Vec<u8>) {
        push_string(self.name.as_bytes(), into);
        into.extend((self.shape.len() as u32).to_le_bytes());
        // Innermost first.
        into.extend(self.shape.iter().rev().flat_map(|size| size.to_le_bytes()));
        into.extend(self.dtype.number().to_le_bytes());
        into.extend(offset.to_le_bytes());
    }
}

/// Writes the length of a string, and the string.
pub(super) fn push_string(text: &[u8], into: &mut Vec<u8>) {
    into.extend((text.len() as u64).to_le_bytes());
    into.extend(text);
}

impl Metadata {
    /// Appends an entry. No other entry may have this name.
    pub(super) fn push(&mut self, key: &str, value: Value<'_>) {
        push_string(key.as_bytes(), &mut self.bytes);
        let kind = value.value_type();
        self.bytes.extend(kind.number().to_le_bytes());
        let start = self.bytes.len() as u32;
        value.encode(&mut self.bytes);
        let value = start..self.bytes.len() as u32;
        self.entries.push(Entry { key: key.to_owned(), kind, value });
    }

    /// Sets the entry of this name, or adds it as a `uint32`. An entry of this name must be a `uint32`.
    fn set_u32(&mut self, key: &str, number: u32) {
        let found = self.entries.iter().find(|entry| entry.key == key);
        match found.filter(|entry| entry.kind == ValueType::U32) {
            Some(entry) => {
                let place = entry.value.start as usize..entry.value.end as usize;
                self.bytes[place].copy_from_slice(&number.to_le_bytes());
            }
            None => self.push(key, Value::U32(number)),
        }
    }
}

impl Value<'_> {
    fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::U8(number) => into.push(*number),
            Self::I8(number) => into.extend(number.to_le_bytes()),
            Self::U16(number) => into.extend(number.to_le_bytes()),
            Self::I16(number) => into.extend(number.to_le_bytes()),
            Self::U32(number) => into.extend(number.to_le_bytes()),
            Self::I32(number) => into.extend(number.to_le_bytes()),
            Self::F32(number) => into.extend(number.to_le_bytes()),
            Self::Bool(truth) => into.push((*truth).into()),
            Self::String(text) => push_string(text, into),
            Self::Array(array) => {
                into.extend(array.element_type().number().to_le_bytes());
                into.extend(array.len().to_le_bytes());
                into.extend(array.bytes());
            }
            Self::U64(number) => into.extend(number.to_le_bytes()),
            Self::I64(number) => into.extend(number.to_le_bytes()),
            Self::F64(number) => into.extend(number.to_le_bytes()),
        }
    }
}
