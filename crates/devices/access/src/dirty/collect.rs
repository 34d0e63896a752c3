//! Collecting and clearing the bits of a bitmap and reporting them, without losing any.
//!
//! ```text
//!   grace ─► take up to 16 Ki words ─► grace ─► report their runs ─┐   until the range is done
//!            ▲                                                     │
//!            └─────────────────────────────────────────────────────┘
//! ```
//!
//! Taken bits are in [`InHand`] until they are reported. If the grace period or the visitor fails or
//! panics, its `drop` puts them back into the bitmap.

use std::mem;
use std::ops::Range;

use crate::dirty::bitmap::{Bitmap, Taken};

/// The number of page words that are taken for one grace period: 16 Ki words of 64 pages, which is 4 GiB
/// if all pages have 4 KiB and are dirty. That is 256 KiB of memory, which fits in a core's cache. 1 TiB
/// that is completely dirty needs 256 grace periods: with 10 µs for a `membarrier` beside one busy
/// thread, that is 2.6 ms, which is little compared with sending 1 TiB. Measure again if grace periods
/// take longer than that.
pub(crate) const CHUNK_WORDS: usize = 16 << 10;

/// The statistics of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// The number of pages that were reported.
    pub pages: u64,
    /// The number of runs of adjacent pages that were reported.
    pub runs: u64,
    /// The number of words of 64 pages that were taken.
    pub page_words: u64,
    /// The number of summary words of 4,096 pages that were taken.
    pub middle_words: u64,
    /// The number of loads of summary words of 262,144 pages. Only this number grows with the range.
    pub top_words: u64,
    /// The number of grace periods.
    pub graces: u64,
}

/// Collects and clears the bits of `range`, `chunk_words` words at a time. `spare` is an empty buffer to
/// reuse.
pub(crate) fn run<E>(
    bitmap: &Bitmap,
    range: Range<usize>,
    chunk_words: usize,
    spare: &mut Vec<Taken>,
    mut grace: impl FnMut() -> Result<(), E>,
    mut visit: impl FnMut(Range<usize>) -> Result<(), E>,
) -> Result<Collected, E> {
    let mut done = Collected::default();
    if range.is_empty() {
        return Ok(done);
    }
    // A thread that set a bit, which others then found set, may not have set its summary bits yet.
    grace()?;
    done.graces += 1;
    let mut sweep = bitmap.sweep(range);
    let mut hand = InHand { bitmap, taken: mem::take(spare), next: 0, run: 0..0 };
    let mut more = true;
    while more {
        hand.taken.clear();
        hand.next = 0;
        more = bitmap.advance(&mut sweep, chunk_words, &mut hand.taken);
        if !hand.taken.is_empty() {
            // A thread that found a bit set before it was taken may not have finished its access yet.
            grace()?;
            done.graces += 1;
        }
        while let Some(found) = hand.first_run() {
            if !hand.run.is_empty() && hand.run.end != found.start {
                hand.tell(&mut done, &mut visit)?;
            }
            hand.extend_run(found);
        }
    }
    if !hand.run.is_empty() {
        hand.tell(&mut done, &mut visit)?;
    }
    done.page_words = sweep.page_words;
    done.middle_words = sweep.middle_words;
    done.top_words = sweep.top_words;
    hand.taken.clear();
    *spare = mem::take(&mut hand.taken);
    Ok(done)
}

/// Bits that were taken and not yet reported. Dropping it puts them back.
struct InHand<'a> {
    bitmap: &'a Bitmap,
    /// The words from `next` on are not yet in the run. Their bits are cleared when they are added to
    /// it.
    taken: Vec<Taken>,
    next: usize,
    /// Adjacent pages, to which more may be added. A run may continue from one chunk to the next.
    run: Range<usize>,
}

impl InHand<'_> {
    /// Returns the first adjacent pages that are not yet in the run.
    fn first_run(&mut self) -> Option<Range<usize>> {
        while self.taken.get(self.next)?.bits == 0 {
            self.next += 1;
        }
        let Taken { word, bits } = self.taken[self.next];
        let low = bits.trailing_zeros();
        let len = (bits >> low).trailing_ones();
        let start = word * 64 + low as usize;
        Some(start..start + len as usize)
    }

    /// Moves the pages that `first_run` found into the run, which is empty or ends where they begin.
    fn extend_run(&mut self, found: Range<usize>) {
        // Adding the lowest set bit carries through the lowest run of ones, and the `and` clears it.
        let bits = &mut self.taken[self.next].bits;
        *bits &= bits.wrapping_add(*bits & bits.wrapping_neg());
        if self.run.is_empty() {
            self.run = found;
        } else {
            self.run.end = found.end;
        }
    }

    /// Passes the run to `visit`. It is reported once `visit` has returned.
    fn tell<E>(
        &mut self,
        done: &mut Collected,
        visit: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        visit(self.run.clone())?;
        done.runs += 1;
        done.pages += self.run.len() as u64;
        self.run = 0..0;
        Ok(())
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.bitmap.set(self.run.clone());
        for taken in self.taken.iter().skip(self.next).filter(|taken| taken.bits != 0) {
            self.bitmap.set_word(taken.word, taken.bits);
        }
    }
}
