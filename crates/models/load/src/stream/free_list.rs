//! The free ranges of a region, which are allocated first-fit.

use std::collections::BTreeMap;

use longshore_mem::Granule;

/// The free ranges of a region: the length of each by its start. Adjacent ranges are merged.
#[derive(Debug)]
pub(super) struct FreeList(BTreeMap<u64, u64>);

impl FreeList {
    /// Makes the list of a region that is free from 0 to `len_bytes`.
    pub(super) fn new(len_bytes: u64) -> Self {
        Self((len_bytes > 0).then_some((0, len_bytes)).into_iter().collect())
    }

    /// Takes the first free range of `len_bytes` at a multiple of `alignment`, and returns its start.
    pub(super) fn take(&mut self, len_bytes: u64, alignment: Granule) -> Option<u64> {
        let (start, len, taken) = self.0.iter().find_map(|(&start, &len)| {
            let taken = alignment.checked_round_up(start)?;
            let needed = (taken - start).checked_add(len_bytes)?;
            (needed <= len).then_some((start, len, taken))
        })?;
        self.0.remove(&start);
        if taken > start {
            self.0.insert(start, taken - start);
        }
        let (end, taken_end) = (start + len, taken + len_bytes);
        if end > taken_end {
            self.0.insert(taken_end, end - taken_end);
        }
        Some(taken)
    }

    /// Gives back a range that was taken.
    pub(super) fn give_back(&mut self, start: u64, len_bytes: u64) {
        let (mut start, mut end) = (start, start + len_bytes);
        if let Some((&before, &len)) = self.0.range(..start).next_back()
            && before + len == start
        {
            self.0.remove(&before);
            start = before;
        }
        if let Some(len) = self.0.remove(&end) {
            end += len;
        }
        self.0.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn taken_ranges_are_aligned_and_do_not_overlap(
            steps in prop::collection::vec((1u64..40, 0u32..3, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut free = FreeList::new(256);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (len_bytes, log2, which) in steps {
                let alignment = Granule::new(1 << log2).unwrap();
                match free.take(len_bytes, alignment) {
                    Some(start) => {
                        prop_assert!(alignment.is_aligned(start) && start + len_bytes <= 256);
                        let apart = taken.iter().all(|(other, len)| {
                            start + len_bytes <= *other || other + len <= start
                        });
                        prop_assert!(apart);
                        taken.push((start, len_bytes));
                    }
                    None if taken.is_empty() => prop_assert!(false, "a free region has no room"),
                    None => {
                        let (start, len) = taken.swap_remove(which.index(taken.len()));
                        free.give_back(start, len);
                    }
                }
                let used: u64 = taken.iter().map(|(_, len)| len).sum();
                prop_assert_eq!(free.0.values().sum::<u64>(), 256 - used);
            }
            for (start, len) in taken {
                free.give_back(start, len);
            }
            prop_assert_eq!(free.0, BTreeMap::from([(0, 256)]));
        }
    }
}
