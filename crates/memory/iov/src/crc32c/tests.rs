use std::io::IoSlice;

use proptest::prelude::*;

use super::*;
use crate::cursor::Cursor;
use crate::direction::Source;
use crate::source::SegmentSource;

/// Computes the CRC bit by bit, from the polynomial.
fn by_bits(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| polynomial::times_x(register))
    })
}

fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn with(engine: Engine, bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    engine.update(bytes, &mut crc);
    crc.finish()
}

#[test]
fn published_values() {
    // RFC 3720, appendix B.4 (as the bytes that are sent), and the check value of the CRC
    // catalogue.
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    for engine in Engine::all() {
        assert_eq!(with(engine, &[0; 32]), 0x8a91_36aa);
        assert_eq!(with(engine, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(with(engine, &ascending), 0x46dd_794e);
        assert_eq!(with(engine, &descending), 0x113f_db5c);
        assert_eq!(with(engine, b"123456789"), 0xe306_9283);
        assert_eq!(with(engine, b""), 0);
    }
}

#[test]
fn every_length_at_every_alignment() {
    let (len_max, skews): (usize, &[usize]) =
        if cfg!(miri) { (40, &[0, 1]) } else { (2600, &[0, 1, 8, 31]) };
    let bytes = pattern(len_max + 32);
    for engine in Engine::all() {
        for len_bytes in 0..=len_max {
            for skew in skews {
                let part = &bytes[*skew..skew + len_bytes];
                let by_table = !table::crc_by_table(!0, part);
                assert_eq!(with(engine, part), by_table, "{} {len_bytes}", engine.isa());
            }
        }
    }
    let some = &bytes[..len_max / 2];
    assert_eq!(of(some), by_bits(some));
}

#[test]
fn copied_at_every_length() {
    let len_max = if cfg!(miri) { 20 } else { 1300 };
    let bytes = pattern(len_max + 1);
    for engine in Engine::all() {
        for len_bytes in 0..=len_max {
            let part = &bytes[1..=len_bytes];
            let slices = [IoSlice::new(part)];
            let mut cursor = Cursor::<Source>::own_vec(&slices);
            let mut into = vec![0xaa; len_bytes + 70];
            let mut crc = Crc32c::new();
            let done = engine.read_into(&mut cursor, &mut into[3..3 + len_bytes], &mut crc);
            let case = format!("{} {len_bytes}", engine.isa());
            assert_eq!(done, Ok(len_bytes), "{case}");
            assert_eq!(&into[3..3 + len_bytes], part, "{case}");
            assert_eq!(crc.finish(), !table::crc_by_table(!0, part), "{case}");
            let around = into[..3].iter().chain(&into[3 + len_bytes..]);
            assert!(around.clone().all(|byte| *byte == 0xaa), "{case}");
            let mut crc = Crc32c::new();
            cursor.revert(len_bytes).unwrap();
            assert_eq!(engine.walk_into(&mut cursor, len_bytes, &mut crc), Ok(len_bytes));
            assert_eq!(crc.finish(), !table::crc_by_table(!0, part), "{case}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "the same code, and slow")]
fn large_inputs() {
    let bytes = pattern(3 << 20);
    for engine in Engine::all() {
        for len_bytes in [65_535, 65_536, 1 << 20, (3 << 20) - 5] {
            let part = &bytes[..len_bytes];
            assert_eq!(with(engine, part), !table::crc_by_table(!0, part), "{}", engine.isa());
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
    fn copied_and_digested_over_any_segments(
        lens in prop::collection::vec(0usize..900, 1..9), limit in 0usize..5000,
    ) {
        let limit = if cfg!(miri) { limit / 40 } else { limit };
        let bytes = pattern(lens.iter().sum());
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
            let mut crc = Crc32c::new();
            let done = engine.read_into(&mut cursor, &mut into, &mut crc).unwrap();
            prop_assert_eq!(done, expected.len());
            prop_assert_eq!(&into[..done], expected);
            prop_assert!(into[done..].iter().all(|byte| *byte == 0xaa));
            prop_assert_eq!(crc.finish(), !table::crc_by_table(!0, expected));
        }
    }
}
