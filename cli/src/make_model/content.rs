//! Synthetic files with the tensors of a language model and random content.

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use longshore::load::AtomicFile;
use longshore::mem::ByteSize;
use longshore::{CancelToken, Progress};

/// The smallest length of a [`Synthetic`] file in bytes; a smaller file has no room for a layer.
pub(super) const SYNTHETIC_LEN_MIN_BYTES: u64 = 32 << 10;

/// The largest length of a [`Synthetic`] file in bytes: ten times the largest published models.
pub(super) const SYNTHETIC_LEN_MAX_BYTES: u64 = 16 << 40;

/// The possible widths of models, each at most twice the one before. Published models have those
/// from 512 on.
pub(super) const HIDDEN_SIZES: [u64; 18] = [
    16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288,
    16384,
];

/// The bytes of one write: so many that the costs of calls and the disk's latency are negligible.
const BLOCK_BYTES: usize = 8 << 20;

/// The increment of SplitMix64: 2^64 divided by the golden ratio.
const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// A file with the tensors of a language model, of a given length and with content that neither
/// compresses nor repeats: for demonstrations, tests and measurements without a real model. `H` is
/// the header of its format.
///
/// The model is a decoder-only transformer: embedding, layers of grouped-query attention and a gated
/// feed-forward network, output head. Width and depth follow from the length. The bits are
/// pseudo-random, so some elements are NaN. In a GGUF file they are finite, so that engines can compute
/// with them: scales are small, and norms are between 1 and 2. Two files of the same length and seed are
/// equal, byte for byte.
#[derive(Clone, Debug)]
pub(super) struct Synthetic<H> {
    layout: Layout<H>,
    seed: u64,
}

/// The layout of a file: the bytes of its header and the result of parsing them.
#[derive(Clone, Debug)]
pub(super) struct Layout<H> {
    /// The bytes before the data.
    pub(super) opening: Vec<u8>,
    pub(super) header: H,
    /// The zero bytes after the opening, in ascending order.
    pub(super) padding: Vec<Range<u64>>,
    /// The bytes with exponents, in ascending order of their ranges.
    pub(super) exponents: Vec<Exponents>,
    pub(super) len_bytes: u64,
}

/// The bytes of a tensor that have the bits of exponents: one byte of each element, or of each block of
/// elements with a scale.
#[derive(Clone, Debug)]
pub(super) struct Exponents {
    pub(super) range: Range<u64>,
    pub(super) byte: ExponentByte,
}

/// One of the bytes with exponents, in an element or block.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExponentByte {
    /// The length of an element or block in bytes.
    pub(super) period: u64,
    /// The offset of the byte in it.
    pub(super) at: u64,
    /// The random bits that stay.
    pub(super) keep: u8,
    /// The bits that are set.
    pub(super) set: u8,
}

impl ExponentByte {
    /// The upper byte of an F16 number at `at`, which is then 2^-13 to 2^-12, of either sign.
    pub(super) const fn f16(period: u64, at: u64) -> Self {
        Self { period, at: at + 1, keep: 0x83, set: 0x08 }
    }

    /// Both upper bytes of an F32 number, which is then 1 to 2.
    pub(super) const F32: [Self; 2] = [
        Self { period: 4, at: 2, keep: 0x7f, set: 0x80 },
        Self { period: 4, at: 3, keep: 0, set: 0x3f },
    ];
}

impl Exponents {
    /// Sets the bits of the bytes that lie in `bytes`, which begin at `offset` of the file.
    fn apply(&self, offset: u64, bytes: &mut [u8]) {
        let ExponentByte { period, at, keep, set } = self.byte;
        let end = self.range.end.min(offset + bytes.len() as u64);
        let first = self.range.start + at;
        let periods = offset.saturating_sub(first).div_ceil(period);
        let start = first + periods * period;
        if start < end {
            let inside = &mut bytes[(start - offset) as usize..(end - offset) as usize];
            inside.iter_mut().step_by(period as usize).for_each(|byte| *byte = *byte & keep | set);
        }
    }
}

/// Checks that a file can have this length.
pub(super) fn check_len(len_bytes: u64) -> anyhow::Result<()> {
    let possible = SYNTHETIC_LEN_MIN_BYTES..=SYNTHETIC_LEN_MAX_BYTES;
    anyhow::ensure!(
        possible.contains(&len_bytes),
        "a synthetic model has {} to {}, not {}",
        ByteSize(SYNTHETIC_LEN_MIN_BYTES),
        ByteSize(SYNTHETIC_LEN_MAX_BYTES),
        ByteSize(len_bytes)
    );
    Ok(())
}

impl<H> Synthetic<H> {
    pub(super) fn of(layout: Layout<H>) -> Self {
        Self { layout, seed: 0 }
    }

    /// Sets the seed of the content. The default is 0.
    #[cfg(test)]
    pub(super) fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Returns the length of the file in bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.layout.len_bytes
    }

    /// Returns the header of the file.
    pub(super) fn header(&self) -> &H {
        &self.layout.header
    }

    /// Fills `bytes` with the content from `offset` on, and with zeros past the end of the file. Any
    /// range can be computed by itself, so loaded bytes can be compared with it.
    pub(super) fn fill(&self, offset: u64, bytes: &mut [u8]) {
        let left = self.len_bytes().saturating_sub(offset);
        let inside_len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let (inside, past) = bytes.split_at_mut(inside_len);
        past.fill(0);

        let opening = usize::try_from(offset).ok().and_then(|at| self.layout.opening.get(at..));
        let opening = opening.unwrap_or(&[]);
        let (from_opening, content) = inside.split_at_mut(opening.len().min(inside_len));
        from_opening.copy_from_slice(&opening[..from_opening.len()]);
        self.fill_content(offset + from_opening.len() as u64, content);
        let end = offset.saturating_add(inside_len as u64);
        let exponents = &self.layout.exponents;
        let first = exponents.partition_point(|one| one.range.end <= offset);
        for one in exponents[first..].iter().take_while(|one| one.range.start < end) {
            one.apply(offset, inside);
        }
        let padding = &self.layout.padding;
        let first = padding.partition_point(|gap| gap.end <= offset);
        for gap in padding[first..].iter().take_while(|gap| gap.start < end) {
            let (from, to) = (gap.start.max(offset) - offset, gap.end.min(end) - offset);
            inside[from as usize..to as usize].fill(0);
        }
    }

    fn fill_content(&self, offset: u64, bytes: &mut [u8]) {
        let into_word = (offset % 8) as usize;
        let head_len = if into_word == 0 { 0 } else { (8 - into_word).min(bytes.len()) };
        let (head, rest) = bytes.split_at_mut(head_len);
        let mut index = offset / 8;
        if head_len > 0 {
            head.copy_from_slice(&self.word(index)[into_word..into_word + head_len]);
            index += 1;
        }
        let mut words = rest.chunks_exact_mut(8);
        for word in words.by_ref() {
            word.copy_from_slice(&self.word(index));
            index += 1;
        }
        let tail = words.into_remainder();
        tail.copy_from_slice(&self.word(index)[..tail.len()]);
    }

    /// Computes the eight bytes at `index * 8` of the file: output number `index` of SplitMix64
    /// (Steele, Lea and Flood, 2014), so that no word depends on another.
    fn word(&self, index: u64) -> [u8; 8] {
        let mut z = self.seed.wrapping_add(index.wrapping_add(1).wrapping_mul(WEYL));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }

    /// Writes the file to `path`, and replaces an existing one. The file gets its name when it is
    /// complete and on the disk. Calls `observe` after every 8 MiB. Returns the number of bytes that
    /// were written: all of them, or fewer if it was cancelled, and then no file is left behind.
    pub(super) fn write(
        &self,
        path: &Path,
        cancel: &CancelToken,
        mut observe: impl FnMut(Progress),
    ) -> anyhow::Result<u64> {
        let mut done_bytes = 0;
        let written = AtomicFile::create(path).and_then(|mut file| {
            let complete = self.write_to(file.file(), cancel, &mut done_bytes, &mut observe)?;
            if complete { file.commit() } else { Ok(()) }
        });
        let total_bytes = self.len_bytes();
        written.with_context(|| {
            let (done, total) = (ByteSize(done_bytes), ByteSize(total_bytes));
            format!("writing {} failed after {done} of {total}", path.display())
        })?;
        Ok(done_bytes)
    }

    /// Writes the content; returns `false` if it was cancelled.
    fn write_to(
        &self,
        mut out: impl Write,
        cancel: &CancelToken,
        done_bytes: &mut u64,
        mut observe: impl FnMut(Progress),
    ) -> io::Result<bool> {
        let began = Instant::now();
        let total_bytes = self.len_bytes();
        let mut block = vec![0; BLOCK_BYTES.min(total_bytes as usize)];
        while *done_bytes < total_bytes {
            if cancel.is_cancelled() {
                return Ok(false);
            }
            let len = (total_bytes - *done_bytes).min(block.len() as u64);
            let block = &mut block[..len as usize];
            self.fill(*done_bytes, block);
            out.write_all(block)?;
            *done_bytes += len;
            observe(Progress::new(*done_bytes, total_bytes, began.elapsed()));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make_model::{gguf, safetensors};

    /// A writer that is full after this many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn check_ranges<H>(model: &Synthetic<H>) {
        let len = model.len_bytes() as usize;
        let mut whole = vec![0; len];
        model.fill(0, &mut whole);
        let opening_len = model.layout.opening.len();
        let gap = model.layout.padding.first().map_or(0, |gap| gap.start as usize);
        for (offset, len) in [
            (0, 1),
            (3, 5),
            (opening_len - 3, 20),
            (opening_len + 1, 6),
            (gap.saturating_sub(1), 2),
            (gap + 1, 40),
            (9_001, 77),
            (len - 1, 1),
        ] {
            let mut part = vec![0xff; len];
            model.fill(offset as u64, &mut part);
            assert_eq!(part, whole[offset..offset + len], "{len} at {offset}");
        }
        let mut past = [0xff; 4];
        model.fill(len as u64 - 2, &mut past);
        assert_eq!(past, [whole[len - 2], whole[len - 1], 0, 0]);
        model.fill(u64::MAX, &mut past);
        assert_eq!(past, [0; 4]);
    }

    #[test]
    fn any_range_equals_that_range_of_the_whole_file() {
        check_ranges(&safetensors::Synthetic::new(40_000).unwrap());
        let gguf = gguf::Synthetic::new(40_000).unwrap();
        assert!(!gguf.layout.padding.is_empty());
        check_ranges(&gguf);
    }

    #[test]
    fn content_is_the_output_of_splitmix64() {
        // The first outputs for the seed 1234567, from its authors' C code.
        let model = safetensors::Synthetic::new(SYNTHETIC_LEN_MIN_BYTES).unwrap().seed(1_234_567);
        let words = [0, 1, 2].map(|index| u64::from_le_bytes(model.word(index)));
        assert_eq!(
            words,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn a_full_disk_is_reported_with_the_bytes_done() {
        let model = safetensors::Synthetic::new(20 << 20).unwrap();
        let mut done_bytes = 0;
        let error = model
            .write_to(Full(9 << 20), &CancelToken::new(), &mut done_bytes, |_| {})
            .unwrap_err();
        assert_eq!((error.kind(), done_bytes), (io::ErrorKind::StorageFull, 8 << 20));
    }
}
