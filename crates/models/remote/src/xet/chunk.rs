//! Chunks ("Chunk Format" in the specification), which are untrusted input.
//!
//! ```text
//!   0         1                     4             5                      8
//!   ┌─────────┬─────────────────────┬─────────────┬──────────────────────┬──────┐
//!   │ version │ length of the data  │ compression │ length of the chunk  │ data │
//!   └─────────┴─────────────────────┴─────────────┴──────────────────────┴──────┘
//! ```

use super::InvalidXet;
use super::lz4;

/// The length of the header of a chunk.
pub const CHUNK_HEADER_BYTES: usize = 8;
/// The limit on the length of a chunk.
pub const CHUNK_MAX_BYTES: usize = 128 << 10;
/// The limit on the compressed length of a chunk, which the reference implementation has, too.
pub(super) const DATA_MAX_BYTES: usize = 2 * CHUNK_MAX_BYTES;

/// The form in which a chunk is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// The bytes as they are.
    None,
    /// A frame of LZ4.
    Lz4,
    /// A frame of LZ4 with the first bytes of all groups of four, then all second ones, and so on.
    ByteGroupingLz4,
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkHeader {
    /// The form of the data.
    pub compression: Compression,
    /// The length of the data behind the header, in bytes.
    pub data_len_bytes: usize,
    /// The length of the chunk in bytes.
    pub len_bytes: usize,
}

impl ChunkHeader {
    /// Parses a header. The lengths are within the limits.
    ///
    /// # Errors
    /// [`InvalidXet`].
    pub fn parse(header: [u8; CHUNK_HEADER_BYTES]) -> Result<Self, InvalidXet> {
        let [version, a0, a1, a2, compression, b0, b1, b2] = header;
        let number = |bytes: [u8; 3]| {
            let [low, middle, high] = bytes.map(usize::from);
            low | middle << 8 | high << 16
        };
        let (data_len_bytes, len_bytes) = (number([a0, a1, a2]), number([b0, b1, b2]));
        if version != 0 {
            return Err(InvalidXet("a chunk has an unknown version"));
        }
        let compression = match compression {
            0 => Compression::None,
            1 => Compression::Lz4,
            2 => Compression::ByteGroupingLz4,
            _ => return Err(InvalidXet("a chunk has an unknown compression")),
        };
        let is_stored = compression == Compression::None;
        if len_bytes == 0
            || len_bytes > CHUNK_MAX_BYTES
            || data_len_bytes > DATA_MAX_BYTES
            || is_stored && data_len_bytes != len_bytes
        {
            return Err(InvalidXet("the lengths in the header of a chunk are not valid"));
        }
        Ok(Self { compression, data_len_bytes, len_bytes })
    }
}

/// The memory in which chunks are decompressed, one after the other.
#[derive(Debug, Default)]
pub struct ChunkDecoder {
    content: Vec<u8>,
    grouped: Vec<u8>,
}

impl ChunkDecoder {
    /// Makes a decoder, which allocates at most twice [`CHUNK_MAX_BYTES`] when it needs them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the content of a chunk, whose length is that of the header.
    ///
    /// # Errors
    /// [`InvalidXet`] if `data` is not that of such a chunk.
    pub fn decode<'c>(
        &'c mut self,
        header: &ChunkHeader,
        data: &'c [u8],
    ) -> Result<&'c [u8], InvalidXet> {
        if data.len() != header.data_len_bytes {
            return Err(InvalidXet("a chunk is cut off"));
        }
        match header.compression {
            Compression::None if data.len() == header.len_bytes => Ok(data),
            Compression::None => Err(InvalidXet("a chunk has another length than its header")),
            Compression::Lz4 => {
                let content = sized(&mut self.content, header.len_bytes);
                lz4::decode(data, content)?;
                Ok(content)
            }
            Compression::ByteGroupingLz4 => {
                let grouped = sized(&mut self.grouped, header.len_bytes);
                lz4::decode(data, grouped)?;
                let content = sized(&mut self.content, header.len_bytes);
                ungroup(grouped, content);
                Ok(content)
            }
        }
    }
}

/// Returns the first `len` bytes of a vector, which grows if it is shorter.
fn sized(bytes: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if bytes.len() < len {
        bytes.resize(len, 0);
    }
    &mut bytes[..len]
}

/// Puts bytes that are grouped by their position in groups of four into their order.
fn ungroup(grouped: &[u8], content: &mut [u8]) {
    let (quarter, rest) = (grouped.len() / 4, grouped.len() % 4);
    let (first, others) = grouped.split_at(quarter + usize::from(rest > 0));
    let (second, others) = others.split_at(quarter + usize::from(rest > 1));
    let (third, fourth) = others.split_at(quarter + usize::from(rest > 2));
    let mut words = content.chunks_exact_mut(4);
    let groups = first.iter().zip(second).zip(third.iter().zip(fourth));
    for (word, ((a, b), (c, d))) in words.by_ref().zip(groups) {
        word.copy_from_slice(&[*a, *b, *c, *d]);
    }
    for (byte, group) in words.into_remainder().iter_mut().zip([first, second, third]) {
        *byte = group[quarter];
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    use proptest::prelude::*;

    use super::*;

    fn header(compression: u8, data_len: usize, len: usize) -> [u8; 8] {
        let mut header = [0; 8];
        header[1..4].copy_from_slice(&data_len.to_le_bytes()[..3]);
        header[4] = compression;
        header[5..8].copy_from_slice(&len.to_le_bytes()[..3]);
        header
    }

    fn frame(content: &[u8], info: FrameInfo) -> Vec<u8> {
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Groups bytes one by one, as the specification describes it.
    fn grouped(content: &[u8]) -> Vec<u8> {
        let group = |at: usize| content.iter().skip(at).step_by(4).copied();
        (0..4).flat_map(group).collect()
    }

    fn decoded(compression: u8, data: &[u8], len: usize) -> Result<Vec<u8>, InvalidXet> {
        let header = ChunkHeader::parse(header(compression, data.len(), len))?;
        ChunkDecoder::new().decode(&header, data).map(<[u8]>::to_vec)
    }

    #[test]
    fn headers_with_wrong_lengths_are_refused() {
        for (header, words) in [
            (header(3, 1, 1), "compression"),
            (header(99, 1, 1), "compression"),
            (header(0, 2, 1), "lengths"),
            (header(1, 1, 0), "lengths"),
            (header(0, 0, 0), "lengths"),
            (header(1, 1, CHUNK_MAX_BYTES + 1), "lengths"),
            (header(2, DATA_MAX_BYTES + 1, 1), "lengths"),
            (*b"XETBLOB\0", "version"),
        ] {
            let refused = ChunkHeader::parse(header).unwrap_err();
            assert!(refused.to_string().contains(words), "{header:?}: {refused}");
        }
        let longest = ChunkHeader::parse(header(1, DATA_MAX_BYTES, CHUNK_MAX_BYTES)).unwrap();
        assert_eq!((longest.len_bytes, longest.compression), (CHUNK_MAX_BYTES, Compression::Lz4));
    }

    #[test]
    fn data_of_another_length_is_refused() {
        let content = b"content ".repeat(100);
        let data = frame(&content, FrameInfo::new());
        assert_eq!(decoded(1, &data, content.len()).unwrap(), content);
        for len in [1, content.len() - 1, content.len() + 1, CHUNK_MAX_BYTES] {
            assert!(decoded(1, &data, len).is_err() && decoded(2, &data, len).is_err());
        }
        // 128 KiB in a frame that claims to be one byte.
        let bomb = frame(&[0; CHUNK_MAX_BYTES], FrameInfo::new());
        assert!(decoded(1, &bomb, 1).is_err());
        let header = ChunkHeader::parse(header(1, data.len(), content.len())).unwrap();
        assert!(ChunkDecoder::new().decode(&header, &data[..data.len() - 1]).is_err());
    }

    proptest! {
        #[test]
        fn chunks_are_decoded(
            content in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1..5000),
            times in 1usize..26,
            linked in any::<bool>(),
            sums in any::<bool>(),
        ) {
            let content = content.repeat(times);
            let mode = if linked { BlockMode::Linked } else { BlockMode::Independent };
            let info = FrameInfo::new()
                .block_mode(mode)
                .block_size(BlockSize::Max64KB)
                .block_checksums(sums)
                .content_checksum(sums)
                .content_size(sums.then_some(content.len() as u64));
            let len = content.len();
            prop_assert_eq!(&decoded(0, &content, len).unwrap(), &content);
            let data = frame(&content, info.clone());
            prop_assert_eq!(&decoded(1, &data, len).unwrap(), &content);
            let data = frame(&grouped(&content), info);
            prop_assert_eq!(&decoded(2, &data, len).unwrap(), &content);
        }

        #[test]
        fn damaged_frames_give_a_result(
            content in prop::collection::vec(any::<u8>(), 1..300),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let content = content.repeat(3);
            let info = FrameInfo::new().content_checksum(true);
            let mut data = frame(&content, info);
            let at = at.index(data.len());
            let is_damaged = data[at] != byte;
            data[at] = byte;
            let found = decoded(1, &data, content.len());
            // A match can refer to the same bytes at another offset.
            prop_assert!(!is_damaged || found.is_err() || found.unwrap() == content);
        }
    }
}
