//! Files with the same tensors at other places.

use longshore_mem::Granule;

/// Consecutive bytes of a file that stay together on their way into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// Where they begin in the file.
    pub file_offset: u64,
    /// Where they go, from the beginning of the image or of the buffer.
    pub buffer_offset: u64,
    /// How many they are.
    pub len_bytes: u64,
}

impl Part {
    /// Makes a part of these bytes.
    pub const fn new(file_offset: u64, buffer_offset: u64, len_bytes: u64) -> Self {
        Self { file_offset, buffer_offset, len_bytes }
    }
}

/// The content that takes the place of a file in a buffer: a header of its own at the beginning, and
/// parts of the file behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    head: Vec<u8>,
    parts: Vec<Part>,
    len_bytes: u64,
    alignment: Granule,
}

impl Image {
    /// Makes the image of `len_bytes` with these parts, in any order. Returns `None` if two of them
    /// share a byte, of the file or of the image, if one shares a byte with the head, or if the head or
    /// a part does not end within `len_bytes`.
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

    /// As [`Self::new`], of parts that share no byte.
    pub(crate) fn of_parts(
        head: Vec<u8>,
        mut parts: Vec<Part>,
        len_bytes: u64,
        alignment: Granule,
    ) -> Self {
        parts.retain(|part| part.len_bytes > 0);
        parts.sort_unstable_by_key(|part| part.file_offset);
        // What stays side by side is one part.
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

    /// Makes the image of a file of `len_bytes` as it is.
    pub fn whole(len_bytes: u64, alignment: Granule) -> Self {
        Self::of_parts(Vec::new(), vec![Part::new(0, 0, len_bytes)], len_bytes, alignment)
    }

    /// Returns the bytes that come before all parts; none if the file is taken as it is.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the parts in the order of the file, their places counted from the beginning of the
    /// image. No two share a byte, of the file or of the image, nor one with the head. Bytes of the
    /// image that are in none are zeros.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Takes the image apart into its head and its parts.
    pub fn into_parts(self) -> (Vec<u8>, Vec<Part>) {
        (self.head, self.parts)
    }

    /// Returns the length of the image in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns what the beginning of the image has to be a multiple of.
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
