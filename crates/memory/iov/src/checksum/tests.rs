use std::io::IoSlice;

use proptest::prelude::*;

use super::*;
use crate::copy;
use crate::cursor::Cursor;
use crate::direction::{Dest, Source};
use crate::source::SegmentSource;

/// The algorithm of RFC 1071, section 4.1, 16 bits at a time.
fn by_the_rfc(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for word in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn pattern(len_bytes: usize, seed: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| ((at + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn with(engine: Engine, bytes: &[u8]) -> u16 {
    let mut checksum = Checksum::new();
    engine.update(bytes, &mut checksum);
    checksum.finish()
}

#[test]
fn the_example_of_the_rfc() {
    // RFC 1071, section 3: the sum is ddf2.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    for engine in Engine::all() {
        assert_eq!(with(engine, &bytes), !0xddf2);
    }
    assert_eq!(of(&[]), 0xffff);
}

#[test]
fn every_length_at_every_alignment() {
    let (len_max, skews): (usize, &[usize]) =
        if cfg!(miri) { (70, &[0, 1]) } else { (4096, &[0, 1, 2, 7, 33]) };
    let bytes = pattern(len_max + 64, 1);
    for engine in Engine::all() {
        for len_bytes in 0..=len_max {
            for skew in skews {
                let part = &bytes[*skew..skew + len_bytes];
                assert_eq!(with(engine, part), by_the_rfc(part), "{} {len_bytes}", engine.isa());
            }
        }
    }
}

#[test]
fn copied_at_every_alignment() {
    let lens: Vec<usize> = if cfg!(miri) {
        vec![0, 1, 2, 67]
    } else {
        (0..330).chain([511, 512, 513, 900, 1500, 4097]).collect()
    };
    let bytes = pattern(5000, 4);
    for engine in Engine::all() {
        for len_bytes in &lens {
            for (from_skew, to_skew) in [(0, 1), (1, 0), (1, 1), (2, 33), (5, 62), (33, 63), (0, 0)]
            {
                let part = &bytes[from_skew..from_skew + len_bytes];
                let slices = [IoSlice::new(part)];
                let mut cursor = Cursor::<Source>::own_vec(&slices);
                let mut target = vec![0xaa; 64 + to_skew + len_bytes + 64];
                let at = target.as_ptr().align_offset(64) + to_skew;
                let mut checksum = Checksum::new();
                let into = &mut target[at..at + len_bytes];
                let done = engine.read_into(&mut cursor, into, &mut checksum);
                let case = format!("{} {len_bytes} {from_skew} {to_skew}", engine.isa());
                assert_eq!(done, Ok(*len_bytes), "{case}");
                assert_eq!(into, part, "{case}");
                assert_eq!(checksum.finish(), by_the_rfc(part), "{case}");
                let around = target[..at].iter().chain(&target[at + len_bytes..]);
                assert!(around.clone().all(|byte| *byte == 0xaa), "{case}");
            }
        }
    }
}

#[test]
fn all_ones_all_zeros_and_more_than_64_kib() {
    let lens: &[usize] =
        if cfg!(miri) { &[1, 2, 700] } else { &[1, 2, 65_535, 65_536, 65_537, 300_001, 9 << 20] };
    for engine in Engine::all() {
        for len_bytes in lens {
            for byte in [0x00, 0xff, 0x80, 0x7f] {
                let bytes = vec![byte; *len_bytes];
                assert_eq!(with(engine, &bytes), by_the_rfc(&bytes), "{len_bytes} of {byte:#x}");
            }
            let bytes = pattern(*len_bytes, 5);
            assert_eq!(with(engine, &bytes), by_the_rfc(&bytes), "{len_bytes}");
        }
    }
}

#[test]
fn every_split_in_two() {
    let bytes = pattern(if cfg!(miri) { 33 } else { 517 }, 9);
    let whole = by_the_rfc(&bytes);
    for engine in Engine::all() {
        for at in 0..=bytes.len() {
            let (low, high) = bytes.split_at(at);
            let mut checksum = Checksum::new();
            engine.update(low, &mut checksum);
            engine.update(high, &mut checksum);
            assert_eq!(checksum.finish(), whole, "split at {at}");
            let (mut one, mut other) = (Checksum::new(), Checksum::new());
            engine.update(low, &mut one);
            engine.update(high, &mut other);
            one.append(other);
            assert_eq!(one.finish(), whole, "joined at {at}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn copied_and_summed_over_any_segments(
        lens in prop::collection::vec(0usize..400, 1..12), limit in 0usize..3000, seed in 0usize..99,
    ) {
        let limit = if cfg!(miri) { limit / 20 } else { limit };
        let bytes = pattern(lens.iter().sum(), seed);
        let mut rest = &bytes[..];
        let mut slices = Vec::new();
        for len_bytes in &lens {
            let (slice, after) = rest.split_at(*len_bytes);
            slices.push(IoSlice::new(slice));
            rest = after;
        }
        let expected = &bytes[..limit.min(bytes.len())];
        for engine in Engine::all() {
            let mut cursor = Cursor::<Source>::own_vec(&slices);
            let mut into = vec![0xaa; limit];
            let mut checksum = Checksum::new();
            let done = engine.read_into(&mut cursor, &mut into, &mut checksum).unwrap();
            prop_assert_eq!(done, expected.len());
            prop_assert_eq!(&into[..done], expected);
            prop_assert!(into[done..].iter().all(|byte| *byte == 0xaa));
            prop_assert_eq!(checksum.finish(), by_the_rfc(expected));

            cursor.revert(done).unwrap();
            let mut checksum = Checksum::new();
            prop_assert_eq!(engine.walk_into(&mut cursor, limit, &mut checksum).unwrap(), done);
            prop_assert_eq!(checksum.finish(), by_the_rfc(expected));
        }
    }
}

#[test]
fn discarded_bytes_are_summed_too() {
    let bytes = pattern(777, 3);
    let mut checksum = Checksum::new();
    let mut nowhere = Cursor::<Dest>::discard(500);
    assert_eq!(copy::write_into(&mut nowhere, &bytes, &mut checksum), Ok(500));
    assert_eq!(checksum.finish(), by_the_rfc(&bytes[..500]));
}
