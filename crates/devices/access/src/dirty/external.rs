//! A dirty log in shared memory, which another process reads and clears.
#![expect(unsafe_code, reason = "sets bits in memory that other processes change")]

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use longshore_mem::{AddrRange, Address, Granule, GuestPhys};
#[cfg(not(loom))]
use {
    crate::words,
    longshore_mem::FileOffset,
    longshore_mem::fault::FaultGuard,
    longshore_sys::file,
    longshore_sys::mapping::{Access, Mapping},
    std::io,
    std::os::fd::AsFd,
};

/// The size of a page in an [`ExternalLog`], which the protocols fix.
pub const LOG_PAGE: Granule = Granule::SIZE_4K;

/// A shared bitmap in the format of vhost-user: page n is bit n % 8 of byte n / 8. Pages have 4 KiB and
/// are counted from address zero.
///
/// Source: QEMU's `docs/interop/vhost-user.rst`, "Migration" (`VHOST_USER_SET_LOG_BASE` gives the
/// memory, its length and the offset of the log; addresses are guest-physical; bits must be set
/// atomically).
///
/// The reading process takes bits by an atomic exchange, at any moment, and then reads the pages. So a
/// bit is set after each write, even if it is set already, because the reader may be taking it. All
/// marks that one call or one [`Burst`] makes in 64 pages are set by one instruction.
pub struct ExternalLog<A = GuestPhys> {
    start: NonNull<u8>,
    len_bytes: usize,
    /// The number of bytes before the first aligned word. Bits in these bytes, and in those after the
    /// last whole word, are set byte by byte.
    head_bytes: usize,
    /// `true` if pages may be missing, so that bits are set by instructions that survive a fault.
    is_guarded: bool,
    /// Keeps the memory mapped until the log is dropped.
    _keeps: Box<dyn Any + Send + Sync>,
    space: PhantomData<A>,
}

// SAFETY: all accesses are atomic, and every thread can access the memory.
unsafe impl<A: Send> Send for ExternalLog<A> {}
// SAFETY: as above.
unsafe impl<A: Sync> Sync for ExternalLog<A> {}

/// The error if an [`ExternalLog`] has no bits for pages of a write, or if the memory of its bits is
/// gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len_bytes} bytes written at {at:#x} cannot all be marked: the shared dirty log has bits for \
     {log_pages} pages of 4 KiB; the program that made the log must make it for all memory"
)]
#[non_exhaustive]
pub struct BeyondLog {
    /// The first address of the write.
    pub at: u64,
    /// The length of the write in bytes.
    pub len_bytes: u64,
    /// The number of pages for which the log has bits.
    pub log_pages: u64,
}

/// Bits of pages that are set by one atomic instruction.
#[derive(Clone, Copy)]
struct Bits {
    /// The page of the lowest bit of the word or byte.
    base: u64,
    mask: u64,
}

impl<A: Address> ExternalLog<A> {
    /// Makes a log in the `len_bytes` bytes at `start`, with bits for eight times as many pages.
    ///
    /// # Safety
    /// Until `keeps` is dropped, the bytes must stay mapped and writable, and the file behind them must
    /// not shrink below them: an access to missing memory raises SIGBUS, which is not caught here. This
    /// process may access the bytes only by atomics or by system calls. The atomics must have eight
    /// bytes for each aligned word inside of the log, and one byte for the rest.
    pub unsafe fn from_raw_parts(
        start: NonNull<u8>,
        len_bytes: usize,
        keeps: impl Any + Send + Sync,
    ) -> Self {
        let head_bytes = (start.addr().get().wrapping_neg() % 8).min(len_bytes);
        Self {
            start,
            len_bytes,
            head_bytes,
            is_guarded: false,
            _keeps: Box::new(keeps),
            space: PhantomData,
        }
    }

    /// Makes a log in `len_bytes` bytes of a file from `offset` on, which another process shares.
    ///
    /// Pages of the file may be missing at any moment, whatever its seals are, as for
    /// [`Region::map_file`](crate::Region::map_file). Bits are set by instructions that survive that;
    /// marking bits in missing memory returns [`BeyondLog`].
    ///
    /// # Errors
    /// `InvalidInput` if `len_bytes` is zero; `UnexpectedEof` if the file is too short; those of
    /// `mmap(2)`, and of installing a handler of SIGBUS ([`FaultGuard`]).
    #[cfg(not(loom))]
    pub fn map_file(of: impl AsFd, offset: FileOffset, len_bytes: u64) -> io::Result<Self> {
        // `as_fd` is called only once, so that the file that is checked is the one that is mapped.
        let of = of.as_fd();
        let end = offset.checked_add(len_bytes).filter(|_| len_bytes > 0);
        let end = end.ok_or(io::ErrorKind::InvalidInput)?.raw();
        if file::status(of)?.version.len_bytes() < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let guard = FaultGuard::install()?;
        let page = Granule::new(longshore_sys::page_size_bytes() as u64)
            .map_err(|_| io::ErrorKind::Unsupported)?;
        let mapping = Mapping::of_file_part(of, offset, len_bytes, page, Access::ReadWrite)?;
        let (start, len_bytes) = (mapping.start(), mapping.len_bytes());
        // SAFETY: the log keeps the mapping and is its only user. It also keeps the guard, and sets bits
        // by instructions that survive missing pages.
        let log = unsafe { Self::from_raw_parts(start, len_bytes, (mapping, guard)) };
        Ok(Self { is_guarded: true, ..log })
    }

    /// Returns the number of pages for which the log has bits.
    pub fn pages(&self) -> u64 {
        self.len_bytes as u64 * 8
    }

    /// Checks that there is a bit for every page that `range` touches. Call this before the range is
    /// mapped, because after a write it is too late.
    ///
    /// # Errors
    /// [`BeyondLog`].
    pub fn check(&self, range: AddrRange<A>) -> Result<(), BeyondLog> {
        match range.last() {
            Some(last) if page_of(last.raw()) >= self.pages() => {
                Err(self.beyond(range.start(), range.len()))
            }
            _ => Ok(()),
        }
    }

    /// Marks the pages that `len_bytes` from `at` touch. Call this after the bytes were written.
    ///
    /// # Errors
    /// [`BeyondLog`] if the log does not have bits for all of the pages; those that it has are set.
    #[inline]
    pub fn mark(&self, at: A, len_bytes: u64) -> Result<(), BeyondLog> {
        self.each(at, len_bytes, |bits| self.or(bits))
    }

    /// Returns a [`Burst`], which collects marks so that those of neighbouring pages are set by one
    /// instruction.
    pub fn burst(&self) -> Burst<'_, A> {
        Burst { log: self, pending: Bits { base: 0, mask: 0 } }
    }

    #[inline]
    fn each(
        &self,
        at: A,
        len_bytes: u64,
        mut set: impl FnMut(Bits) -> bool,
    ) -> Result<(), BeyondLog> {
        let Some(span) = len_bytes.checked_sub(1) else { return Ok(()) };
        let mut page = page_of(at.raw());
        let wanted = page_of(at.raw().saturating_add(span)) + 1;
        let end = wanted.min(self.pages());
        while page < end {
            let (base, len) = self.unit_of(page);
            let stop = end.min(base + len);
            let mask = u64::MAX >> (64 - (stop - page)) << (page - base);
            if !set(Bits { base, mask }) {
                return Err(BeyondLog { at: at.raw(), len_bytes, log_pages: base });
            }
            page = stop;
        }
        if wanted > end { Err(self.beyond(at, len_bytes)) } else { Ok(()) }
    }

    /// Returns the first page of the word or byte that has the bit of `page`, and its number of pages.
    #[inline]
    fn unit_of(&self, page: u64) -> (u64, u64) {
        let head = self.head_bytes as u64 * 8;
        let words = (self.len_bytes - self.head_bytes) as u64 / 8 * 64;
        match page.checked_sub(head) {
            Some(past) if past < words => (head + past / 64 * 64, 64),
            _ => (page / 8 * 8, 8),
        }
    }

    /// Sets bits. Returns `false` if the memory is missing.
    #[inline]
    fn or(&self, bits: Bits) -> bool {
        #[cfg(all(test, not(loom)))]
        tests::ORS.set(tests::ORS.get() + 1);
        debug_assert!(bits.base < self.pages(), "bits inside of the log");
        // SAFETY: `base` is below `pages`, so its byte is in the log.
        let at = unsafe { self.start.add((bits.base / 8) as usize) };
        #[cfg(not(loom))]
        if self.is_guarded {
            // SAFETY: it is a word or byte of the log, and the guard lives as long as the log.
            return unsafe { or_surviving(at.as_ptr(), bits.mask, self.unit_of(bits.base).1) };
        }
        // Release: a reader that takes the bit sees the bytes that were written before.
        if self.unit_of(bits.base).1 == 64 {
            // SAFETY: it is an aligned word inside of the log, which is accessed by atomics only.
            let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
            word.fetch_or(bits.mask.to_le(), Ordering::Release);
        } else {
            // SAFETY: it is a byte of the log, which is accessed by atomics only.
            let byte = unsafe { AtomicU8::from_ptr(at.as_ptr()) };
            byte.fetch_or(bits.mask as u8, Ordering::Release);
        }
        true
    }

    #[cold]
    fn beyond(&self, at: A, len_bytes: u64) -> BeyondLog {
        BeyondLog { at: at.raw(), len_bytes, log_pages: self.pages() }
    }
}

impl<A: Address> fmt::Debug for ExternalLog<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ExternalLog");
        debug.field("start", &self.start).field("len_bytes", &self.len_bytes);
        debug.finish_non_exhaustive()
    }
}

/// A collector for the marks of several writes, which sets all marks in one word of the log by one
/// instruction.
///
/// Collected marks are set when a mark in another word follows, by [`flush`](Self::flush), and on drop.
/// That must happen before the completion of the writes is reported.
pub struct Burst<'a, A: Address = GuestPhys> {
    log: &'a ExternalLog<A>,
    pending: Bits,
}

impl<A: Address> Burst<'_, A> {
    /// Marks the pages that `len_bytes` from `at` touch, at the latest on drop.
    ///
    /// # Errors
    /// Those of [`ExternalLog::mark`].
    #[inline]
    pub fn mark(&mut self, at: A, len_bytes: u64) -> Result<(), BeyondLog> {
        let Self { log, pending } = self;
        log.each(at, len_bytes, |bits| {
            if pending.base == bits.base {
                pending.mask |= bits.mask;
                return true;
            }
            let is_set = pending.mask == 0 || log.or(*pending);
            *pending = bits;
            is_set
        })
    }

    /// Sets the collected marks. If the memory of the log is missing, nothing is set and no error is
    /// returned here; a [`mark`](Self::mark) that moves to another word returns the error.
    pub fn flush(&mut self) {
        if self.pending.mask != 0 {
            self.log.or(self.pending);
            self.pending.mask = 0;
        }
    }
}

impl<A: Address> Drop for Burst<'_, A> {
    fn drop(&mut self) {
        self.flush();
    }
}

fn page_of(at: u64) -> u64 {
    at >> LOG_PAGE.log2()
}

/// Sets the bits of `mask` in the word or byte that has bits for `pages` pages, as a full barrier.
/// Returns `false` if the memory is missing.
///
/// # Safety
/// The memory must be mapped and writable unless a [`FaultGuard`] lives, and must be accessed by atomics
/// only.
#[cfg(not(loom))]
unsafe fn or_surviving(at: *mut u8, mask: u64, pages: u64) -> bool {
    /// # Safety
    /// As above.
    unsafe fn or<const N: usize>(at: *mut u8, mask: u64) -> Option<u64> {
        // SAFETY: the caller's promise.
        let mut word = unsafe { words::load::<N>(at) }?;
        loop {
            // SAFETY: the caller's promise.
            match unsafe { words::compare_exchange::<N>(at, word, word | mask) }? {
                Ok(before) => return Some(before),
                Err(now) => word = now,
            }
        }
    }
    let done = match pages {
        // SAFETY: the caller's promise.
        64 => unsafe { or::<8>(at, mask.to_le()) },
        // SAFETY: the caller's promise.
        _ => unsafe { or::<1>(at, mask) },
    };
    done.is_some()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;

    thread_local! {
        /// The number of times that this thread has set bits.
        pub(super) static ORS: Cell<u64> = const { Cell::new(0) };
    }

    const PAGE: u64 = 4096;

    impl ExternalLog {
        /// Makes a log in `words`.
        pub(in crate::dirty) fn of_words<const N: usize>(words: &Arc<[AtomicU64; N]>) -> Self {
            Self::inside(words, 0, N * 8)
        }

        /// Makes a log in `len` bytes of `words`.
        fn inside<const N: usize>(words: &Arc<[AtomicU64; N]>, skip: usize, len: usize) -> Self {
            assert!(skip + len <= N * 8);
            let words = Arc::clone(words);
            let start = NonNull::from(&*words).cast::<u8>();
            // SAFETY: inside of the words.
            let start = unsafe { start.add(skip) };
            // SAFETY: the words live as long as `keeps`, and are atomics; the tests read them when no
            // log is being written.
            unsafe { Self::from_raw_parts(start, len, words) }
        }
    }

    /// Returns the bytes without atomics, whose size might differ from those that wrote.
    fn bytes<const N: usize>(words: &Arc<[AtomicU64; N]>) -> Vec<u8> {
        let words = Arc::as_ptr(words).cast::<[u8; 8]>();
        let word = |at| {
            // SAFETY: it is one of the words.
            let word = unsafe { words.add(at) };
            // SAFETY: as above, and no other thread accesses them.
            unsafe { word.read() }
        };
        (0..N).flat_map(word).collect()
    }

    fn ors(work: impl FnOnce()) -> u64 {
        let before = ORS.get();
        work();
        ORS.get() - before
    }

    /// Tries every start, length and alignment of the log, and every run of pages. The bits must be
    /// those of the protocol, with none outside, and an error only if pages are beyond the log.
    #[test]
    fn bits_are_where_the_protocol_has_them() {
        let (stride, skips) = if cfg!(miri) { (61, 4) } else { (5, 1) };
        for skip in (0..9).step_by(skips) {
            for len in [0, 1, 3, 7, 8, 9, 16, 20, 23] {
                let pages = len as u64 * 8;
                for first in (0..pages + 10).step_by(stride) {
                    for count in [1, 2, 7, 8, 9, 63, 64, 65, 130] {
                        let words = Arc::new([const { AtomicU64::new(0) }; 4]);
                        let log = ExternalLog::inside(&words, skip, len);
                        let at = GuestPhys::new(first * PAGE + 4095);
                        let len_bytes = (count - 1) * PAGE + 1;
                        let marked = log.mark(at, len_bytes);
                        assert_eq!(marked.is_err(), first + count > pages);
                        let range = AddrRange::new(at, len_bytes).unwrap();
                        assert_eq!(log.check(range), marked);
                        let mut expected = vec![0; 32];
                        for page in first..(first + count).min(pages) {
                            expected[skip + page as usize / 8] |= 1 << (page % 8);
                        }
                        assert_eq!(bytes(&words), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn one_call_sets_each_word_once_and_always() {
        let words = Arc::new([const { AtomicU64::new(0) }; 4]);
        let log = ExternalLog::of_words(&words);
        let mark = |first: u64, count: u64| {
            log.mark(GuestPhys::new(first * PAGE), count * PAGE).unwrap();
        };
        assert_eq!(ors(|| mark(0, 64)), 1);
        assert_eq!(ors(|| mark(0, 64)), 1, "a bit that is set is set again");
        assert_eq!(ors(|| mark(60, 8)), 2);
        assert_eq!(ors(|| mark(0, 256)), 4);
        assert_eq!(ors(|| log.mark(GuestPhys::new(0), 0).unwrap()), 0);
        // The next write sets a bit that the reader has taken.
        words[0].swap(0, Ordering::AcqRel);
        mark(3, 1);
        assert_eq!(words[0].load(Ordering::Relaxed), 8);
    }

    #[test]
    fn a_burst_sets_neighbours_at_once() {
        let words = Arc::new([const { AtomicU64::new(0) }; 4]);
        let log = ExternalLog::of_words(&words);
        let at = |page: u64| GuestPhys::new(page * PAGE);
        let made = ors(|| {
            let mut burst = log.burst();
            for page in [1, 2, 2, 63, 5] {
                burst.mark(at(page), 100).unwrap();
            }
            assert_eq!(words[0].load(Ordering::Relaxed), 0, "not set yet");
            burst.mark(at(63), 2 * PAGE).unwrap();
            assert_eq!(words[0].load(Ordering::Relaxed), 1 << 63 | 0b10_0110);
            burst.flush();
            burst.flush();
            assert_eq!(words[1].load(Ordering::Relaxed), 1);
            burst.mark(at(64), 1).unwrap();
            burst.mark(at(255), 2 * PAGE).unwrap_err();
        });
        assert_eq!(made, 4);
        assert_eq!(words[3].load(Ordering::Relaxed), 1 << 63, "pages inside of the log are marked");
    }

    #[test]
    fn an_end_of_the_address_space_is_beyond_the_log() {
        let words = Arc::new([const { AtomicU64::new(0) }; 1]);
        let log = ExternalLog::of_words(&words);
        let error = log.mark(GuestPhys::new(u64::MAX), u64::MAX).unwrap_err();
        assert_eq!(
            error.to_string(),
            "18446744073709551615 bytes written at 0xffffffffffffffff cannot all be marked: the \
             shared dirty log has bits for 64 pages of 4 KiB; the program that made the log must \
             make it for all memory"
        );
        assert_eq!(words[0].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_memory_lives_as_long_as_the_log() {
        let words = Arc::new([const { AtomicU64::new(0) }; 1]);
        let log = ExternalLog::of_words(&words);
        assert_eq!(Arc::strong_count(&words), 2);
        drop(log);
        assert_eq!(Arc::strong_count(&words), 1);
    }

    /// A reader takes bits and then copies, like another process. No write is lost, and no thread waits.
    #[test]
    fn a_reader_that_takes_bits_at_any_moment_loses_nothing() {
        const PAGES: usize = 100;
        let writes = if cfg!(miri) { 50 } else { 300_000 };
        let words = Arc::new([const { AtomicU64::new(0) }; 2]);
        let log = ExternalLog::of_words(&words);
        let memory: Vec<_> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let mut copy = vec![0; PAGES];
        let mut take = || {
            for (at, word) in words.iter().enumerate() {
                let bits = word.swap(0, Ordering::SeqCst);
                for page in (0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| at * 64 + bit) {
                    copy[page] = memory[page].load(Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for value in 1..=writes {
                    let page = value as usize * 7 % PAGES;
                    memory[page].store(value, Ordering::Relaxed);
                    log.mark(GuestPhys::new(page as u64 * PAGE), 8).unwrap();
                }
            });
            while !writer.is_finished() {
                take();
            }
        });
        take();
        let now: Vec<_> = memory.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        assert_eq!(copy, now);
    }
}
