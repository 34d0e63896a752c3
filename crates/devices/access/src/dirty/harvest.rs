//! Taking bits out of a bitmap and telling of them, so that none is lost on the way.
//!
//! ```text
//!   grace ─► take up to 16 Ki words ─► grace ─► tell of their runs ─┐   until all was seen
//!            ▲                                                      │
//!            └──────────────────────────────────────────────────────┘
//! ```
//!
//! What was taken is in [`InHand`] until it was reported, and goes back into the bitmap from there
//! when the grace period or the visitor fails or panics.

use std::mem;
use std::ops::Range;

use crate::dirty::bitmap::{Bitmap, Taken};

/// Page words that are taken for one grace period: 16 Ki of 64 pages, 4 GiB of 4 KiB pages if all
/// are dirty. That is 256 KiB of memory, which a core keeps in its cache, and 256 grace periods for
/// 1 TiB that is dirty throughout: at the 10 µs of a `membarrier` beside one busy thread, 2.6 ms,
/// little beside sending a TiB. To be measured again where grace periods take longer than that.
pub(crate) const CHUNK_WORDS: usize = 16 << 10;

/// What a harvest did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Harvest {
    /// Pages reported.
    pub pages: u64,
    /// Runs of adjacent pages reported.
    pub runs: u64,
    /// Words of 64 pages that were taken.
    pub page_words: u64,
    /// Summary words of 4,096 pages that were taken.
    pub middle_words: u64,
    /// Looks at summary words of 262,144 pages. The only number that grows with the range.
    pub top_words: u64,
    /// Grace periods waited for.
    pub graces: u64,
}

/// Harvests `range`, `chunk_words` words at a time. `spare` is empty memory to use.
pub(crate) fn run<E>(
    bitmap: &Bitmap,
    range: Range<usize>,
    chunk_words: usize,
    spare: &mut Vec<Taken>,
    mut grace: impl FnMut() -> Result<(), E>,
    mut visit: impl FnMut(Range<usize>) -> Result<(), E>,
) -> Result<Harvest, E> {
    let mut done = Harvest::default();
    if range.is_empty() {
        return Ok(done);
    }
    // Who set a bit that others found set may still be on the way to the summary.
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
            // Who found a bit set before it was taken may still be copying.
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

/// Bits that were taken and not yet reported. Dropped, it puts them back.
struct InHand<'a> {
    bitmap: &'a Bitmap,
    /// From `next` on not yet in the run; their bits are cleared as they join it.
    taken: Vec<Taken>,
    next: usize,
    /// Adjacent pages, waiting for more of them. May continue from one chunk to the next.
    run: Range<usize>,
}

impl InHand<'_> {
    /// The first adjacent pages that are not yet in the run.
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

    /// Moves what `first_run` found into the run, which is empty or ends where it begins.
    fn extend_run(&mut self, found: Range<usize>) {
        // The lowest ones are cleared by the carry that adding the lowest of them makes.
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
        done: &mut Harvest,
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
