//! Lists of accesses: their places and sizes.

use super::memory::SPACE_BYTES;
use super::random::{Random, shuffle};

const PAGE_BYTES: u64 = 4096;
/// The bytes of a hot set, and of each contiguous range in it.
const HOT_BYTES: u64 = 1 << 20;
const RUN_BYTES: u64 = 64 << 10;
const RUNS: u64 = HOT_BYTES / RUN_BYTES;

/// The maximum number of threads with hot sets of their own.
pub(super) const THREADS_MAX: u64 = 2;

/// The published mix: 63% of all accesses are reads; 48% of the reads are of a page, the others of less
/// than a page; every write is of less than a page.
const READS: f64 = 0.63;
const PAGES_OF_READS: f64 = 0.48;
/// The sizes below a page, each as often as the others. The published table does not give them.
const SMALL: [u32; 4] = [8, 64, 512, 1024];

/// One access. The kind of address depends on the candidate: an IOVA, a guest address or a host address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) write: bool,
}

/// The kind of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The published mix.
    Mix,
    /// Reads of this many bytes; 8 bytes are read as a value.
    Read(u32),
    /// Writes of this many bytes; 8 bytes are written as a value.
    Write(u32),
}

/// The places of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Places {
    /// 1 MiB: 16 ranges of 64 KiB, one at a random place in each sixteenth of the space.
    Hot,
    /// The whole space.
    Random,
}

impl Work {
    pub(super) fn name(self) -> String {
        match self {
            Self::Mix => "mix".to_owned(),
            Self::Read(len) => format!("read {len}"),
            Self::Write(len) => format!("write {len}"),
        }
    }

    /// Returns lengths and directions of `count` accesses, not shuffled.
    fn deck(self, count: usize) -> Vec<(u32, bool)> {
        match self {
            Self::Read(len) => vec![(len, false); count],
            Self::Write(len) => vec![(len, true); count],
            Self::Mix => {
                let reads = (count as f64 * READS).round() as usize;
                let pages = (reads as f64 * PAGES_OF_READS).round() as usize;
                let small = |at: usize| SMALL[at % SMALL.len()];
                let mut deck = vec![(PAGE_BYTES as u32, false); pages];
                deck.extend((pages..reads).map(|at| (small(at), false)));
                deck.extend((reads..count).map(|at| (small(at), true)));
                deck
            }
        }
    }

    /// Returns the mean length of an access, in bytes.
    fn mean_bytes(self) -> f64 {
        const SAMPLE: usize = 10_000;
        let bytes: u64 = self.deck(SAMPLE).iter().map(|(len, _)| u64::from(*len)).sum();
        bytes as f64 / SAMPLE as f64
    }
}

impl Places {
    /// Returns the number of accesses in a list. With a hot set, the list fits in the second-level
    /// cache. With the whole space, the accessed memory does not fit in the third-level cache.
    pub(super) fn count(self, work: Work, quick: bool) -> usize {
        const HOT: usize = 1 << 14;
        const LINE_BYTES: f64 = 64.0;
        const BEYOND_CACHES_BYTES: f64 = (128u64 << 20) as f64;
        let full = match self {
            Self::Hot => HOT,
            Self::Random => {
                let touched = work.mean_bytes().max(LINE_BYTES);
                ((BEYOND_CACHES_BYTES / touched) as usize).min(1 << 20)
            }
        };
        if quick { full.min(1 << 12) } else { full }
    }

    /// Returns the pages that are accessed, as offsets into the space; `None` for all. Each thread has
    /// its own.
    fn pages(self, thread: u64, random: &mut Random) -> Option<Vec<u64>> {
        assert!(thread < THREADS_MAX);
        let sixteenth = SPACE_BYTES / RUNS;
        let share = sixteenth / THREADS_MAX;
        let run = |at: u64| {
            let start =
                at * sixteenth + thread * share + random.below(share / RUN_BYTES) * RUN_BYTES;
            (start..start + RUN_BYTES).step_by(PAGE_BYTES as usize)
        };
        (self == Self::Hot).then(|| (0..RUNS).flat_map(run).collect())
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Random => "random",
        }
    }
}

/// Returns `count` accesses in a pseudorandom order, the same in each run. Addresses are offsets into
/// the space. Each access is within a page, at a multiple of its length.
pub(super) fn list(work: Work, places: Places, thread: u64, count: usize) -> Vec<Op> {
    let mut random = Random::new(2 + thread);
    let pages = places.pages(thread, &mut random);
    let mut deck = work.deck(count);
    shuffle(&mut deck, &mut random);
    let of = |(len, write)| {
        let page = match &pages {
            Some(pages) => pages[random.below(pages.len() as u64) as usize],
            None => random.below(SPACE_BYTES / PAGE_BYTES) * PAGE_BYTES,
        };
        let len_bytes = u64::from(len);
        Op { at: page + random.below(PAGE_BYTES / len_bytes) * len_bytes, len, write }
    };
    deck.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_mix_is_the_published_one() {
        const COUNT: usize = 16_384;
        let ops = list(Work::Mix, Places::Hot, 0, COUNT);
        let count = |is: &dyn Fn(&Op) -> bool| ops.iter().filter(|op| is(op)).count();
        assert_eq!(ops.len(), COUNT);
        assert_eq!(count(&|op| !op.write), 10_322, "63% are reads");
        assert_eq!(count(&|op| op.len == 4096), 4_955, "48% of the reads are pages");
        assert_eq!(count(&|op| op.write && op.len == 4096), 0, "a write is less than a page");
        for len in SMALL {
            let writes = count(&|op| op.write && op.len == len);
            assert!(writes.abs_diff(6_062 / SMALL.len()) <= 1, "{len}: {writes}");
        }
    }

    #[test]
    fn a_hot_set_is_one_mebibyte_and_each_thread_has_its_own() {
        let sets: Vec<BTreeSet<u64>> = (0..THREADS_MAX)
            .map(|thread| {
                let ops = list(Work::Read(8), Places::Hot, thread, 1 << 14);
                ops.iter().map(|op| op.at / PAGE_BYTES).collect()
            })
            .collect();
        assert!(sets.iter().all(|set| set.len() as u64 == HOT_BYTES / PAGE_BYTES));
        assert!(sets[0].is_disjoint(&sets[1]));
    }

    #[test]
    fn no_access_crosses_a_page() {
        for work in [Work::Mix, Work::Read(1024), Work::Write(4096)] {
            for op in list(work, Places::Random, 0, 1000) {
                assert!(op.at % PAGE_BYTES + u64::from(op.len) <= PAGE_BYTES);
                assert!(op.at < SPACE_BYTES && op.at % u64::from(op.len) == 0);
            }
        }
    }
}
