//! Content that can be checked anywhere without a copy of it: byte `i` of a file follows from the file's
//! seed and `i` alone. Two words of a file are unlikely to be equal, so a misplaced or missing block is
//! detected.

const WORD_BYTES: u64 = 8;

/// Fills `bytes` with the content from `offset` of the file with this seed.
pub fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    let (head_len, mut index) = split(offset, bytes.len());
    let (head, body) = bytes.split_at_mut(head_len);
    fill_part(seed, offset, head);
    let mut words = body.chunks_exact_mut(WORD_BYTES as usize);
    for bytes in &mut words {
        bytes.copy_from_slice(&word(seed, index).to_le_bytes());
        index += 1;
    }
    fill_part(seed, index * WORD_BYTES, words.into_remainder());
}

/// Compares `bytes` with the content from `offset` of the file with this seed, and returns the file
/// offset of the first byte that differs, if any.
#[must_use]
pub fn first_difference(seed: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let (head_len, mut index) = split(offset, bytes.len());
    let (head, body) = bytes.split_at(head_len);
    if let found @ Some(_) = difference_in_part(seed, offset, head) {
        return found;
    }
    // Compare whole words, because a guest checks hundreds of megabytes on an emulated processor.
    let (words, tail) = body.as_chunks();
    for bytes in words {
        if u64::from_le_bytes(*bytes) != word(seed, index) {
            return difference_in_part(seed, index * WORD_BYTES, bytes);
        }
        index += 1;
    }
    difference_in_part(seed, index * WORD_BYTES, tail)
}

/// Returns how many of the `len` bytes from `offset` precede the next whole word, and its index.
fn split(offset: u64, len: usize) -> (usize, u64) {
    // Less than a word, so it fits into a usize.
    let before = (offset.next_multiple_of(WORD_BYTES) - offset) as usize;
    (before.min(len), offset.div_ceil(WORD_BYTES))
}

/// Fills a part of one word.
fn fill_part(seed: u64, offset: u64, part: &mut [u8]) {
    let word = word(seed, offset / WORD_BYTES).to_le_bytes();
    let skip = (offset % WORD_BYTES) as usize;
    part.copy_from_slice(&word[skip..skip + part.len()]);
}

/// Like [`first_difference`], for bytes within one word.
fn difference_in_part(seed: u64, offset: u64, part: &[u8]) -> Option<u64> {
    let mut expected = [0; WORD_BYTES as usize];
    let expected = &mut expected[..part.len()];
    fill_part(seed, offset, expected);
    let at = part.iter().zip(expected).position(|(found, expected)| found != expected)?;
    Some(offset + at as u64)
}

/// Returns output number `index` of the generator splitmix64 with the seed `seed`.
fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        assert_eq!(word(0, 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(word(0, 1), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn any_part_equals_that_part_of_the_whole() {
        let mut whole = [0; 100];
        fill(7, 0, &mut whole);
        for start in 0..20 {
            for len in 0..30 {
                let mut part = vec![0; len];
                fill(7, start as u64, &mut part);
                assert_eq!(part, whole[start..start + len]);
                assert_eq!(first_difference(7, start as u64, &part), None);
            }
        }
    }

    #[test]
    fn every_changed_byte_is_found_at_its_offset() {
        let mut bytes = [0; 64];
        fill(1, 1000, &mut bytes);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(first_difference(1, 1000, &bytes), Some(1000 + at as u64));
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn another_seed_or_offset_has_another_content() {
        let mut bytes = [0; 64];
        fill(1, 0, &mut bytes);
        assert_eq!(first_difference(2, 0, &bytes), Some(0));
        assert_eq!(first_difference(1, 4096, &bytes), Some(4096));
    }
}
