use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn shape(levels: u32, input_bits: u32, window: Window) -> Geometry {
    Geometry::new(Shape {
        granule_log2: 12,
        index_log2: 9,
        levels,
        input_bits,
        output_bits: 52,
        window,
        runs: [0b1_0001, 0b1_0001, 0b1_0001, 0, 0, 0],
        linear_log2: 64,
    })
}

#[test]
fn every_bit_of_a_va_is_decoded_by_exactly_one_level() {
    for (granule_log2, index_log2) in [(12, 9), (14, 11), (16, 13)] {
        for input_bits in granule_log2 + 1..=64u32 {
            let levels = (input_bits - granule_log2).div_ceil(index_log2);
            if levels as usize > LEVELS_MAX {
                continue;
            }
            let geometry = Geometry::new(Shape {
                granule_log2,
                index_log2,
                levels,
                input_bits,
                output_bits: 52,
                window: Window::Low,
                runs: [1, 0, 0, 0, 0, 0],
                linear_log2: 64,
            });
            for bit in 0..input_bits {
                let deciding: Vec<u32> =
                    (0..levels).filter(|level| geometry.index(*level, 1 << bit) != 0).collect();
                if bit < granule_log2 {
                    assert_eq!(deciding, [0u32; 0], "bit {bit} of {input_bits}");
                } else {
                    assert_eq!(deciding.len(), 1, "bit {bit} of {input_bits}");
                    let level = deciding[0];
                    assert_eq!(geometry.index(level, 1 << bit), 1 << (bit - geometry.shift(level)));
                }
            }
        }
    }
}

#[test]
fn windows_translate_only_their_addresses() {
    let low = shape(4, 48, Window::Low);
    assert_eq!(low.va(Iova::new((1 << 48) - 1)), Some((1 << 48) - 1));
    assert_eq!(low.va(Iova::new(1 << 48)), None);
    let high = shape(4, 48, Window::High);
    assert_eq!(high.va(Iova::new(0xffff_0000_0000_0000)), Some(0));
    assert_eq!(high.va(Iova::new(0xfffe_ffff_ffff_ffff)), None);
    assert_eq!(high.span(Iova::new(u64::MAX - 0xfff), 0x1000).map(|s| s.last), Some((1 << 48) - 1));
    let signed = shape(4, 48, Window::Signed);
    assert_eq!(signed.va(Iova::new(0x7fff_ffff_ffff)), Some(0x7fff_ffff_ffff));
    assert_eq!(signed.va(Iova::new(0x8000_0000_0000)), None);
    assert_eq!(signed.va(Iova::new(0xffff_8000_0000_0000)), Some(0x8000_0000_0000));
    // The halves are not adjacent.
    assert_eq!(signed.span(Iova::new(0x7fff_ffff_f000), 0x2000), None);
    let six = Geometry::new(Shape {
        granule_log2: 12,
        index_log2: 9,
        levels: 6,
        input_bits: 64,
        output_bits: 52,
        window: Window::Low,
        runs: [1; 6],
        linear_log2: 64,
    });
    assert_eq!(six.all(), Span { first: 0, last: u64::MAX });
    assert_eq!(six.va(Iova::new(u64::MAX)), Some(u64::MAX));
    assert_eq!(six.slots_log2(5), 7);
}

proptest! {
    #[test]
    fn an_address_comes_back_from_its_va(raw: u64, bits in 25u32..=64, which in 0usize..3) {
        let window = [Window::Low, Window::High, Window::Signed][which];
        let geometry = shape((bits - 12).div_ceil(9), bits, window);
        if let Some(va) = geometry.va(Iova::new(raw)) {
            prop_assert_eq!(geometry.iova(va), Iova::new(raw));
        }
        let va = raw & geometry.all().last;
        prop_assert_eq!(geometry.va(geometry.iova(va)), Some(va));
    }

    // The oracle: the parts together are the span, and each is in its slot.
    #[test]
    fn parts_make_up_the_span(first in 0u64..1 << 21, len in 1u64..1 << 21, level in 0u32..3) {
        let geometry = shape(3, 39, Window::Low);
        let (first, len) = (first << 12, len << 12);
        let last = (first + len - 1) | 0xfff;
        // Within one table of the level.
        let table_mask = (1u64 << geometry.shift(level + 1).min(39)) - 1;
        let span = Span { first, last: last.min(first | table_mask) };
        let mut at = span.first;
        for part in geometry.parts(level, span) {
            prop_assert_eq!(part.span.first, at);
            prop_assert_eq!(geometry.index(level, part.span.first), part.index);
            prop_assert_eq!(geometry.index(level, part.span.last), part.index);
            let slot = 1u64 << geometry.shift(level);
            prop_assert_eq!(part.whole, part.span.last - part.span.first == slot - 1);
            at = part.span.last + 1;
        }
        prop_assert_eq!(at, span.last + 1);
    }

    // The oracle tries every run, the largest first, at every slot.
    #[test]
    fn leaf_groups_agree_with_trying_every_size(
        va in 0u64..256, bus in 0u64..256, slots in 1usize..128, runs in 1u32..512, max in 12u32..21,
    ) {
        let geometry = Geometry::new(Shape {
            granule_log2: 12,
            index_log2: 9,
            levels: 3,
            input_bits: 39,
            output_bits: 52,
            window: Window::Low,
            runs: [runs | 1, 0, 0, 0, 0, 0],
            linear_log2: 64,
        });
        let mut greedy = Vec::new();
        let mut at = 0;
        while at < slots as u64 {
            let fits = |run: u32| {
                let size = 1u64 << run;
                (runs | 1) >> run & 1 != 0
                    && 12 + run <= max
                    && (va + at) % size == 0
                    && (bus + at) % size == 0
                    && at + size <= slots as u64
            };
            let run = (0..9).rev().find(|run| fits(*run)).unwrap();
            greedy.push(run);
            at += 1 << run;
        }
        let mut made = Vec::new();
        let mut at = 0;
        while at < slots {
            let (va, bus) = ((va + at as u64) << 12, (bus + at as u64) << 12);
            let group = geometry.leaf_group(0, va, bus, slots - at, max).unwrap();
            prop_assert!(group.slots > 0 && group.slots.is_multiple_of(1 << group.run_log2));
            made.extend(core::iter::repeat_n(group.run_log2, group.slots >> group.run_log2));
            at += group.slots;
        }
        prop_assert_eq!(made, greedy);
    }
}
