//! The dirty log that this process reads.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use longshore_mem::{AddrRange, Address, Granule};

use crate::dirty::bitmap::{Bitmap, Taken};
use crate::dirty::collect::{self, CHUNK_WORDS, Collected};
use longshore_sync::primitives::{AtomicBool, Ordering};

/// A log of the pages of a range that were written since they were last collected.
///
/// A page is a granule of 4 KiB or more. `A` is the type of the addresses: `Iova` or `GuestPhys`. Memory
/// is used only when pages are first marked: at most 33 MiB for 1 TiB of 4 KiB pages.
///
/// # Writing
/// Copy first, then [`mark`](Self::mark), both in a section that the grace period of a collection waits for
/// (a session's busy slot). Marking a page that is already marked costs one load.
///
/// # Collecting
/// [`collect`](Self::collect) takes marks, waits for a grace period and then reports the pages. No write
/// is lost:
/// * A writer that found its page unmarked marks it. Its copy happens before the mark, the mark
///   before the collection that takes it, and that before the page is reported.
/// * A writer that found its page marked began before the grace period, and has finished its copy before
///   the page is reported. A writer that begins after that finds the mark taken, and makes a new one for
///   the next collection.
///
/// Without the grace period, a write that found its page marked could be lost: its copy may become visible
/// only after the collector has read the page, and no mark is left to make it read the page again.
///
/// # The grace period
/// The function `grace` must wait until every access that was running when it was called has left its
/// slot, and order that access before its return. An access that it does not wait for must see
/// everything that happened before the call. `membarrier` and then a check of each slot do both.
pub struct DirtyLog<A> {
    bitmap: Bitmap,
    granule_log2: u32,
    /// The number of the first page, counted from address zero.
    first: u64,
    covers: AddrRange<A>,
    running: AtomicBool,
    /// Locked while a start or stop is published.
    changing: Mutex<()>,
    /// A buffer for collections, so that they allocate only once. It is locked only to take the buffer out
    /// or to put it back.
    spare: Mutex<Vec<Taken>>,
    space: PhantomData<A>,
}

/// The error if no log can be made for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The granule is below 4 KiB.
    #[error("a dirty log has no granule of {0}: use 4 KiB, or any power of two above")]
    Granule(Granule),
    /// The range is empty.
    #[error("a dirty log of the empty range at {start:#x} would cover nothing")]
    Empty {
        /// The start of the range.
        start: u64,
    },
    /// Rounded out to whole pages, the range is all 2^64 bytes of the address space.
    #[error("a dirty log cannot cover all 2^64 bytes of an address space: leave one {0} out")]
    WholeSpace(Granule),
    /// There is no memory for the bits.
    #[error(
        "no memory for a dirty log of {len_bytes:#x} bytes at {start:#x} with a granule of \
         {granule} (up to {size_bytes} bytes): use a larger granule or a smaller range"
    )]
    OutOfMemory {
        /// The start of the range.
        start: u64,
        /// The length of the range.
        len_bytes: u64,
        /// The granule.
        granule: Granule,
        /// The memory that is needed, in bytes.
        size_bytes: u64,
    },
}

impl<A: Address> DirtyLog<A> {
    /// Makes a log for the pages of size `granule` that `range` touches. No page is marked, and the log
    /// is not running.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn new(granule: Granule, range: AddrRange<A>) -> Result<Self, LogError> {
        if granule < Granule::SIZE_4K {
            return Err(LogError::Granule(granule));
        }
        let start = range.start().raw();
        let last = range.last().ok_or(LogError::Empty { start })?.raw();
        let log2 = u32::from(granule.log2());
        let first = start >> log2;
        let count = (last >> log2) - first + 1;
        let len_bytes = count.checked_mul(granule.bytes());
        let covers = len_bytes
            .and_then(|len_bytes| AddrRange::new(A::from_raw(first << log2), len_bytes).ok())
            .ok_or(LogError::WholeSpace(granule))?;
        // At most 2^52 pages: the granule is 2^12 or more.
        let count = count as usize;
        let bitmap = Bitmap::new(count).ok_or_else(|| LogError::OutOfMemory {
            start,
            len_bytes: range.len(),
            granule,
            size_bytes: Bitmap::size_bytes(count) as u64,
        })?;
        Ok(Self {
            bitmap,
            granule_log2: log2,
            first,
            covers,
            running: AtomicBool::new(false),
            changing: Mutex::new(()),
            spare: Mutex::new(Vec::new()),
            space: PhantomData,
        })
    }

    /// Returns the base-2 logarithm of the page size.
    pub fn granule_log2(&self) -> u32 {
        self.granule_log2
    }

    /// Returns the range whose writes are logged, rounded out to whole pages.
    pub fn covers(&self) -> AddrRange<A> {
        self.covers
    }

    /// Marks the pages that `len_bytes` from `at` touch. Pages that the log does not cover are ignored.
    ///
    /// Call this after the bytes were written, in the same section that grace periods wait for.
    #[inline]
    pub fn mark(&self, at: A, len_bytes: u64) {
        if len_bytes != 0 && !self.has_marked(at, len_bytes) {
            let [first, last] = self.pages_at(at, len_bytes);
            self.mark_pages(first, last);
        }
    }

    /// Returns `true` if `len_bytes` from `at` (not zero) are in one page, and that page is marked.
    #[inline]
    pub(crate) fn has_marked(&self, at: A, len_bytes: u64) -> bool {
        let [first, last] = self.pages_at(at, len_bytes);
        // For an address below the first page this wraps to a number beyond the last.
        first == last && self.bitmap.is_set(first.wrapping_sub(self.first) as usize)
    }

    /// Returns the numbers of the first and the last page, counted from address zero.
    #[inline]
    fn pages_at(&self, at: A, len_bytes: u64) -> [u64; 2] {
        let last = at.raw().saturating_add(len_bytes - 1);
        [at.raw() >> self.granule_log2, last >> self.granule_log2]
    }

    /// Marks pages. It is not inlined, to keep the inlined code of callers short.
    #[inline(never)]
    fn mark_pages(&self, first: u64, last: u64) {
        if let Some(end) = (last + 1).checked_sub(self.first) {
            let start = first.saturating_sub(self.first);
            self.bitmap.set(start as usize..end as usize);
        }
    }

    /// Returns `true` if the page with the address `at` is marked. Returns `false` if the log does not
    /// cover it, and while a collection has taken the mark and not reported it yet.
    pub fn peek(&self, at: A) -> bool {
        let page = (at.raw() >> self.granule_log2).wrapping_sub(self.first);
        self.bitmap.is_set(page as usize)
    }

    /// Returns the number of marked pages that `range` touches. It is exact if no thread marks or
    /// collections meanwhile.
    pub fn count(&self, range: AddrRange<A>) -> u64 {
        self.bitmap.count_set(self.pages_of(range))
    }

    /// Clears the marks of the pages that `range` touches, without reporting them.
    pub fn clear(&self, range: AddrRange<A>) {
        let mut sweep = self.bitmap.sweep(self.pages_of(range));
        let mut taken = self.take_spare();
        while self.bitmap.advance(&mut sweep, CHUNK_WORDS, &mut taken) {
            taken.clear();
        }
        self.put_spare(taken);
    }

    /// Clears the marks of the pages that `range` touches, and calls `visit` with them, in ascending
    /// runs of adjacent pages that are as long as possible.
    ///
    /// It reports every page for which a call of [`mark`](Self::mark) by any thread has returned before
    /// this call, unless another collection has taken it. `grace` is called once at the beginning, and then
    /// each time after marks were taken (up to 16 Ki words of 64 pages) and before they are reported.
    ///
    /// The time grows with the number of marked pages, plus one load for each 2^18 pages of the range (1
    /// GiB of 4 KiB pages).
    ///
    /// If `grace` or `visit` panics, every taken page for which `visit` has not returned is marked
    /// again.
    pub fn collect(
        &self,
        range: AddrRange<A>,
        mut grace: impl FnMut(),
        mut visit: impl FnMut(AddrRange<A>),
    ) -> Collected {
        let Ok(done) = self.try_collect::<Infallible>(
            range,
            || {
                grace();
                Ok(())
            },
            |run| {
                visit(run);
                Ok(())
            },
        );
        done
    }

    /// Collects like [`collect`](Self::collect), with a grace period and a visitor that may fail.
    ///
    /// # Errors
    /// The first error of `grace` or `visit`, which ends the collection. Every taken page for which `visit`
    /// has not returned `Ok` is marked again, including those of the run with which it failed.
    pub fn try_collect<E>(
        &self,
        range: AddrRange<A>,
        grace: impl FnMut() -> Result<(), E>,
        visit: impl FnMut(AddrRange<A>) -> Result<(), E>,
    ) -> Result<Collected, E> {
        self.collect_by_chunks(range, CHUNK_WORDS, grace, visit)
    }

    pub(crate) fn collect_by_chunks<E>(
        &self,
        range: AddrRange<A>,
        chunk_words: usize,
        grace: impl FnMut() -> Result<(), E>,
        mut visit: impl FnMut(AddrRange<A>) -> Result<(), E>,
    ) -> Result<Collected, E> {
        let mut spare = self.take_spare();
        let visit = |run| visit(self.range_of(run));
        let pages = self.pages_of(range);
        let done = collect::run(&self.bitmap, pages, chunk_words, &mut spare, grace, visit)?;
        self.put_spare(spare);
        Ok(done)
    }

    /// Returns `true` if the log is running.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Clears all marks and starts the log. `publish` must flush the TLBs of all sessions and wait for a
    /// grace period; after it, every write is logged. Returns `false` and does nothing if the log was
    /// already running.
    ///
    /// Other calls of `start` and [`stop`](Self::stop) on this log wait until `publish` returns, so
    /// `publish` must not make one. Writers and collections do not wait.
    ///
    /// # Errors
    /// The error of `publish`. The log is not running then.
    pub fn start<E>(&self, publish: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_running() {
            return Ok(false);
        }
        self.clear(self.covers);
        self.running.store(true, Ordering::Release);
        let undo = StopOnDrop(&self.running);
        publish()?;
        mem::forget(undo);
        Ok(true)
    }

    /// Stops the log. `publish` must do the same as for [`start`](Self::start); after it, no page is
    /// marked any more. Marked pages stay marked, and can be collected. Returns `false` if the log was
    /// not running. Other calls wait for `publish` as for [`start`](Self::start).
    ///
    /// # Errors
    /// The error of `publish`. The log is stopped, but sessions may still mark pages.
    pub fn stop<E>(&self, publish: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_running() {
            return Ok(false);
        }
        self.running.store(false, Ordering::Release);
        publish()?;
        Ok(true)
    }

    /// Returns the pages that `range` touches, counted from the log's first.
    fn pages_of(&self, range: AddrRange<A>) -> Range<usize> {
        let shared = self.covers.intersection(range);
        let Some((start, last)) = shared.and_then(|shared| Some((shared.start(), shared.last()?)))
        else {
            return 0..0;
        };
        let page = |at: A| ((at.raw() >> self.granule_log2) - self.first) as usize;
        page(start)..page(last) + 1
    }

    /// Returns the addresses of pages of the log.
    fn range_of(&self, pages: Range<usize>) -> AddrRange<A> {
        let start = (self.first + pages.start as u64) << self.granule_log2;
        let len_bytes = (pages.len() as u64) << self.granule_log2;
        AddrRange::new(A::from_raw(start), len_bytes).expect("pages of the log are in its range")
    }

    fn take_spare(&self) -> Vec<Taken> {
        mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put_spare(&self, mut spare: Vec<Taken>) {
        spare.clear();
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = spare;
    }
}

impl<A: Address> fmt::Debug for DirtyLog<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("DirtyLog");
        debug.field("covers", &self.covers).field("granule_log2", &self.granule_log2);
        debug.field("running", &self.is_running()).finish_non_exhaustive()
    }
}

/// Stops the log on drop.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
