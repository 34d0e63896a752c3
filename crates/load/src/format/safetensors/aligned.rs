//! The same tensors, each at a multiple of an alignment.

use longshore_mem::Granule;
use serde_json::{Map, Value, json};

use super::{Dtype, HEADER_LEN_MAX_BYTES, Header, PREFIX_BYTES, Tensor};
use crate::plan::{Image, Part};

/// What the names of tensors begin with that fill a gap.
///
/// The format allows none between tensors, so where the sizes of tensors leave one, a tensor of
/// [`Dtype::U8`] that means nothing fills it. Longshore does not list those.
pub const PADDING_PREFIX: &str = "__padding__.";

/// Whether the tensor of this name and type only fills a gap.
pub(crate) fn is_padding(name: &str, dtype: Dtype) -> bool {
    dtype == Dtype::U8 && name.starts_with(PADDING_PREFIX)
}

impl Tensor {
    /// Whether it only fills a gap ([`PADDING_PREFIX`]).
    pub fn is_padding(&self) -> bool {
        is_padding(&self.name, self.dtype)
    }
}

impl Header {
    /// Lays the tensors out anew, each at a multiple of `alignment`, as a whole safetensors file of
    /// its own: its image, and the header that it begins with.
    ///
    /// Tensors whose size is a multiple of the alignment come first, in the order of the file, and
    /// leave no gap; each of the others but the last may need one filled behind it.
    ///
    /// # Errors
    /// Why there is no such file.
    pub(crate) fn aligned(&self, alignment: Granule) -> Result<(Image, Self), String> {
        let wanted = || self.tensors.iter().filter(|tensor| !tensor.is_padding());
        let fits = |tensor: &&Tensor| alignment.is_aligned(tensor.len_bytes());
        let in_order = wanted().filter(fits).chain(wanted().filter(|tensor| !fits(tensor)));
        let (mut placed, mut end, mut paddings) = (Vec::new(), 0u64, 0);
        for tensor in in_order {
            let start = alignment.checked_round_up(end).ok_or("it would have 2^64 bytes")?;
            if start > end {
                let name = format!("{PADDING_PREFIX}{paddings}");
                paddings += 1;
                let data = end..start;
                placed.push((
                    Tensor { name, dtype: Dtype::U8, shape: vec![start - end], data },
                    None,
                ));
            }
            end = start.checked_add(tensor.len_bytes()).ok_or("it would have 2^64 bytes")?;
            placed.push((Tensor { data: start..end, ..tensor.clone() }, Some(tensor.data.start)));
        }
        let head = self.encode(placed.iter().map(|(tensor, _)| tensor), alignment)?;
        let data_offset = head.len() as u64;
        let mut parts: Vec<Part> = Vec::new();
        for (tensor, from) in &mut placed {
            tensor.data = tensor.data.start + data_offset..tensor.data.end + data_offset;
            if let Some(file_offset) = *from {
                let len_bytes = tensor.len_bytes();
                parts.push(Part { file_offset, buffer_offset: tensor.data.start, len_bytes });
            }
        }
        let tensors = placed.into_iter().map(|(tensor, _)| tensor).collect();
        let header = Self { tensors, metadata: self.metadata.clone(), data_offset };
        let image = Image::new(head, parts, data_offset + end, alignment);
        Ok((image, header))
    }

    /// The beginning of a file with these tensors, whose data are told from the end of it. That is
    /// at a multiple of `alignment`: blanks are put behind the text.
    fn encode<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor>,
        alignment: Granule,
    ) -> Result<Vec<u8>, String> {
        let mut object = Map::new();
        if !self.metadata.is_empty() {
            object.insert("__metadata__".to_owned(), json!(self.metadata));
        }
        for Tensor { name, dtype, shape, data } in tensors {
            let (dtype, data) = (dtype.name(), [data.start, data.end]);
            let description = json!({ "dtype": dtype, "shape": shape, "data_offsets": data });
            object.insert(name.clone(), description);
        }
        let text = Value::Object(object).to_string();
        let end = alignment.checked_round_up((PREFIX_BYTES + text.len()) as u64);
        let header_len = end.map(|end| end - PREFIX_BYTES as u64);
        let Some(header_len) = header_len.filter(|len| *len <= HEADER_LEN_MAX_BYTES) else {
            return Err(format!(
                "its header would have more than the {HEADER_LEN_MAX_BYTES} bytes there may be"
            ));
        };
        let mut head = header_len.to_le_bytes().to_vec();
        head.extend_from_slice(text.as_bytes());
        // Fits: below the limit above.
        head.resize(PREFIX_BYTES + header_len as usize, b' ');
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    /// A header with tensors of these sizes, one after the other, and data from `data_offset` on.
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
        fn an_image_is_a_file_with_the_same_tensors(
            sizes in prop::collection::vec(0u64..300, 0..20), log2 in 0u32..13, offset in 0u64..100,
        ) {
            let alignment = Granule::new(1 << log2).unwrap();
            let before = header(&sizes, offset);
            let (image, after) = before.aligned(alignment).unwrap();
            let read = Header::parse(Path::new("image"), &image.head, image.len_bytes).unwrap();
            prop_assert_eq!(&read.metadata, &before.metadata);
            // What is read is told by name where two are at the same place.
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
            let mut made = vec![u16::MAX; image.len_bytes as usize];
            for part in &image.parts {
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
            prop_assert!(image.parts.is_sorted_by(|a, b| a.file_offset + a.len_bytes < b.file_offset
                || a.file_offset + a.len_bytes == b.file_offset
                    && a.buffer_offset + a.len_bytes != b.buffer_offset));
            // Laid out once more it stays as it is, paddings and all.
            let (again, _) = after.aligned(alignment).unwrap();
            prop_assert_eq!(again.head, image.head);
        }
    }

    #[test]
    fn sizes_that_fit_need_no_padding() {
        let (image, after) =
            header(&[64, 1, 128, 0, 64], 104).aligned(Granule::new(64).unwrap()).unwrap();
        assert!(after.tensors.iter().all(|tensor| !tensor.is_padding()));
        let starts: Vec<u64> =
            after.tensors.iter().map(|it| it.data.start - after.data_offset).collect();
        assert_eq!(starts, [0, 64, 192, 192, 256]);
        assert_eq!(image.len_bytes, after.data_offset + 257);
    }

    #[test]
    fn a_header_that_grows_too_long_is_refused() {
        let refused = header(&[1, 1], 100).aligned(Granule::new(1 << 30).unwrap()).unwrap_err();
        assert!(refused.contains("100000000"), "{refused}");
    }
}
