//! Aligned layouts: files with the same tensors at other offsets.

use longshore_mem::Granule;

/// A range of a file that is contiguous in the buffer, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// The offset in the file.
    pub file_offset: u64,
    /// The offset in the aligned layout or in the buffer.
    pub buffer_offset: u64,
    /// The length in bytes.
    pub len_bytes: u64,
}

impl Part {
    /// Makes a part from two offsets and a length.
    pub const fn new(file_offset: u64, buffer_offset: u64, len_bytes: u64) -> Self {
        Self { file_offset, buffer_offset, len_bytes }
    }
}

/// An aligned layout: the content that a buffer has in place of a file. It begins with a header of its
/// own, followed by parts of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    head: Vec<u8>,
    parts: Vec<Part>,
    len_bytes: u64,
    alignment: Granule,
}

impl Image {
    /// Makes a layout of `len_bytes` with these parts, in any order. Returns `None` if two parts overlap
    /// in the file or in the layout, if a part overlaps the head, or if the head or a part ends behind
    /// `len_bytes`.
    pub fn new(
        head: Vec<u8>,
        parts: Vec<Part>,
        len_bytes: u64,
        alignment: Granule,
    ) -> Option<Self> {
        let image = Self::of_parts(head, parts, len_bytes, alignment);
        let all_apart = |parts: &[Part], start: fn(&Part) -> u64, mut end: u64, max: u64| {
            parts.iter().all(|part| {
                let follows = start(part) >= end;
                let next = start(part).checked_add(part.len_bytes).filter(|next| *next <= max);
                end = next.unwrap_or(end);
                follows && next.is_some()
            })
        };
        let mut parts = image.parts.clone();
        let head_len = image.head.len() as u64;
        let in_file = all_apart(&parts, |part| part.file_offset, 0, u64::MAX);
        parts.sort_unstable_by_key(|part| part.buffer_offset);
        let in_image = all_apart(&parts, |part| part.buffer_offset, head_len, len_bytes);
        (head_len <= len_bytes && in_file && in_image).then_some(image)
    }

    /// Makes a layout like [`Self::new`], without checking that the parts do not overlap.
    pub(crate) fn of_parts(
        head: Vec<u8>,
        mut parts: Vec<Part>,
        len_bytes: u64,
        alignment: Granule,
    ) -> Self {
        parts.retain(|part| part.len_bytes > 0);
        parts.sort_unstable_by_key(|part| part.file_offset);
        // Merge parts that are adjacent in both.
        parts.dedup_by(|next, last| {
            let follows = last.file_offset.checked_add(last.len_bytes) == Some(next.file_offset)
                && last.buffer_offset.checked_add(last.len_bytes) == Some(next.buffer_offset)
                && last.len_bytes.checked_add(next.len_bytes).is_some();
            if follows {
                last.len_bytes += next.len_bytes;
            }
            follows
        });
        Self { head, parts, len_bytes, alignment }
    }

    /// Makes the layout of a file of `len_bytes` that stays as it is.
    pub fn whole(len_bytes: u64, alignment: Granule) -> Self {
        Self::of_parts(Vec::new(), vec![Part::new(0, 0, len_bytes)], len_bytes, alignment)
    }

    /// Returns the bytes before all parts; none if the file stays as it is.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the parts in the order of the file. Their buffer offsets are relative to the beginning of
    /// the layout. The parts overlap neither each other, in the file or in the layout, nor the head.
    /// Bytes of the layout that are in no part and not in the head are zero.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Splits the layout into its head and its parts.
    pub fn into_parts(self) -> (Vec<u8>, Vec<Part>) {
        (self.head, self.parts)
    }

    /// Returns the length of the layout in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the alignment that the beginning of the layout needs.
    pub fn alignment(&self) -> Granule {
        self.alignment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_share_a_byte_or_lie_outside_are_refused() {
        let image = |head: usize, parts: &[(u64, u64, u64)]| {
            let parts = parts.iter().map(|(file, buffer, len)| Part::new(*file, *buffer, *len));
            Image::new(vec![0; head], parts.collect(), 100, Granule::SIZE_4K)
        };
        let made = image(10, &[(50, 10, 40), (0, 60, 40), (90, 50, 10)]).unwrap();
        assert_eq!(made.parts(), [Part::new(0, 60, 40), Part::new(50, 10, 50)]);
        assert!(image(100, &[(7, 200, 0)]).unwrap().parts().is_empty());
        for (head, parts) in [
            (101, &[][..]),
            (10, &[(0, 9, 1)]),
            (0, &[(0, 99, 2)]),
            (0, &[(0, 0, 101)]),
            (0, &[(0, 0, 10), (9, 10, 10)]),
            (0, &[(0, 0, 10), (20, 9, 10)]),
            (0, &[(5, 0, u64::MAX)]),
            (0, &[(0, u64::MAX, 2)]),
            (0, &[(u64::MAX, 0, 1)]),
        ] {
            assert_eq!(image(head, parts), None, "{head} {parts:?}");
        }
    }
}
