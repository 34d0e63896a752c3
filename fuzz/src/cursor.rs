//! Properties of cursors for any operations. Panics if one is violated.
//!
//! The fuzz target calls this, and so does the test of `longshore-iov` that replays the corpus. The
//! memory is that of the same crate's tests, which is a module beside this one.
//!
//! The format of the input:
//!
//! ```text
//!     kinds   seed   segments   one length each   segments   one length each   operations …
//!             byte   ╰─────── the source ───────╯  ╰──── the destination ────╯  a byte, and a length
//!                                                                               if it has one
//! ```
//!
//! The operations are also applied to a walk of pages that end at 2^64.

use longshore_iov::checksum::Checksum;
use longshore_iov::copy::Engine;
use longshore_iov::crc32c::Crc32c;
use longshore_iov::{Cursor, Dest, Direction, Error, Mark, Segment, SegmentSource, Source, copy};

use crate::memory::{KINDS, Shape, at_the_top, bytes_of, with_dest, with_source};

/// More than the 64 KiB that a checksum processes at once, and small enough for thousands of runs per
/// second.
const MEMORY_MAX_BYTES: usize = 96 << 10;
const SEGMENTS_MAX: usize = 16;
const OPS_MAX: usize = 64;

/// Reads a source, a destination and operations on both from `data`. Runs the operations with every
/// instruction set of the machine, and compares each step with a model that is one byte array.
pub fn iov_cursor(data: &[u8]) {
    let mut input = Input(data);
    let kinds = usize::from(input.byte());
    let source_kind = KINDS[kinds % KINDS.len()];
    // One more kind: a destination that discards.
    let dest_kind = KINDS.get(kinds / KINDS.len() % (KINDS.len() + 1)).copied();
    let seed = input.byte();
    let (from, to) = (input.shape(), input.shape());

    ends_at_the_top(seed, input);

    let content = Pattern(seed).bytes(0, from.len_bytes(source_kind));
    let room = dest_kind.map_or(to.lens.iter().sum(), |kind| to.len_bytes(kind));
    for engine in Engine::all() {
        with_source(source_kind, &from, &content, &mut |source| {
            let mut run = Run {
                engine,
                source: Place::new(content.len()),
                dest: Place::new(room),
                content: &content,
                written: vec![BEFORE; room],
                has_memory: dest_kind.is_some(),
                pattern: Pattern(!seed),
                made_bytes: 0,
            };
            let mut input = input;
            match dest_kind {
                Some(kind) => {
                    let written = with_dest(kind, &to, BEFORE, &mut |dest| {
                        run.all(&mut input, source, dest);
                    });
                    assert_eq!(written, run.written, "{kind:?}");
                }
                None => run.all(&mut input, source, &mut Cursor::<Dest>::discard(room)),
            }
        });
    }
}

/// Walks pages that end at 2^64, from up to 255 bytes before it. The byte before 2^64 is never reached,
/// and no address wraps around to page 0.
fn ends_at_the_top(below_the_top: u8, mut input: Input<'_>) {
    let possible = usize::from(below_the_top);
    let len_bytes = possible * 2 + input.len();
    at_the_top(below_the_top, len_bytes, &mut |cursor| {
        for _ in 0..OPS_MAX {
            if input.0.is_empty() {
                break;
            }
            let (op, len) = (input.byte(), input.len());
            let at = cursor.walked();
            let expected = len.min(possible - at);
            match op % 5 {
                0 => {
                    let mut into = vec![0; len];
                    assert_eq!(copy::read(cursor, &mut into), Ok(expected));
                    let first = u64::MAX - (possible - at) as u64;
                    let bytes = (0..expected).map(|at| (first + at as u64) as u8);
                    assert!(into[..expected].iter().copied().eq(bytes));
                }
                1 => assert_eq!(cursor.iterate_dyn(len, &mut |_, _| 0), expected),
                2 => cursor.advance(len),
                3 => {
                    let done = cursor.extract_segments(len, usize::MAX, &mut Vec::new());
                    assert_eq!(done, expected);
                }
                _ => {
                    assert_eq!(cursor.revert(len).is_ok(), len <= at);
                    assert_eq!(cursor.walked(), at.checked_sub(len).unwrap_or(at));
                    continue;
                }
            }
            assert_eq!(cursor.walked(), at + expected);
        }
    });
}

/// The initial bytes of a destination.
const BEFORE: u8 = 0xc3;

/// The rest of the input; zeros after its end.
#[derive(Clone, Copy)]
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns a length: half of them are short, the others up to a few thousand or to many thousand
    /// bytes.
    fn len(&mut self) -> usize {
        let byte = usize::from(self.byte());
        match byte >> 6 {
            0 | 1 => byte,
            2 => (byte & 63) * 33,
            _ => (byte & 63) * 1057,
        }
    }

    fn shape(&mut self) -> Shape {
        let count = 1 + usize::from(self.byte()) % SEGMENTS_MAX;
        let mut left = MEMORY_MAX_BYTES;
        let mut len = || {
            let len = self.len().min(left);
            left -= len;
            len
        };
        Shape { lens: (0..count).map(|_| len()).collect() }
    }
}

/// Bytes that do not repeat at small distances. With seed 0 all are zeros, and with seed 255 all are
/// ones; a one's-complement sum distinguishes those only at its ends.
struct Pattern(u8);

impl Pattern {
    fn bytes(&self, start: usize, len_bytes: usize) -> Vec<u8> {
        let byte = |at: usize| match self.0 {
            0 | 0xff => self.0,
            seed => (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed,
        };
        (start..start + len_bytes).map(byte).collect()
    }
}

/// The state that a cursor must report.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    left: usize,
    hidden: usize,
    /// The first byte to which the cursor can revert.
    given: usize,
}

impl Place {
    fn new(left: usize) -> Self {
        Self { at: 0, left, hidden: 0, given: 0 }
    }

    /// Moves forward by up to `len` bytes, and returns their range.
    fn next(&mut self, len: usize) -> std::ops::Range<usize> {
        let len = len.min(self.left);
        self.at += len;
        self.left -= len;
        self.at - len..self.at
    }
}

/// The states of two cursors, the content of the source, and the expected content of the destination.
struct Run<'a> {
    engine: Engine,
    source: Place,
    dest: Place,
    content: &'a [u8],
    written: Vec<u8>,
    /// `true` if the destination keeps what is written.
    has_memory: bool,
    pattern: Pattern,
    /// The number of bytes that were generated for writes so far.
    made_bytes: usize,
}

impl Run<'_> {
    fn all(
        &mut self,
        input: &mut Input<'_>,
        source: &mut Cursor<'_, Source>,
        dest: &mut Cursor<'_, Dest>,
    ) {
        let mut source_mark = (source.save(), self.source);
        let mut dest_mark = (dest.save(), self.dest);
        for _ in 0..OPS_MAX {
            if input.0.is_empty() {
                break;
            }
            let op = input.byte();
            match op % 32 {
                _ if op >= 0xf8 => self.extracts_dest(input, dest),
                _ if op >= 0xf0 => self.extracts_source(input, source),
                which @ 0..=5 => {
                    moves(which, input, source, &mut self.source, &mut source_mark);
                }
                which @ 6..=11 => {
                    moves(which - 6, input, dest, &mut self.dest, &mut dest_mark);
                }
                which @ 12..=19 => self.reads(which - 12, input, source),
                which @ 20..=26 => self.writes(which - 20, input, dest),
                which => self.transfers(which - 27, input, source, dest),
            }
            let places = (source.walked(), source.remaining(), dest.walked(), dest.remaining());
            let expected = (self.source.at, self.source.left, self.dest.at, self.dest.left);
            assert_eq!(places, expected, "after {op}, {}", self.engine.isa());
        }
        all_come_back(source, self.source);
        all_come_back(dest, self.dest);
    }

    /// Operations on the source alone.
    fn reads(&mut self, which: u8, input: &mut Input<'_>, source: &mut Cursor<'_, Source>) {
        let len = input.len();
        let mut into = vec![BEFORE; len];
        let done = match which {
            0 => self.engine.read(source, &mut into).unwrap(),
            1 => match copy::read_full(source, &mut into) {
                Ok(()) => len,
                Err(error) => {
                    let available_bytes = self.source.left;
                    assert_eq!(error, Error::TooShort { wanted_bytes: len, available_bytes });
                    assert!(available_bytes < len);
                    return;
                }
            },
            2 => {
                let mut checksum = Checksum::new();
                let done = self.engine.read_into(source, &mut into, &mut checksum).unwrap();
                assert_eq!(checksum.finish(), checksum_by_words(&into[..done]));
                done
            }
            3 => {
                let mut crc = Crc32c::new();
                let done = self.engine.read_into(source, &mut into, &mut crc).unwrap();
                assert_eq!(crc.finish(), crc_by_bytes(&into[..done]));
                done
            }
            4 => {
                let mut fed = Vec::new();
                let done = copy::read_into(source, &mut into, &mut |bytes: &[u8]| {
                    fed.extend_from_slice(bytes);
                });
                assert_eq!(fed, into[..done.unwrap()]);
                fed.len()
            }
            5 => return self.digests(len, source),
            6 => return self.walks(len, input, source),
            _ => {
                let outer = input.len();
                let mut taken = source.take(outer);
                assert_eq!(taken.remaining(), outer.min(self.source.left));
                let done = self.engine.read(&mut taken, &mut into).unwrap();
                assert_eq!(done, len.min(outer).min(self.source.left));
                done
            }
        };
        if which < 7 {
            assert_eq!(done, len.min(self.source.left));
        }
        assert_eq!(into[..done], self.content[self.source.next(done)]);
        assert!(
            into[done..].iter().all(|byte| *byte == BEFORE),
            "bytes after those that were read have changed"
        );
    }

    /// Digests without a copy, in two parts each; the first may have an odd length.
    fn digests(&mut self, len: usize, source: &mut Cursor<'_, Source>) {
        let mark = source.save();
        let mut checksum = Checksum::new();
        let first = self.engine.walk_into(source, len / 3, &mut checksum).unwrap();
        let rest = self.engine.walk_into(source, len - len / 3, &mut checksum).unwrap();
        source.restore(&mark).unwrap();
        let mut crc = Crc32c::new();
        self.engine.walk_into(source, len / 3, &mut crc).unwrap();
        self.engine.walk_into(source, len - len / 3, &mut crc).unwrap();
        let expected = &self.content[self.source.next(len)];
        assert_eq!(first + rest, expected.len());
        assert_eq!(checksum.finish(), checksum_by_words(expected));
        assert_eq!(crc.finish(), crc_by_bytes(expected));
    }

    /// A walk that ends early, in one of three ways, compared with the cursor's predictions.
    fn walks(&mut self, len: usize, input: &mut Input<'_>, source: &mut Cursor<'_, Source>) {
        let how = input.byte();
        let stop = input.len();
        let segments = source.segments();
        let first_len = source.segment_len_bytes();
        let mut seen = Vec::new();
        let mut steps = 0;
        let mut step = |segment: Segment<'_, Source>, done: usize| {
            assert_eq!(done, seen.len(), "the step got a wrong count of walked bytes");
            assert!(!segment.is_empty(), "a step got an empty segment");
            assert!(steps > 0 || segment.len() == first_len.min(len));
            steps += 1;
            let bytes = bytes_of(&segment);
            let take = bytes.len().min(stop - seen.len());
            if take < bytes.len() && how & 2 != 0 {
                // A value beyond the segment's length means all of it.
                return usize::MAX;
            }
            seen.extend_from_slice(&bytes[..take]);
            bytes.len() - take
        };
        let walked = if how & 1 == 0 {
            source.iterate(len, step)
        } else {
            source.iterate_dyn(len, &mut step)
        };
        assert!(steps <= segments, "{steps} steps, {segments} segments");
        assert_eq!(walked, seen.len());
        let possible = len.min(stop).min(self.source.left);
        assert!(walked == possible || how & 2 != 0 && walked < possible);
        assert_eq!(seen, self.content[self.source.next(walked)]);
    }

    /// Extracts segments or pages of the source, which stay valid while the cursor moves, also
    /// backwards.
    fn extracts_source(&mut self, input: &mut Input<'_>, source: &mut Cursor<'_, Source>) {
        let (how, len) = (input.byte(), input.len());
        let count_max = usize::from(how >> 2);
        let (mut segments, mut pages) = (Vec::new(), Vec::new());
        let (done, bytes) = if how & 1 == 0 {
            let done = source.extract_segments(len, count_max, &mut segments);
            assert!(done == len.min(self.source.left) || segments.len() == count_max);
            (done, segments.iter().flat_map(bytes_of).collect())
        } else {
            let page_log2 = 3 + u32::from(how & 2);
            let done = source.extract_pages(len, page_log2, count_max, &mut pages).unwrap();
            assert!(done == len.min(self.source.left) || pages.len() == count_max);
            for page in &pages {
                assert_eq!(page.offset(), page.start().addr().get() % (1 << page_log2));
                assert!(page.offset() + page.len() <= 1 << page_log2);
            }
            let mut bytes = vec![0; done];
            copy::read_full(&mut Cursor::<Source>::page_vec(&pages), &mut bytes).unwrap();
            (done, bytes)
        };
        assert!(segments.len().max(pages.len()) <= count_max);
        assert_eq!(bytes, self.content[self.source.next(done)]);
    }

    /// Extracts segments or pages of the destination, which are written after the cursor has passed
    /// them.
    fn extracts_dest(&mut self, input: &mut Input<'_>, dest: &mut Cursor<'_, Dest>) {
        let (how, len) = (input.byte(), input.len());
        let count_max = usize::from(how >> 2);
        let mut segments = Vec::new();
        let mut pages = Vec::new();
        let done = if how & 1 == 0 {
            dest.extract_segments(len, count_max, &mut segments)
        } else {
            dest.extract_pages(len, 3 + u32::from(how & 2), count_max, &mut pages).unwrap()
        };
        let range = self.dest.next(done);
        assert_eq!(dest.walked(), range.end);
        if done > 0 {
            self.dest.given = range.end;
        }
        for segment in segments {
            let mut view = segment.into_view();
            view.zero(0, view.len()).unwrap();
        }
        copy::zero(&mut Cursor::<Dest>::page_vec(&mut pages), usize::MAX).unwrap();
        self.keep(range, |kept| kept.fill(0));
    }

    /// Operations on the destination alone.
    fn writes(&mut self, which: u8, input: &mut Input<'_>, dest: &mut Cursor<'_, Dest>) {
        let len = input.len();
        let expected = len.min(self.dest.left);
        let from = self.pattern.bytes(self.made_bytes, len);
        self.made_bytes += len;
        let done = match which {
            0 => self.engine.write(dest, &from),
            1 => match copy::write_full(dest, &from) {
                Ok(()) => Ok(len),
                Err(error) => {
                    let available_bytes = self.dest.left;
                    assert_eq!(error, Error::TooShort { wanted_bytes: len, available_bytes });
                    assert!(available_bytes < len);
                    return;
                }
            },
            2 => {
                let byte = input.byte();
                let done = self.engine.fill(dest, byte, len);
                let range = self.dest.next(expected);
                self.keep(range, |kept| kept.fill(byte));
                return assert_eq!(done, Ok(expected));
            }
            3 => {
                let done = copy::zero(dest, len);
                let range = self.dest.next(expected);
                self.keep(range, |kept| kept.fill(0));
                return assert_eq!(done, Ok(expected));
            }
            4 => {
                let mut checksum = Checksum::new();
                let done = self.engine.write_into(dest, &from, &mut checksum);
                assert_eq!(checksum.finish(), checksum_by_words(&from[..expected]));
                done
            }
            5 => {
                let mut crc = Crc32c::new();
                let done = self.engine.write_into(dest, &from, &mut crc);
                assert_eq!(crc.finish(), crc_by_bytes(&from[..expected]));
                done
            }
            _ => {
                let outer = input.len();
                let done = self.engine.write(&mut dest.take(outer), &from);
                let range = self.dest.next(len.min(outer));
                assert_eq!(done, Ok(range.len()));
                return self.keep(range, |kept| kept.copy_from_slice(&from[..kept.len()]));
            }
        };
        assert_eq!(done, Ok(expected));
        let range = self.dest.next(expected);
        self.keep(range, |kept| kept.copy_from_slice(&from[..expected]));
    }

    /// Operations that move both cursors.
    fn transfers(
        &mut self,
        which: u8,
        input: &mut Input<'_>,
        source: &mut Cursor<'_, Source>,
        dest: &mut Cursor<'_, Dest>,
    ) {
        let len = input.len();
        let available_bytes = self.source.left.min(self.dest.left);
        let expected = len.min(available_bytes);
        let bytes = &self.content[self.source.at..self.source.at + expected];
        // Digests do not see bytes that are discarded.
        let looked_at = if self.has_memory { bytes } else { &[] };
        let done = match which {
            0 => self.engine.transfer(source, dest, len),
            1 => match copy::transfer_full(source, dest, len) {
                Ok(()) => Ok(len),
                Err(error) => {
                    assert_eq!(error, Error::TooShort { wanted_bytes: len, available_bytes });
                    assert!(available_bytes < len);
                    return;
                }
            },
            2 => {
                let mut checksum = Checksum::new();
                let done = self.engine.transfer_into(source, dest, len, &mut checksum);
                assert_eq!(checksum.finish(), checksum_by_words(looked_at));
                done
            }
            3 => {
                let mut crc = Crc32c::new();
                let done = self.engine.transfer_into(source, dest, len, &mut crc);
                assert_eq!(crc.finish(), crc_by_bytes(looked_at));
                done
            }
            _ => {
                let mut fed = Vec::new();
                let done = copy::transfer_into(source, dest, len, &mut |bytes: &[u8]| {
                    fed.extend_from_slice(bytes);
                });
                assert_eq!(fed, looked_at);
                done
            }
        };
        assert_eq!(done, Ok(expected));
        self.source.next(expected);
        let range = self.dest.next(expected);
        self.keep(range, |kept| kept.copy_from_slice(bytes));
    }

    /// Makes the same change to the expected content of the destination.
    fn keep(&mut self, range: std::ops::Range<usize>, change: impl FnOnce(&mut [u8])) {
        change(&mut self.written[range]);
    }
}

/// Moves a cursor of either direction without reading its bytes.
fn moves<'m, D: Direction>(
    which: u8,
    input: &mut Input<'_>,
    cursor: &mut Cursor<'m, D>,
    place: &mut Place,
    mark: &mut (Mark<'m, D>, Place),
) {
    match which {
        0 => {
            let len = input.len();
            cursor.advance(len);
            place.next(len);
        }
        1 => {
            let len = input.len();
            match cursor.revert(len) {
                Ok(()) => {
                    place.at -= len;
                    place.left += len;
                }
                Err(error) => {
                    let possible_bytes = place.at - place.given;
                    assert_eq!(error, Error::OutOfRange { asked_bytes: len, possible_bytes });
                    assert!(len > possible_bytes);
                }
            }
        }
        2 => {
            let len = input.len();
            cursor.truncate(len);
            let cut = place.left.saturating_sub(len);
            place.left -= cut;
            place.hidden += cut;
        }
        3 => {
            let len = input.len();
            let possible_bytes = place.left + place.hidden;
            match cursor.reexpand(len) {
                Ok(()) => (place.left, place.hidden) = (len, possible_bytes - len),
                Err(error) => {
                    assert_eq!(error, Error::OutOfRange { asked_bytes: len, possible_bytes });
                    assert!(len > possible_bytes);
                }
            }
        }
        4 => *mark = (cursor.save(), *place),
        _ => {
            // A mark of a part has another end than the cursor.
            if input.byte().is_multiple_of(4) && place.left > 0 {
                let of_a_part = cursor.take(place.left / 2).save();
                assert!(matches!(cursor.restore(&of_a_part), Err(Error::OutOfRange { .. })));
            } else if cursor.restore(&mark.0).is_ok() {
                assert!(mark.1.at >= place.given);
                *place = Place { given: place.given, ..mark.1 };
            } else {
                assert!(mark.1.at < place.given);
            }
        }
    }
}

/// Checks that a cursor can expand to exactly the bytes that were truncated.
fn all_come_back<D: Direction>(cursor: &mut Cursor<'_, D>, place: Place) {
    let possible_bytes = place.left + place.hidden;
    let asked_bytes = possible_bytes + 1;
    let refused = cursor.reexpand(asked_bytes);
    assert_eq!(refused, Err(Error::OutOfRange { asked_bytes, possible_bytes }));
    assert_eq!(cursor.reexpand(possible_bytes), Ok(()));
    assert_eq!(cursor.remaining(), possible_bytes);
}

/// Computes the checksum of RFC 1071, section 4.1, 16 bits at a time.
fn checksum_by_words(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
    let mut sum: u64 = bytes.chunks(2).map(|pair| u64::from(word(pair))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Computes CRC-32C one byte at a time, from the polynomial of RFC 3720, reflected.
fn crc_by_bytes(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut register = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                register = (register >> 1) ^ (0x82f6_3b78 * (register & 1));
                bit += 1;
            }
            table[byte] = register;
            byte += 1;
        }
        table
    };
    let step =
        |register: u32, byte: &u8| (register >> 8) ^ TABLE[usize::from(register as u8 ^ *byte)];
    !bytes.iter().fold(!0, step)
}
