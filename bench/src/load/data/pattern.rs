//! Content that follows from its place: not compressible, and wrong wherever it is misplaced.

use anyhow::{Result, ensure};
use longshore_mem::VolatileSlice;

use super::DataFile;

const WORD: usize = 8;
/// One word of each page is looked at, so that no page can be missing or in another's place.
const STRIDE: u64 = 4096;
/// So much is compared whole at either end, where alignment is handled.
const END_BYTES: u64 = 64 << 10;

/// Writes what belongs at `offset` of the data, a multiple of 8, into `bytes`.
pub(crate) fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    let mut at = offset;
    for word in bytes.chunks_mut(WORD) {
        let value = word_at(seed, at).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
        at += WORD as u64;
    }
}

/// Checks that `content` is the content of `file`: a word of each page, and both ends whole.
pub(crate) fn check(file: &DataFile, content: VolatileSlice<'_>) -> Result<()> {
    ensure!(
        content.len() as u64 == file.len_bytes,
        "{} bytes came of a file of {}",
        content.len(),
        file.len_bytes
    );
    let (start, len) = (file.data_start as usize, (file.len_bytes - file.data_start) as usize);
    check_part(file, content.subslice(start, len)?, file.data_start)
}

/// Checks that `content` is what `file` has from `offset` on, a multiple of 8: as [`check`].
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

/// Steele, Lea and Flood's SplitMix64 at position `offset` of the sequence of `seed`.
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
        // SAFETY: the view borrows `bytes`, which nothing writes to meanwhile.
        unsafe {
            VolatileSlice::from_raw_parts(start, bytes.len())
        }
    }

    fn file(len_bytes: u64) -> DataFile {
        DataFile { path: "/x".into(), len_bytes, data_start: 24, seed: 7 }
    }

    #[test]
    fn a_changed_or_misplaced_page_is_noticed() {
        let mut bytes = vec![0u8; 300_001];
        fill(7, 0, &mut bytes);
        let file = file(300_001);
        check(&file, view(&bytes)).unwrap();
        // The header is not looked at.
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
    fn the_sequence_is_that_of_its_authors() {
        // The first values of SplitMix64 for the seed 1234567, as published with it.
        assert_eq!(word_at(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(word_at(1_234_567, 8), 3_203_168_211_198_807_973);
    }
}
