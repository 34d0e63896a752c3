//! A bitmap in three levels that loses no bit while threads set and collect bits concurrently.
//!
//! ```text
//!   top      one bit for a middle word    [ 1 0 0 … ]            262,144 pages a word
//!                                           │
//!   middle   one bit for a page word      [ 0 1 0 0 1 … ]        4,096 pages a word
//!                                             │     │
//!   pages    one bit for a page           [ 0 1 1 … ] [ 1 … ]    64 pages a word
//! ```
//!
//! A set summary bit means that a bit below it may be set. A clear one means that none is, or that the
//! thread that sets one has not come up to this level yet. A sweep visits only words whose summary bit
//! is set. It reads the top level by words: one load for 2^18 pages, which is 1 GiB of 4 KiB pages.
//!
//! # Why no bit is lost
//!
//! *Setting* goes up: set the page bit, then the middle bit if it is missing, then the top bit if it
//! is missing. *Sweeping* goes down: clear the top bit, then take the middle word, then take the
//! page words. Every change is a read-modify-write with `AcqRel`, the tests on the way up load with
//! `Acquire`, and a sweep never skips a word below a bit it cleared because it *loads* as zero: it
//! always takes it by a read-modify-write.
//!
//! Claim: when a setter has returned, one of these holds: a sweep has taken its page bit; a sweep that
//! cleared a bit above it is on its way down to it; or the bits above it are set, so that the next sweep
//! finds it.
//!
//! 1. *Page and middle.* Say the setter found (or left) the middle bit set in some state of the
//!    middle word, and let S be the next sweep that takes the word from then on. S takes the page
//!    word after it. If that comes after the setter's `or`, S has the page bit. It cannot come
//!    before: the setter's `or` would have read what S wrote or something later in the same release
//!    sequence (all changes are read-modify-writes), so it would have synchronised with S, and the
//!    setter's later look at the middle word could not have seen a state from before S took it.
//! 2. *Middle and top*, where the setter set the middle bit itself: the same, one level up.
//! 3. *Middle and top*, where it found the middle bit set by another: say it found the top bit set in
//!    a state that the sweep S then clears. S takes the middle word afterwards. If that takes the
//!    state the setter saw or a later one, the bit is in it, and by (1) the page follows. If the state
//!    the setter saw is later than S's taking, the setter's `Acquire` load read from S's release
//!    sequence and synchronised with S, and could not have found the top bit as it was before S
//!    cleared it.
//!
//! So a setter that changed a page word always checks *both* levels above: another setter that set the
//! middle bit may not have come up to the top yet.
//!
//! A setter that finds the page bit set does nothing at all. The thread that set it may still be on its
//! way up. So a sweep that must find the bit of every setter that has returned first waits for a grace
//! period, until all running setters have returned. Otherwise a later sweep finds the bit.

use std::ops::Range;

use crate::dirty::words::{self, Word};
use longshore_sync::primitives::Ordering;

/// The base-2 logarithm of the number of bits in a word.
const WORD_LOG2: usize = 6;
/// The base-2 logarithm of the number of pages that a middle word covers.
const MIDDLE_LOG2: usize = 2 * WORD_LOG2;
/// The base-2 logarithm of the number of pages that a top word covers.
const TOP_LOG2: usize = 3 * WORD_LOG2;
/// The maximum number of page words that one step of a sweep takes.
pub(crate) const STEP_WORDS_MAX: usize = 1 << WORD_LOG2;

/// A bit for each page, and two levels of summary above.
pub(crate) struct Bitmap {
    pages: Box<[Word]>,
    middle: Box<[Word]>,
    top: Box<[Word]>,
    /// The number of pages. Bits beyond them are never set.
    count: usize,
}

/// Bits that were taken out of one page word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The number of the word.
    pub(crate) word: usize,
    /// The bits, of which at least one is set.
    pub(crate) bits: u64,
}

/// The progress of a sweep.
pub(crate) struct Sweep {
    range: Range<usize>,
    /// The next middle word to look at.
    next: usize,
    /// The number of loads of top words.
    pub(crate) top_words: u64,
    /// The number of middle words that were taken.
    pub(crate) middle_words: u64,
    /// The number of page words that were taken.
    pub(crate) page_words: u64,
}

impl Bitmap {
    /// Makes a bitmap of `count` pages with no bit set. Returns `None` if there is no memory.
    pub(crate) fn new(count: usize) -> Option<Self> {
        let words = |log2: usize| words::words(count.div_ceil(1 << log2));
        let (pages, middle) = (words(WORD_LOG2)?, words(MIDDLE_LOG2)?);
        Some(Self { pages, middle, top: words(TOP_LOG2)?, count })
    }

    /// Returns the maximum number of bytes that a bitmap of `count` pages takes.
    pub(crate) fn size_bytes(count: usize) -> usize {
        [WORD_LOG2, MIDDLE_LOG2, TOP_LOG2].iter().map(|log2| 8 * count.div_ceil(1 << log2)).sum()
    }

    /// Returns `true` if the bit of `page` is set, and `false` if there is no such page.
    ///
    /// The load is `Relaxed`, because the grace period of a collection gives the ordering.
    #[inline]
    pub(crate) fn is_set(&self, page: usize) -> bool {
        let word = self.pages.get(page >> WORD_LOG2);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (page % 64) & 1 != 0)
    }

    /// Sets the bits of `pages`; pages beyond the end are ignored. A word whose bits are all set is only
    /// read.
    pub(crate) fn set(&self, pages: Range<usize>) {
        for (word, mask) in masks(pages.start, pages.end.min(self.count)) {
            let missing = mask & !self.pages[word].load(Ordering::Relaxed);
            if missing != 0 {
                self.set_word(word, missing);
            }
        }
    }

    /// Sets `bits` of a page word, and the bits above it that are missing.
    pub(crate) fn set_word(&self, word: usize, bits: u64) {
        or(&self.pages[word], bits);
        let middle = word >> WORD_LOG2;
        raise(&self.middle[middle], word % 64);
        raise(&self.top[middle >> WORD_LOG2], middle % 64);
    }

    /// Begins a sweep over `range`, which is cut at the end of the pages.
    pub(crate) fn sweep(&self, range: Range<usize>) -> Sweep {
        let range = range.start..range.end.min(self.count);
        let next = range.start >> MIDDLE_LOG2;
        Sweep { range, next, top_words: 0, middle_words: 0, page_words: 0 }
    }

    /// Continues a sweep until `taken` has `room` words, in ascending order, or the range is done.
    /// Returns `true` if there may be more. `room` must be at least [`STEP_WORDS_MAX`].
    pub(crate) fn advance(&self, sweep: &mut Sweep, room: usize, taken: &mut Vec<Taken>) -> bool {
        if sweep.range.is_empty() {
            return false;
        }
        let last = (sweep.range.end - 1) >> MIDDLE_LOG2;
        while sweep.next <= last {
            let bits = self.top[sweep.next >> WORD_LOG2].load(Ordering::Acquire);
            sweep.top_words += 1;
            let Some(found) = first_set_from(bits, sweep.next % 64) else {
                sweep.next = (sweep.next | 63) + 1;
                continue;
            };
            sweep.next = (sweep.next & !63) + found;
            if sweep.next > last {
                break;
            }
            if taken.len() + STEP_WORDS_MAX > room {
                return true;
            }
            // Reserve before bits are taken, so that none is lost if this panics.
            taken.reserve(STEP_WORDS_MAX);
            self.take_below(sweep, taken);
            sweep.next += 1;
        }
        false
    }

    /// Takes the set bits below the middle word `sweep.next`, whose top bit is set.
    ///
    /// A summary bit is cleared only if the range covers all of its pages: bits outside of the range
    /// stay set and must be found later.
    fn take_below(&self, sweep: &mut Sweep, taken: &mut Vec<Taken>) {
        let middle = sweep.next;
        let (low, high) = self.part_below(middle, &sweep.range);
        let whole = mask(low.div_ceil(64), high >> WORD_LOG2);
        let touched = mask(low >> WORD_LOG2, high.div_ceil(64));
        let word = &self.middle[middle];
        let found = if whole == u64::MAX {
            self.top[middle >> WORD_LOG2].fetch_and(!(1 << (middle % 64)), Ordering::AcqRel);
            word.swap(0, Ordering::AcqRel)
        } else {
            word.fetch_and(!whole, Ordering::AcqRel)
        };
        sweep.middle_words += 1;
        for at in ones(found & touched) {
            let mask = mask(low.max(at * 64) - at * 64, high.min(at * 64 + 64) - at * 64);
            let word = (middle << WORD_LOG2) + at;
            let bits = if mask == u64::MAX {
                self.pages[word].swap(0, Ordering::AcqRel)
            } else {
                self.pages[word].fetch_and(!mask, Ordering::AcqRel) & mask
            };
            sweep.page_words += 1;
            if bits != 0 {
                taken.push(Taken { word, bits });
            }
        }
    }

    /// Returns the number of pages of `range` that are set and whose summary bits are set, too.
    pub(crate) fn count_set(&self, range: Range<usize>) -> u64 {
        let range = range.start..range.end.min(self.count);
        let mut set = 0;
        let tops = range.start >> TOP_LOG2..range.end.div_ceil(1 << TOP_LOG2);
        for top in tops {
            for at in ones(self.top[top].load(Ordering::Acquire)) {
                let middle = (top << WORD_LOG2) + at;
                let (low, high) = self.part_below(middle, &range);
                for at in ones(self.middle[middle].load(Ordering::Acquire)) {
                    let (first, end) = (at * 64, at * 64 + 64);
                    if low < end && first < high {
                        let mask = mask(low.max(first) - first, high.min(end) - first);
                        let word = &self.pages[(middle << WORD_LOG2) + at];
                        set += u64::from((word.load(Ordering::Acquire) & mask).count_ones());
                    }
                }
            }
        }
        set
    }

    /// Returns the range of the 4,096 pages below a middle word that are in `range`, which may be empty.
    /// A range to the end of the pages covers the last words as if they were full.
    fn part_below(&self, middle: usize, range: &Range<usize>) -> (usize, usize) {
        let first = middle << MIDDLE_LOG2;
        let end = if range.end == self.count { usize::MAX } else { range.end };
        let low = range.start.saturating_sub(first).min(1 << MIDDLE_LOG2);
        (low, end.saturating_sub(first).clamp(low, 1 << MIDDLE_LOG2))
    }
}

/// Sets bits of a word. All changes that set bits go through this function.
fn or(word: &Word, bits: u64) {
    #[cfg(test)]
    tests::ORS.set(tests::ORS.get() + 1);
    word.fetch_or(bits, Ordering::AcqRel);
}

/// Sets a bit of a summary if it is missing.
fn raise(word: &Word, at: usize) {
    // Acquire: see (3) in the module's documentation.
    if word.load(Ordering::Acquire) >> at & 1 == 0 {
        or(word, 1 << at);
    }
}

/// Returns a mask of the bits `low..high` of a word.
fn mask(low: usize, high: usize) -> u64 {
    if low < high { u64::MAX >> (64 - (high - low)) << low } else { 0 }
}

/// Returns the words that contain the bits `low..high` of the bitmap, each with its mask.
fn masks(low: usize, high: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = if low < high { high.div_ceil(64) } else { 0 };
    (low >> WORD_LOG2..end).map(move |word| {
        let first = word << WORD_LOG2;
        (word, mask(low.max(first) - first, high.min(first + 64) - first))
    })
}

/// Returns the numbers of the set bits, from the lowest.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(at)
    })
}

fn first_set_from(bits: u64, at: usize) -> Option<usize> {
    let ahead = bits & (u64::MAX << at);
    (ahead != 0).then(|| ahead.trailing_zeros() as usize)
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    thread_local! {
        /// The number of times that this thread has set bits.
        pub(in crate::dirty) static ORS: Cell<u64> = const { Cell::new(0) };
    }
}
