//! Content that follows from its offset: it does not compress, and misplaced content is detected.

use anyhow::{Result, ensure};
use longshore_mem::VolatileSlice;

use super::DataFile;

const WORD: usize = 8;
/// One word of each page is checked, so that a missing or misplaced page is detected.
const STRIDE: u64 = 4096;
/// The bytes at either end that are compared completely, because alignment matters there.
const END_BYTES: u64 = 64 << 10;

/// Fills `bytes` with the content at `offset` of the data, a multiple of 8.
pub(crate) fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    let mut at = offset;
    for word in bytes.chunks_mut(WORD) {
        let value = word_at(seed, at).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
        at += WORD as u64;
    }
}

/// Checks that `content` is the content of `file`: one word of each page, and both ends completely.
pub(crate) fn check(file: &DataFile, content: VolatileSlice<'_>) -> Result<()> {
    ensure!(
        content.len() as u64 == file.len_bytes,
        "{} bytes were loaded from a file of {}",
        content.len(),
        file.len_bytes
    );
    let (start, len) = (file.data_start as usize, (file.len_bytes - file.data_start) as usize);
    check_part(file, content.subslice(start, len)?, file.data_start)
}

/// Like [`check`], for a part of the data that begins at `offset`, a multiple of 8.
pub(crate) fn check_part(file: &DataFile, content: VolatileSlice<'_>, offset: u64) -> Result<()> {
    let end = content.len() as u64;
    let check_range = |start: u64, end: u64| -> Result<()> {
        for at in (start..end).step_by(WORD) {
            let (mut seen, mut meant) = ([0u8; WORD], [0u8; WORD]);
            let len = (end - at).min(WORD as u64) as usize;
            content.read(at as usize, &mut seen[..len])?;
            fill(file.seed, offset + at, &mut meant[..len]);
            let place = offset + at;
            ensure!(seen == meant, "the content at byte {place} of {} is wrong", file.len_bytes);
        }
        Ok(())
    };
    check_range(0, end.min(END_BYTES))?;
    for page in (0..end).step_by(STRIDE as usize) {
        check_range(page, end.min(page + WORD as u64))?;
    }
    check_range(end.saturating_sub(END_BYTES).next_multiple_of(WORD as u64).min(end), end)
}

/// Returns the value at position `offset` of Steele, Lea and Flood's SplitMix64 with the seed `seed`.
fn word_at(seed: u64, offset: u64) -> u64 {
    let position = (offset / WORD as u64).wrapping_add(1);
    let mut z = seed.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    fn view(bytes: &[u8]) -> VolatileSlice<'_> {
        let start = NonNull::from(bytes).cast();
        #[expect(unsafe_code, reason = "a view of bytes that the test owns")]
        // SAFETY: the view borrows `bytes`, and no code writes to them.
        unsafe {
            VolatileSlice::from_raw_parts(start, bytes.len())
        }
    }

    fn file(len_bytes: u64) -> DataFile {
        DataFile { path: "/x".into(), len_bytes, data_start: 24, seed: 7 }
    }

    #[test]
    fn a_changed_or_misplaced_page_is_detected() {
        let mut bytes = vec![0u8; 300_001];
        fill(7, 0, &mut bytes);
        let file = file(300_001);
        check(&file, view(&bytes)).unwrap();
        // The header is not checked.
        bytes[3] ^= 1;
        check(&file, view(&bytes)).unwrap();
        for at in [24, 24 + 4096 * 40, 300_000] {
            bytes[at] ^= 1;
            assert!(check(&file, view(&bytes)).is_err(), "{at}");
            bytes[at] ^= 1;
        }
        check_part(&file, view(&bytes[80_000..290_003]), 80_000).unwrap();
        assert!(check_part(&file, view(&bytes[80_000..290_000]), 80_008).is_err());
        bytes.copy_within(4096 * 30..4096 * 31, 4096 * 31);
        assert!(check(&file, view(&bytes)).is_err());
        assert!(check(&file, view(&bytes[..300_000])).is_err());
    }

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first values of SplitMix64 for the seed 1234567, as its authors published them.
        assert_eq!(word_at(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(word_at(1_234_567, 8), 3_203_168_211_198_807_973);
    }
}
