//! A set of pages of an address space, stored as a bounded number of runs.

use std::collections::BTreeMap;

use crate::region::PAGE_BYTES;

/// The maximum number of runs. Each takes 16 bytes, and about as much for the map. Usually fewer
/// writable leases end during one unmapping.
const RUNS_MAX: usize = 1024;

/// A set of pages. It may contain pages that were not added: if there are too many runs, it merges two
/// of them and so adds the pages between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageRuns {
    /// The last address of each run, by its first address. No two runs touch.
    runs: BTreeMap<u64, u64>,
}

impl PageRuns {
    /// Adds all pages that have an address from `first` to `last`.
    pub(crate) fn add(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first & !(PAGE_BYTES - 1), last | (PAGE_BYTES - 1));
        // Absorb all runs that overlap the new one or touch it.
        let touching = last.saturating_add(1);
        while let Some((&at, &end)) = self.runs.range(..=touching).next_back()
            && end.saturating_add(1) >= first
        {
            self.runs.remove(&at);
            (first, last) = (first.min(at), last.max(end));
        }
        if self.runs.len() >= RUNS_MAX {
            let before = self.runs.range(..first).next_back().map(|(at, end)| (*at, *end));
            let behind = self.runs.range(first..).next().map(|(at, end)| (*at, *end));
            let gap_behind = behind.map(|(at, _)| at - last);
            match before {
                Some((at, end)) if gap_behind.is_none_or(|gap| first - end <= gap) => first = at,
                _ => {
                    if let Some((at, end)) = behind {
                        self.runs.remove(&at);
                        last = end;
                    }
                }
            }
        }
        self.runs.insert(first, last);
    }

    /// Returns the first and last address of each run, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().map(|(first, last)| (*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(of: &PageRuns) -> Vec<(u64, u64)> {
        of.iter().collect()
    }

    #[test]
    fn pages_are_whole_and_runs_that_touch_are_one() {
        let mut pages = PageRuns::default();
        pages.add(0x5800, 0x58ff);
        pages.add(0x1ff0, 0x200f);
        assert_eq!(runs(&pages), [(0x1000, 0x2fff), (0x5000, 0x5fff)]);
        pages.add(0x3000, 0x3000);
        pages.add(u64::MAX, u64::MAX);
        assert_eq!(
            runs(&pages),
            [(0x1000, 0x3fff), (0x5000, 0x5fff), (u64::MAX - 0xfff, u64::MAX)]
        );
        pages.add(0, u64::MAX);
        assert_eq!(runs(&pages), [(0, u64::MAX)]);
    }

    #[test]
    fn the_runs_are_bounded_and_no_page_is_lost() {
        let mut pages = PageRuns::default();
        let firsts = (0..10 * RUNS_MAX as u64).map(|at| at.wrapping_mul(2_654_435_761) << 14);
        firsts.clone().for_each(|first| pages.add(first, first));
        assert!(runs(&pages).len() <= RUNS_MAX);
        for first in firsts {
            let (_, last) = pages.runs.range(..=first).next_back().unwrap();
            assert!(first <= *last, "{first:#x}");
        }
    }

    proptest! {
        #[test]
        fn a_few_runs_have_the_pages_that_were_added(
            added in prop::collection::vec((0_u64..60, 0_u64..6), 0..20),
        ) {
            let mut pages = PageRuns::default();
            let mut oracle = [false; 70];
            for (first, more) in added {
                pages.add(first * PAGE_BYTES, (first + more) * PAGE_BYTES);
                (first..=first + more).for_each(|page| oracle[page as usize] = true);
            }
            let mut found = [false; 70];
            for (first, last) in pages.iter() {
                (first / PAGE_BYTES..=last / PAGE_BYTES).for_each(|page| found[page as usize] = true);
            }
            prop_assert_eq!(found, oracle);
            let all = runs(&pages);
            prop_assert!(all.windows(2).all(|two| two[0].1 + 1 < two[1].0), "{all:?}");
        }
    }
}
