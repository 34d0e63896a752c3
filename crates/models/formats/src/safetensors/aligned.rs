//! Aligned layouts of safetensors files.

use std::io::{self, Write};
use std::ops::Range;

use longshore_mem::Granule;

use super::dtype::Dtype;
use super::header::{Header, Tensor};
use super::limits::{HEADER_LEN_MAX_BYTES, PREFIX_BYTES};
use crate::image::{Image, Part};
use crate::reason::AlignProblem;

/// The prefix of the names of padding tensors.
///
/// The format allows no gaps between tensors. An aligned layout fills them with padding tensors of
/// [`Dtype::U8`], whose content has no meaning. Longshore does not list those.
pub const PADDING_PREFIX: &str = "__padding__.";

/// Returns `true` if the tensor of this name and type is padding.
pub(crate) fn is_padding(name: &str, dtype: Dtype) -> bool {
    dtype == Dtype::U8 && name.starts_with(PADDING_PREFIX)
}

impl Tensor {
    /// Returns `true` if the tensor is padding ([`PADDING_PREFIX`]).
    pub fn is_padding(&self) -> bool {
        is_padding(&self.name, self.dtype)
    }
}

impl Header {
    /// Computes an aligned layout, a whole safetensors file in which each tensor is at a multiple of
    /// `alignment`. Returns the layout and its header.
    ///
    /// Tensors without data come first, in the order of their names. Then come, in the order of the
    /// file, the tensors whose size is a multiple of the alignment, which need no padding. The other
    /// tensors come last. Each may need padding behind it, except the last.
    ///
    /// If the header would be too long, this fails after allocating 16 bytes for each tensor.
    ///
    /// # Errors
    /// The reason why the tensors cannot be aligned.
    pub(crate) fn aligned(&self, alignment: Granule) -> Result<(Image, Self), AlignProblem> {
        let layout = Layout::of(&self.tensors, alignment);
        let head = self.encode(&layout)?;
        let data_offset = head.len() as u64;
        let wanted = layout.in_order.len();
        let mut tensors = Vec::with_capacity(wanted);
        let mut parts: Vec<Part> = Vec::with_capacity(wanted);
        let end = layout.each(|placed| {
            let tensor = placed.tensor(data_offset);
            if let Some(from) = placed.from {
                let (file_offset, len_bytes) = (from.data.start, from.len_bytes());
                parts.push(Part::new(file_offset, tensor.data.start, len_bytes));
            }
            tensors.push(tensor);
            Ok(())
        })?;
        let header = Self { tensors, metadata: self.metadata.clone(), data_offset };
        let image = Image::of_parts(head, parts, data_offset + end, alignment);
        Ok((image, header))
    }

    /// Returns the beginning of the file, up to the data. The text of the header is padded with spaces,
    /// so that the data begins at a multiple of the alignment.
    fn encode(&self, layout: &Layout<'_>) -> Result<Vec<u8>, AlignProblem> {
        let mut counted = Counted(0);
        self.write_text(layout, &mut counted)?;
        let Counted(text_len) = counted;
        let end = layout.alignment.checked_round_up(PREFIX_BYTES as u64 + text_len);
        let header_len = end.map(|end| end - PREFIX_BYTES as u64);
        let header_len = header_len.filter(|len| *len <= HEADER_LEN_MAX_BYTES);
        let header_len = header_len.ok_or(AlignProblem::HeaderTooLong)?;
        // The cast is lossless: the length is below the limit above.
        let data_offset = PREFIX_BYTES + header_len as usize;
        let mut head = Vec::with_capacity(data_offset);
        head.extend_from_slice(&header_len.to_le_bytes());
        self.write_text(layout, &mut head)?;
        head.resize(data_offset, b' ');
        Ok(head)
    }

    /// Writes the header as JSON: the metadata, then the tensors in the order of their data. Their
    /// offsets are relative to the end of the header.
    fn write_text(&self, layout: &Layout<'_>, into: &mut impl Write) -> Result<(), AlignProblem> {
        // Writing to memory cannot fail, so the only error is the limit of `Counted`.
        let failed = |_: io::Error| AlignProblem::HeaderTooLong;
        into.write_all(b"{").map_err(failed)?;
        let mut comma = "";
        if !self.metadata.is_empty() {
            into.write_all(br#""__metadata__":"#).map_err(failed)?;
            serde_json::to_writer(&mut *into, &self.metadata).map_err(|it| failed(it.into()))?;
            comma = ",";
        }
        layout.each(|placed| {
            into.write_all(comma.as_bytes()).map_err(failed)?;
            comma = ",";
            placed.describe(&mut *into).map_err(failed)
        })?;
        into.write_all(b"}").map_err(failed)
    }
}

/// Counts the bytes written, and fails above the limit of a header.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        if self.0 > HEADER_LEN_MAX_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The tensors of a file in the order of an aligned layout.
struct Layout<'a> {
    in_order: Vec<&'a Tensor>,
    /// The numbers, sorted, that padding tensors must not use, because a tensor has that name.
    taken: Vec<u64>,
    alignment: Granule,
}

/// A tensor at its place in a [`Layout`], or a padding tensor.
struct Placed<'a> {
    from: Option<&'a Tensor>,
    /// The number of a padding tensor.
    number: u64,
    /// The range, relative to the beginning of the data.
    data: Range<u64>,
}

impl<'a> Layout<'a> {
    fn of(tensors: &'a [Tensor], alignment: Granule) -> Self {
        let mut in_order = Vec::with_capacity(tensors.len());
        in_order.extend(tensors.iter().filter(|tensor| !tensor.is_padding()));
        let number = |tensor: &&Tensor| tensor.name.strip_prefix(PADDING_PREFIX)?.parse().ok();
        let mut taken: Vec<u64> = in_order.iter().filter_map(number).collect();
        taken.sort_unstable();
        // The parser sorts tensors at the same offset by name.
        let empty = |tensor: &Tensor| tensor.len_bytes() == 0;
        let key = |tensor: &&'a Tensor| {
            let name = empty(tensor).then_some(tensor.name.as_str());
            (!empty(tensor), !alignment.is_aligned(tensor.len_bytes()), name, tensor.data.start)
        };
        in_order.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        Self { in_order, taken, alignment }
    }

    /// Calls `each` with all tensors in order, including padding, and returns the length of the data.
    fn each(
        &self,
        mut each: impl FnMut(&Placed<'a>) -> Result<(), AlignProblem>,
    ) -> Result<u64, AlignProblem> {
        let (mut end, mut number) = (0u64, 0);
        for from in &self.in_order {
            let start = self.alignment.checked_round_up(end).ok_or(AlignProblem::FileTooLong)?;
            if start > end {
                while self.taken.binary_search(&number).is_ok() {
                    number += 1;
                }
                each(&Placed { from: None, number, data: end..start })?;
                number += 1;
            }
            end = start.checked_add(from.len_bytes()).ok_or(AlignProblem::FileTooLong)?;
            each(&Placed { from: Some(from), number: 0, data: start..end })?;
        }
        Ok(end)
    }
}

impl Placed<'_> {
    /// Returns the tensor in a file whose data begins at `data_offset`.
    fn tensor(&self, data_offset: u64) -> Tensor {
        let data = self.data.start + data_offset..self.data.end + data_offset;
        match self.from {
            Some(from) => Tensor { data, ..from.clone() },
            None => {
                let name = format!("{PADDING_PREFIX}{}", self.number);
                Tensor { name, dtype: Dtype::U8, shape: vec![data.end - data.start], data }
            }
        }
    }

    fn describe(&self, into: &mut impl Write) -> io::Result<()> {
        let Range { start, end } = self.data;
        match self.from {
            Some(Tensor { name, dtype, shape, .. }) => {
                serde_json::to_writer(&mut *into, name)?;
                write!(into, r#":{{"dtype":"{dtype}","shape":"#)?;
                serde_json::to_writer(&mut *into, shape)?;
            }
            None => {
                let (number, len_bytes) = (self.number, end - start);
                write!(into, r#""{PADDING_PREFIX}{number}":{{"dtype":"U8","shape":[{len_bytes}]"#)?;
            }
        }
        write!(into, r#","data_offsets":[{start},{end}]}}"#)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::error::Error;
    use crate::reason::Reason;
    use crate::safetensors::limits::FORMAT;

    /// Returns a header with tensors of these sizes, one after the other, and data from `data_offset`
    /// on.
    fn header(sizes: &[u64], data_offset: u64) -> Header {
        let mut end = data_offset;
        let tensors = sizes.iter().enumerate().map(|(index, size)| {
            let start = end;
            end += size;
            let (name, shape) = (format!("t{index}"), vec![*size]);
            Tensor { name, dtype: Dtype::U8, shape, data: start..end }
        });
        let tensors = tensors.collect();
        let metadata = BTreeMap::from([("k\"ey".to_owned(), "v".to_owned())]);
        Header { tensors, metadata, data_offset }
    }

    proptest! {
        #[test]
        fn an_aligned_layout_is_a_file_with_the_same_tensors(
            sizes in prop::collection::vec(0u64..300, 0..20), log2 in 0u32..13, offset in 0u64..100,
        ) {
            let alignment = Granule::new(1 << log2).unwrap();
            let before = header(&sizes, offset);
            let (image, after) = before.aligned(alignment).unwrap();
            let read = Header::parse(image.head(), image.len_bytes()).unwrap();
            prop_assert_eq!(&read.metadata, &before.metadata);
            // Compare by name, because tensors without data can be at the same offset.
            for tensor in &after.tensors {
                prop_assert_eq!(read.tensor(&tensor.name), Some(tensor));
            }
            prop_assert_eq!(read.tensors.len(), after.tensors.len());
            for tensor in after.tensors.iter().filter(|it| !it.is_padding()) {
                prop_assert!(alignment.is_aligned(tensor.data.start) || tensor.len_bytes() == 0);
            }
            let wanted: Vec<_> = after.tensors.iter().filter(|it| !it.is_padding()).collect();
            prop_assert_eq!(wanted.len(), before.tensors.len());
            prop_assert!(after.tensors.len() <= 2 * wanted.len());
            let file: Vec<u16> = (0..before.file_len_bytes() as u16).collect();
            let mut made = vec![u16::MAX; image.len_bytes() as usize];
            for part in image.parts() {
                let from = part.file_offset as usize..(part.file_offset + part.len_bytes) as usize;
                made[part.buffer_offset as usize..][..from.len()].copy_from_slice(&file[from]);
            }
            let bytes = |all: &[u16], tensor: &Tensor| {
                all[tensor.data.start as usize..tensor.data.end as usize].to_vec()
            };
            for tensor in wanted {
                let of_file = before.tensor(&tensor.name).unwrap();
                prop_assert_eq!(&tensor.shape, &of_file.shape);
                prop_assert_eq!(bytes(&made, tensor), bytes(&file, of_file));
            }
            prop_assert!(image.parts().is_sorted_by(|a, b| a.file_offset + a.len_bytes < b.file_offset
                || a.file_offset + a.len_bytes == b.file_offset
                    && a.buffer_offset + a.len_bytes != b.buffer_offset));
            // Aligning the result again changes nothing.
            let (again, _) = after.aligned(alignment).unwrap();
            prop_assert_eq!(again.head(), image.head());
            let (again, _) = read.aligned(alignment).unwrap();
            prop_assert_eq!(again.head(), image.head());
        }
    }

    #[test]
    fn sizes_that_fit_need_no_padding() {
        let (image, after) =
            header(&[64, 1, 128, 0, 64], 104).aligned(Granule::new(64).unwrap()).unwrap();
        assert!(after.tensors.iter().all(|tensor| !tensor.is_padding()));
        let starts: Vec<u64> =
            after.tensors.iter().map(|it| it.data.start - after.data_offset).collect();
        assert_eq!(starts, [0, 0, 64, 192, 256]);
        assert_eq!(image.len_bytes(), after.data_offset + 257);
    }

    #[test]
    fn padding_has_names_that_no_tensor_has() {
        let mut before = header(&[4, 4, 4, 4], 100);
        // These are not padding, because their type is F32.
        for (tensor, name) in before.tensors.iter_mut().zip(["0", "2", "18446744073709551615", "x"])
        {
            tensor.name = format!("{PADDING_PREFIX}{name}");
            (tensor.dtype, tensor.shape) = (Dtype::F32, vec![1]);
        }
        let (image, after) = before.aligned(Granule::new(64).unwrap()).unwrap();
        let read = Header::parse(image.head(), image.len_bytes()).unwrap();
        assert_eq!(read, after);
        let paddings = after.tensors.iter().filter(|tensor| tensor.is_padding());
        let paddings: Vec<_> = paddings.map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(paddings, ["__padding__.1", "__padding__.3", "__padding__.4"]);
        for tensor in &before.tensors {
            assert_eq!(after.tensor(&tensor.name).unwrap().dtype, Dtype::F32);
        }
    }

    #[test]
    fn a_header_that_grows_too_long_is_refused() {
        let refused = header(&[1, 1], 100).aligned(Granule::new(1 << 30).unwrap()).unwrap_err();
        let alignment = Granule::new(1 << 30).unwrap();
        let refused = Reason::CannotAlign { alignment, problem: refused };
        let refused = Error::new(FORMAT, refused).to_string();
        assert!(refused.contains("100.00 MB"), "{refused}");
    }
}
