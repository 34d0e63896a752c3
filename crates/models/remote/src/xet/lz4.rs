//! Frames of LZ4 (<https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md>) into memory of a known length.
//!
//! The blocks are decoded to their place, so that a frame cannot make the process allocate anything, whatever
//! block size it claims.

use xxhash_rust::xxh32::xxh32;

use super::InvalidXet;

const MAGIC: u32 = 0x184D_2204;
/// The bits of the first byte of the descriptor.
const VERSION_MASK: u8 = 0b1100_0000;
const VERSION: u8 = 0b0100_0000;
const INDEPENDENT: u8 = 0b0010_0000;
const BLOCK_CHECKSUMS: u8 = 0b0001_0000;
const CONTENT_SIZE: u8 = 0b0000_1000;
const CONTENT_CHECKSUM: u8 = 0b0000_0100;
/// Reserved bits, and that of a dictionary, which chunks do not have.
const REFUSED: u8 = 0b0000_0011;
/// The bit of the length of a block that is not compressed.
const STORED: u32 = 0x8000_0000;

/// Decodes the one frame in `frame`, which fills `content`.
///
/// # Errors
/// [`InvalidXet`] if the frame is not valid, or its content has another length.
pub(super) fn decode(frame: &[u8], content: &mut [u8]) -> Result<(), InvalidXet> {
    let mut rest = Rest(frame);
    if rest.number()? != MAGIC {
        return Err(InvalidXet("a chunk has no frame of LZ4"));
    }
    let descriptor = rest.0;
    let [flags, size] = rest.take()?;
    let block_max = match size {
        0x40 => 64 << 10,
        0x50 => 256 << 10,
        0x60 => 1 << 20,
        0x70 => 4 << 20,
        _ => return Err(DESCRIPTOR),
    };
    if flags & VERSION_MASK != VERSION || flags & REFUSED != 0 {
        return Err(DESCRIPTOR);
    }
    if flags & CONTENT_SIZE != 0 && u64::from_le_bytes(rest.take()?) != content.len() as u64 {
        return Err(LENGTH);
    }
    let sum = xxh32(&descriptor[..descriptor.len() - rest.0.len()], 0);
    if rest.take()? != [sum.to_le_bytes()[1]] {
        return Err(DESCRIPTOR);
    }
    let mut done = 0;
    loop {
        let len = rest.number()?;
        if len == 0 {
            break;
        }
        let is_stored = len & STORED != 0;
        let data = rest.slice((len & !STORED) as usize)?;
        if flags & BLOCK_CHECKSUMS != 0 && rest.number()? != xxh32(data, 0) {
            return Err(CHECKSUM);
        }
        let (before, place) = content.split_at_mut(done);
        let place_len = place.len().min(block_max);
        let place = &mut place[..place_len];
        done += match is_stored {
            true => {
                let place = place.get_mut(..data.len()).ok_or(LENGTH)?;
                place.copy_from_slice(data);
                data.len()
            }
            false if flags & INDEPENDENT != 0 => {
                lz4_flex::block::decompress_into(data, place).map_err(|_| BLOCK)?
            }
            false => lz4_flex::block::decompress_into_with_dict(data, place, before)
                .map_err(|_| BLOCK)?,
        };
    }
    if flags & CONTENT_CHECKSUM != 0 && rest.number()? != xxh32(content, 0) {
        return Err(CHECKSUM);
    }
    if done != content.len() || !rest.0.is_empty() {
        return Err(LENGTH);
    }
    Ok(())
}

const DESCRIPTOR: InvalidXet = InvalidXet("a frame of LZ4 has a descriptor that is not valid");
const BLOCK: InvalidXet = InvalidXet("a block of LZ4 is not valid");
const CHECKSUM: InvalidXet = InvalidXet("a frame of LZ4 has a wrong checksum");
const LENGTH: InvalidXet = InvalidXet("a chunk has another length than its header");

/// The bytes of a frame that have not been read.
struct Rest<'f>(&'f [u8]);

impl<'f> Rest<'f> {
    fn slice(&mut self, len: usize) -> Result<&'f [u8], InvalidXet> {
        let (slice, rest) = self.0.split_at_checked(len).ok_or(InvalidXet("a chunk is cut off"))?;
        self.0 = rest;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], InvalidXet> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(InvalidXet("a chunk is cut off"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn number(&mut self) -> Result<u32, InvalidXet> {
        self.take().map(u32::from_le_bytes)
    }
}
