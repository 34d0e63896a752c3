//! A dirty log in memory that is shared with the process that reads and clears it.
#![expect(unsafe_code, reason = "sets bits in memory that other processes change")]

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use longshore_mem::{AddrRange, Address, Granule, GuestPhys};

/// The size of a page in an [`ExternalLog`], fixed by the protocols that have one.
pub const LOG_PAGE: Granule = Granule::SIZE_4K;

/// A shared bitmap as vhost-user has it: page n is bit n % 8 of byte n / 8, pages are 4 KiB and
/// counted from address zero.
///
/// Source: QEMU's `docs/interop/vhost-user.rst`, "Migration" (`VHOST_USER_SET_LOG_BASE` gives the
/// memory, its length and where in it the log begins; addresses are guest-physical; bits are to be
/// set atomically).
///
/// Whoever reads it takes bits by an atomic exchange, at any moment, and then reads the pages. So a
/// bit is set after each write, also where it is set already: it may be on its way out. What one
/// call or one [`Burst`] marks in 64 pages is set at once.
pub struct ExternalLog<A = GuestPhys> {
    start: NonNull<u8>,
    len_bytes: usize,
    /// Bytes before the first that is a multiple of eight; set one by one, as are those after the
    /// last whole word.
    head_bytes: usize,
    /// Dropped with the log, and not before.
    _keeps: Box<dyn Any + Send + Sync>,
    space: PhantomData<A>,
}

// SAFETY: all accesses are atomic, and the memory is there in every thread.
unsafe impl<A: Send> Send for ExternalLog<A> {}
// SAFETY: as above.
unsafe impl<A: Sync> Sync for ExternalLog<A> {}

/// A write that was to be marked in pages for which an [`ExternalLog`] has no bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len_bytes} bytes written at {at:#x} cannot all be marked: the shared dirty log has bits for \
     {log_pages} pages of 4 KiB; whoever set it up must make it cover all memory"
)]
pub struct BeyondLog {
    /// The first address of the write.
    pub at: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// How many pages the log has bits for.
    pub log_pages: u64,
}

/// Bits of pages that are set by one atomic instruction.
#[derive(Clone, Copy)]
struct Bits {
    /// The page of the lowest bit of their word or byte.
    base: u64,
    mask: u64,
}

impl<A: Address> ExternalLog<A> {
    /// A log in the `len_bytes` bytes at `start`, with bits for eight times as many pages.
    ///
    /// # Safety
    /// Until `keeps` is dropped, the bytes must stay mapped and writable, and the file behind them
    /// must not shrink below them: touching memory that is gone is a SIGBUS, which nothing catches
    /// here. In this process they may be accessed by atomics only, in eight bytes where those lie
    /// at a multiple of eight inside the log, else in single bytes; or by system calls.
    pub unsafe fn from_raw_parts(
        start: NonNull<u8>,
        len_bytes: usize,
        keeps: impl Any + Send + Sync,
    ) -> Self {
        let head_bytes = (start.addr().get().wrapping_neg() % 8).min(len_bytes);
        Self { start, len_bytes, head_bytes, _keeps: Box::new(keeps), space: PhantomData }
    }

    /// How many pages there are bits for.
    pub fn pages(&self) -> u64 {
        self.len_bytes as u64 * 8
    }

    /// Whether there is a bit for every page that `range` touches: to be asked before it is mapped,
    /// because after a write it is too late.
    ///
    /// # Errors
    /// [`BeyondLog`].
    pub fn check(&self, range: AddrRange<A>) -> Result<(), BeyondLog> {
        match range.last() {
            Some(last) if page_of(last.raw()) >= self.pages() => {
                Err(self.beyond(range.start(), range.len_bytes()))
            }
            _ => Ok(()),
        }
    }

    /// Marks the pages that `len_bytes` from `at` touch. To be called after the bytes were written.
    ///
    /// # Errors
    /// [`BeyondLog`] where the log ends before; the pages that it has bits for are marked.
    #[inline]
    pub fn mark(&self, at: A, len_bytes: u64) -> Result<(), BeyondLog> {
        self.each(at, len_bytes, |bits| self.or(bits))
    }

    /// Collects marks, so that those of neighbouring pages are set at once.
    pub fn burst(&self) -> Burst<'_, A> {
        Burst { log: self, pending: Bits { base: 0, mask: 0 } }
    }

    #[inline]
    fn each(&self, at: A, len_bytes: u64, mut set: impl FnMut(Bits)) -> Result<(), BeyondLog> {
        let Some(span) = len_bytes.checked_sub(1) else { return Ok(()) };
        let mut page = page_of(at.raw());
        let wanted = page_of(at.raw().saturating_add(span)) + 1;
        let end = wanted.min(self.pages());
        while page < end {
            let (base, len) = self.unit_of(page);
            let stop = end.min(base + len);
            set(Bits { base, mask: u64::MAX >> (64 - (stop - page)) << (page - base) });
            page = stop;
        }
        if wanted > end { Err(self.beyond(at, len_bytes)) } else { Ok(()) }
    }

    /// The first page that is in one word or byte with `page`, and how many are.
    #[inline]
    fn unit_of(&self, page: u64) -> (u64, u64) {
        let head = self.head_bytes as u64 * 8;
        let words = (self.len_bytes - self.head_bytes) as u64 / 8 * 64;
        match page.checked_sub(head) {
            Some(past) if past < words => (head + past / 64 * 64, 64),
            _ => (page / 8 * 8, 8),
        }
    }

    /// Sets bits that `each` made.
    #[inline]
    fn or(&self, bits: Bits) {
        #[cfg(test)]
        tests::ORS.set(tests::ORS.get() + 1);
        debug_assert!(bits.base < self.pages(), "bits inside of the log");
        // SAFETY: `base` is below `pages`, so its byte is in the log.
        let at = unsafe { self.start.add((bits.base / 8) as usize) };
        // Release: whoever takes the bit sees what was written before.
        if self.unit_of(bits.base).1 == 64 {
            // SAFETY: eight bytes inside of the log at a multiple of eight, accessed by atomics only.
            let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
            word.fetch_or(bits.mask.to_le(), Ordering::Release);
        } else {
            // SAFETY: a byte of the log, accessed by atomics only.
            let byte = unsafe { AtomicU8::from_ptr(at.as_ptr()) };
            byte.fetch_or(bits.mask as u8, Ordering::Release);
        }
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

/// Marks of a burst of writes, of which those in one word of the log are set at once.
///
/// They are set when a mark in another word follows, by [`flush`](Self::flush), and on drop. That
/// must happen before anyone is told that the writes are done.
pub struct Burst<'a, A: Address = GuestPhys> {
    log: &'a ExternalLog<A>,
    pending: Bits,
}

impl<A: Address> Burst<'_, A> {
    /// Marks the pages that `len_bytes` from `at` touch, at the latest on drop.
    ///
    /// # Errors
    /// As those of [`ExternalLog::mark`].
    #[inline]
    pub fn mark(&mut self, at: A, len_bytes: u64) -> Result<(), BeyondLog> {
        let Self { log, pending } = self;
        log.each(at, len_bytes, |bits| {
            if pending.base == bits.base {
                pending.mask |= bits.mask;
                return;
            }
            if pending.mask != 0 {
                log.or(*pending);
            }
            *pending = bits;
        })
    }

    /// Sets what is pending.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    thread_local! {
        /// How many times this thread set bits.
        pub(super) static ORS: Cell<u64> = const { Cell::new(0) };
    }
}
