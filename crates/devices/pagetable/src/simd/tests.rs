use std::vec::Vec;

use proptest::prelude::*;

use super::scalar::Plain;
use super::*;
use crate::sync::Ordering;

fn values(entries: &[AtomicU64]) -> Vec<u64> {
    entries.iter().map(|entry| entry.load(Ordering::Relaxed)).collect()
}

#[test]
fn every_instruction_set_fills_every_run_and_nothing_beside_it() {
    const COUNT: usize = 80;
    for token in IsaToken::all() {
        for start in 0..10 {
            for end in start..=COUNT - 10 {
                let entries: Vec<AtomicU64> = (0..COUNT).map(|_| AtomicU64::new(7)).collect();
                fill(token, &entries[start..end], u64::MAX - 0x2fff, 0x1003);
                let mut expected = [7; COUNT];
                for (at, value) in expected[start..end].iter_mut().enumerate() {
                    *value = (u64::MAX - 0x2fff).wrapping_add(0x1003 * at as u64);
                }
                assert_eq!(values(&entries), expected, "{token:?} {start}..{end}");
            }
        }
    }
}

#[test]
fn every_instruction_set_finds_a_hit_at_every_place() {
    const COUNT: usize = 67;
    for token in IsaToken::all() {
        for start in 0..9 {
            for hit in start..COUNT {
                let entries: Vec<AtomicU64> =
                    (0..COUNT).map(|at| AtomicU64::new(0xf0 | u64::from(at == hit))).collect();
                let found = find_equal(token, &entries[start..], 1, 1);
                assert_eq!(found, Some(hit - start), "{token:?} {start} {hit}");
                assert_eq!(find_different(token, &entries[start..], 0xf1, 0xf0), Some(hit - start));
                assert_eq!(find_equal(token, &entries[start..], 0xff, 1), None);
                assert_eq!(find_different(token, &entries[start..], 0xf0, 0xf0), None);
            }
        }
    }
}

proptest! {
    #[test]
    fn searches_agree_with_the_scalar_one(
        content in prop::collection::vec(0u64..4, 0..200),
        start in 0usize..16,
        mask in 0u64..4,
        value in 0u64..4,
    ) {
        let entries: Vec<AtomicU64> = content.iter().map(|value| AtomicU64::new(*value)).collect();
        let entries = entries.get(start..).unwrap_or_default();
        for token in IsaToken::all() {
            prop_assert_eq!(
                find_equal(token, entries, mask, value),
                Plain.find::<true>(entries, mask, value)
            );
            prop_assert_eq!(
                find_different(token, entries, mask, value),
                Plain.find::<false>(entries, mask, value)
            );
        }
    }
}
