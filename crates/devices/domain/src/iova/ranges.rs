//! The free ranges of an address space, in granules.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges in two orders: by start, so that neighbours are found and merged, and by length, so
/// that the best fit is found without a search. No two ranges are adjacent.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeRanges {
    /// The length of each range, by its start.
    by_start: BTreeMap<u64, u64>,
    /// The length and the start of each range.
    by_len: BTreeSet<(u64, u64)>,
    /// The number of granules of all ranges.
    free: u64,
}

/// The properties of a range that is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) len: u64,
    /// The alignment of the start: a power of two.
    pub(super) align: u64,
    /// The last granule that may be in it.
    pub(super) last: u64,
}

impl FreeRanges {
    /// Returns the number of free granules.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Returns the ranges in order: the first granule of each, and the one after its last.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_start.iter().map(|(start, len)| (*start, start + len))
    }

    /// Returns the length of the longest free range.
    pub(super) fn longest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Takes the end of the shortest free range that has room. If `wanted.last` excludes free granules,
    /// it is the highest range instead. Returns `None` if no range has room.
    pub(super) fn take(&mut self, wanted: Wanted) -> Option<u64> {
        let start = if self
            .by_start
            .last_key_value()
            .is_none_or(|(start, len)| start + len - 1 <= wanted.last)
        {
            self.best_fit(wanted)
        } else {
            self.highest_fit(wanted)
        }?;
        let taken = self.take_at(start, wanted.len);
        debug_assert!(taken, "a fit is free");
        Some(start)
    }

    fn best_fit(&self, wanted: Wanted) -> Option<u64> {
        /// The number of ranges that are tried although they may be too short for the alignment.
        const TRIES: usize = 8;
        let fits = |&(len, start): &(u64, u64)| highest_in(start, len, wanted);
        let close = self.by_len.range((wanted.len, 0)..).take(TRIES).find_map(fits);
        // Every range of this length has room.
        let sure = (wanted.len.saturating_add(wanted.align - 1), 0);
        close
            .or_else(|| self.by_len.range(sure..).find_map(fits))
            .or_else(|| self.by_len.range((wanted.len, 0)..).skip(TRIES).find_map(fits))
    }

    fn highest_fit(&self, wanted: Wanted) -> Option<u64> {
        let below = self.by_start.range(..=wanted.last).rev();
        below.into_iter().find_map(|(&start, &len)| {
            let len = len.min((wanted.last - start).saturating_add(1));
            highest_in(start, len, wanted)
        })
    }

    /// Takes exactly these granules. Returns false, and changes nothing, if one of them is not free.
    pub(super) fn take_at(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len).filter(|_| len != 0) else { return false };
        let Some((&found, &found_len)) = self.by_start.range(..=start).next_back() else {
            return false;
        };
        let found_end = found + found_len;
        if end > found_end {
            return false;
        }
        self.remove(found, found_len);
        if found < start {
            self.insert(found, start - found);
        }
        if end < found_end {
            self.insert(end, found_end - end);
        }
        true
    }

    /// Gives granules back. Returns false, and changes nothing, if one of them is free already.
    pub(super) fn give(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len).filter(|_| len != 0) else { return false };
        let before = self.by_start.range(..start).next_back().map(|(start, len)| (*start, *len));
        let after = self.by_start.range(start..).next().map(|(start, len)| (*start, *len));
        let overlaps_before = before.is_some_and(|(at, len)| at + len > start);
        let overlaps_after = after.is_some_and(|(at, _)| at < end);
        if overlaps_before || overlaps_after {
            return false;
        }
        let (mut merged_start, mut merged_end) = (start, end);
        if let Some((at, len)) = before.filter(|(at, len)| at + len == start) {
            self.remove(at, len);
            merged_start = at;
        }
        if let Some((at, len)) = after.filter(|(at, _)| *at == end) {
            self.remove(at, len);
            merged_end = at + len;
        }
        self.insert(merged_start, merged_end - merged_start);
        true
    }

    /// Makes all granules from `start` up to `end` free, also if some of them are free already.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        self.subtract(start, end);
        if start < end {
            let given = self.give(start, end - start);
            debug_assert!(given, "none of them is free");
        }
    }

    /// Removes the granules from `start` up to `end` from the free ones.
    pub(super) fn subtract(&mut self, start: u64, end: u64) {
        while let Some((&at, &len)) = self.by_start.range(..end).next_back() {
            let (first, last) = (at.max(start), (at + len).min(end));
            if first >= last {
                return;
            }
            let taken = self.take_at(first, last - first);
            debug_assert!(taken, "a part of a free range is free");
        }
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
        self.free += len;
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
        self.free -= len;
    }
}

/// Returns the highest start in a free range at which `wanted` fits.
fn highest_in(start: u64, len: u64, wanted: Wanted) -> Option<u64> {
    let highest = start + len.checked_sub(wanted.len)?;
    let aligned = highest & !(wanted.align - 1);
    (aligned >= start).then_some(aligned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANYWHERE: u64 = u64::MAX;

    fn free(ranges: &[(u64, u64)]) -> FreeRanges {
        let mut free = FreeRanges::default();
        for (start, len) in ranges {
            assert!(free.give(*start, *len));
        }
        free
    }

    fn wanted(len: u64, align: u64) -> Wanted {
        Wanted { len, align, last: ANYWHERE }
    }

    #[test]
    fn the_shortest_range_that_has_room_is_taken() {
        let mut free = free(&[(0, 100), (200, 10), (300, 12)]);
        assert_eq!(free.take(wanted(10, 1)), Some(200));
        assert_eq!(free.take(wanted(10, 1)), Some(302));
        assert_eq!(free.take(wanted(10, 1)), Some(90));
        assert_eq!(free.free(), 92);
        assert_eq!(free.take(wanted(91, 1)), None);
    }

    #[test]
    fn an_aligned_place_is_found_in_every_range_that_has_one() {
        // All ranges are long enough, but only some have room at a multiple of 64.
        let ranges: Vec<_> = (0..40).map(|nth| (nth * 1000 + 1, 62)).collect();
        let mut free = free(&ranges);
        let aligned = |(start, len): (u64, u64)| start.next_multiple_of(64) + 32 <= start + len;
        let expected = ranges.iter().filter(|range| aligned(**range)).count();
        let found = std::iter::from_fn(|| free.take(wanted(32, 64))).count();
        assert_eq!(found, expected);
        assert!(found > 0);
    }

    #[test]
    fn a_limit_holds_for_the_last_granule() {
        let mut free = free(&[(10, 1000)]);
        assert_eq!(free.take(Wanted { len: 16, align: 1, last: 99 }), Some(84));
        assert_eq!(free.take(Wanted { len: 75, align: 1, last: 99 }), None);
        assert_eq!(free.take(Wanted { len: 74, align: 1, last: 99 }), Some(10));
        assert_eq!(free.take(Wanted { len: 1, align: 1, last: 9 }), None);
        assert_eq!(free.take(wanted(910, 1)), Some(100));
    }

    #[test]
    fn free_granules_cannot_be_given_back() {
        let mut free = free(&[(10, 10)]);
        for (start, len) in [(10, 10), (0, 11), (19, 1), (5, 100), (12, 3), (u64::MAX, 2), (30, 0)]
        {
            assert!(!free.give(start, len), "{start} {len}");
        }
        assert!(free.give(20, 5));
        assert!(free.give(0, 10));
        assert_eq!((free.longest(), free.free()), (25, 25));
        assert!(!free.take_at(24, 2));
        assert!(!free.take_at(30, 1));
        assert!(free.take_at(24, 1));
    }

    #[test]
    fn granules_that_are_added_twice_are_free_once() {
        let mut free = free(&[(10, 10), (30, 10)]);
        free.add(5, 35);
        assert_eq!((free.free(), free.longest()), (35, 35));
        free.subtract(0, 6);
        free.subtract(20, 30);
        free.subtract(39, 100);
        free.subtract(50, 50);
        assert_eq!((free.free(), free.longest()), (14 + 9, 14));
        assert!(free.take_at(6, 14) && free.take_at(30, 9));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

        /// Compares with a list of granules: no granule is handed out twice, none is lost, and a range
        /// is found if there is one.
        #[test]
        fn equals_a_list_of_granules(calls in prop::collection::vec((0u64..4, 1u64..20, 0u32..4, 0u64..96), 1..if cfg!(miri) { 20 } else { 80 })) {
            const END: u64 = 96;
            let mut ranges = free(&[(0, END)]);
            let mut is_free = [true; END as usize];
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (call, len, align_log2, place) in calls {
                let align = 1 << align_log2;
                let fits = |is_free: &[bool], start: u64, last: u64| {
                    start + len <= END && start + len - 1 <= last
                        && is_free[start as usize..(start + len) as usize].iter().all(|free| *free)
                };
                match call {
                    0 | 1 => {
                        let last = if call == 0 { ANYWHERE } else { place };
                        let possible = (0..END).step_by(align as usize).any(|at| fits(&is_free, at, last));
                        let found = ranges.take(Wanted { len, align, last });
                        prop_assert_eq!(found.is_some(), possible);
                        if let Some(start) = found {
                            prop_assert!(start % align == 0 && fits(&is_free, start, last));
                            is_free[start as usize..(start + len) as usize].fill(false);
                            taken.push((start, len));
                        }
                    }
                    2 => {
                        let possible = fits(&is_free, place, ANYWHERE);
                        prop_assert_eq!(ranges.take_at(place, len), possible);
                        if possible {
                            is_free[place as usize..(place + len) as usize].fill(false);
                            taken.push((place, len));
                        }
                    }
                    _ if !taken.is_empty() => {
                        let (start, len) = taken.swap_remove(place as usize % taken.len());
                        prop_assert!(ranges.give(start, len));
                        is_free[start as usize..(start + len) as usize].fill(true);
                    }
                    _ => {}
                }
                prop_assert_eq!(ranges.free(), is_free.iter().filter(|free| **free).count() as u64);
                let runs = is_free.split(|free| !free);
                prop_assert_eq!(ranges.longest(), runs.map(<[bool]>::len).max().unwrap_or(0) as u64);
            }
        }
    }
}
