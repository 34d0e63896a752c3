//! A session's TLB: extents of adjacent leaves whose memory is adjacent too.
//!
//! ```text
//!   IOVA          ┌── bits 16 … 23 ──► windows[256]   the extent last walked to in this 64 KiB
//!   63 … 0   ─────┤
//!                 └── bits 12 … 20 ──► pages[512]     extents shorter than 64 KiB
//!
//!   an entry, 32 bytes   ┌──────┬─────┬──────┬─────────────────┐
//!                        │ base │ len │ host │ bus │ flags 0…11│
//!                        └──────┴─────┴──────┴─────────────────┘
//! ```
//!
//! The first probe is the window's: 256 last-extent hints instead of one, so that going back and
//! forth between extents costs nothing. It needs no more than one hint would but a shift and a mask.
//! Only short extents can push each other out of a window; they are in the second table too.

use std::cell::Cell;
use std::ptr;

/// The host memory may be read.
pub(crate) const READ: u64 = 1;
/// It may be written, but the write must be logged.
pub(crate) const WRITE: u64 = 2;
/// It may be written, and nobody needs to know.
pub(crate) const WRITE_FAST: u64 = 4;
/// [`READ`] and [`WRITE_FAST`], as one flag to look at.
pub(crate) const BOTH_FAST: u64 = 8;
const FLAGS: u64 = 0xfff;

/// What the first table is indexed by: also the most that leaves of 4 KiB are merged to.
pub(crate) const WINDOW_LOG2: u32 = 16;
const PAGE_LOG2: u32 = 12;
const WINDOWS: usize = 256;
const PAGES: usize = 512;

/// An extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Its first IOVA.
    pub(crate) base: u64,
    /// Its length in bytes, a multiple of 4 KiB.
    pub(crate) len: u64,
    /// Where it is in this process.
    pub(crate) host: *mut u8,
    /// Its bus address, and flags in the low 12 bits.
    pub(crate) bus_flags: u64,
}

impl Entry {
    /// Its first bus address.
    pub(crate) const fn bus(&self) -> u64 {
        self.bus_flags & !FLAGS
    }

    /// The bus address of `iova`, which lies in the extent.
    pub(crate) const fn bus_of(&self, iova: u64) -> u64 {
        self.bus() + (iova - self.base)
    }

    /// Whether all of `flags` hold.
    pub(crate) const fn permits(&self, flags: u64) -> bool {
        self.bus_flags & flags == flags
    }

    /// Where `iova` is, and how many bytes follow it; it lies in the extent.
    pub(crate) fn place(&self, iova: u64) -> (*mut u8, u64) {
        let offset = iova - self.base;
        (self.host.wrapping_add(offset as usize), self.len - offset)
    }
}

/// An entry in place. Each field is a cell, so that only those that are looked at are loaded.
#[derive(Debug)]
struct Line {
    base: Cell<u64>,
    len: Cell<u64>,
    host: Cell<*mut u8>,
    bus_flags: Cell<u64>,
}

impl Line {
    const fn empty() -> Self {
        Self {
            base: Cell::new(0),
            len: Cell::new(0),
            host: Cell::new(ptr::null_mut()),
            bus_flags: Cell::new(0),
        }
    }

    #[inline]
    fn set(&self, entry: &Entry) {
        self.base.set(entry.base);
        self.len.set(entry.len);
        self.host.set(entry.host);
        self.bus_flags.set(entry.bus_flags);
    }

    #[inline]
    fn get(&self) -> Entry {
        Entry {
            base: self.base.get(),
            len: self.len.get(),
            host: self.host.get(),
            bus_flags: self.bus_flags.get(),
        }
    }

    #[inline(always)]
    fn hit(&self, iova: u64, len: usize, flag: u64) -> Option<*mut u8> {
        let offset = iova.wrapping_sub(self.base.get());
        let extent = self.len.get();
        let is_hit =
            offset < extent && len as u64 <= extent - offset && self.bus_flags.get() & flag != 0;
        is_hit.then(|| self.host.get().wrapping_add(offset as usize))
    }

    #[inline(always)]
    fn has(&self, iova: u64) -> bool {
        iova.wrapping_sub(self.base.get()) < self.len.get()
    }
}

/// The two tables, and which of their lines are in use.
#[derive(Debug)]
pub(crate) struct Tlb {
    windows: [Line; WINDOWS],
    pages: [Line; PAGES],
    windows_used: [Cell<u64>; WINDOWS / 64],
    pages_used: [Cell<u64>; PAGES / 64],
}

impl Tlb {
    pub(crate) const fn new() -> Self {
        Self {
            windows: [const { Line::empty() }; WINDOWS],
            pages: [const { Line::empty() }; PAGES],
            windows_used: [const { Cell::new(0) }; WINDOWS / 64],
            pages_used: [const { Cell::new(0) }; PAGES / 64],
        }
    }

    /// The first probe: where `len` bytes from `iova` are, if one extent has them all and its flag
    /// `flag` is set.
    #[inline(always)]
    pub(crate) fn hit(&self, iova: u64, len: usize, flag: u64) -> Option<*mut u8> {
        self.windows[window(iova)].hit(iova, len, flag)
    }

    /// The second probe.
    #[inline]
    pub(crate) fn hit_second(&self, iova: u64, len: usize, flag: u64) -> Option<*mut u8> {
        self.pages[page(iova)].hit(iova, len, flag)
    }

    /// Whether the last extent walked to in the window of `iova` is a part of that window: one more
    /// there is a sign that many follow.
    pub(crate) fn was_in_window(&self, iova: u64) -> bool {
        let line = &self.windows[window(iova)];
        line.len.get() != 0 && line.base.get() >> WINDOW_LOG2 == iova >> WINDOW_LOG2
    }

    /// The extent that has `iova`, by both probes.
    #[inline]
    pub(crate) fn find(&self, iova: u64) -> Option<Entry> {
        let lines = [&self.windows[window(iova)], &self.pages[page(iova)]];
        lines.into_iter().find(|line| line.has(iova)).map(Line::get)
    }

    /// Takes in an extent that `iova` lies in.
    pub(crate) fn insert(&self, iova: u64, entry: &Entry) {
        let at = window(iova);
        self.windows[at].set(entry);
        mark(&self.windows_used, at);
        if entry.len < 1 << WINDOW_LOG2 {
            let at = page(iova);
            self.pages[at].set(entry);
            mark(&self.pages_used, at);
        }
    }

    /// Forgets everything, at the cost of what there is.
    pub(crate) fn clear(&self) {
        drain(&self.windows_used, &self.windows);
        drain(&self.pages_used, &self.pages);
    }
}

#[inline(always)]
fn window(iova: u64) -> usize {
    (iova >> WINDOW_LOG2) as usize & (WINDOWS - 1)
}

#[inline(always)]
fn page(iova: u64) -> usize {
    (iova >> PAGE_LOG2) as usize & (PAGES - 1)
}

#[inline]
fn mark(used: &[Cell<u64>], at: usize) {
    let word = &used[at / 64];
    word.set(word.get() | 1 << (at % 64));
}

fn drain(used: &[Cell<u64>], lines: &[Line]) {
    for (word, lines) in used.iter().zip(lines.chunks(64)) {
        let mut left = word.replace(0);
        while left != 0 {
            lines[left.trailing_zeros() as usize].len.set(0);
            left &= left - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(base: u64, len: u64) -> Entry {
        Entry { base, len, host: ptr::without_provenance_mut(0x10_0000), bus_flags: 0x5000 | READ }
    }

    #[test]
    fn a_hit_needs_all_bytes_in_one_extent_and_the_flag() {
        let tlb = Tlb::new();
        assert_eq!(tlb.hit(0x1000, 1, READ), None);
        tlb.insert(0x1000, &entry(0x1000, 0x2000));
        assert_eq!(tlb.hit(0x1000, 0x2000, READ).map(<*mut u8>::addr), Some(0x10_0000));
        assert_eq!(tlb.hit(0x2ff8, 8, READ).map(<*mut u8>::addr), Some(0x10_1ff8));
        assert_eq!(tlb.hit(0x2ff9, 8, READ), None);
        assert_eq!(tlb.hit(0x0fff, 1, READ), None);
        assert_eq!(tlb.hit(0x3000, 1, READ), None);
        assert_eq!(tlb.hit(0x1000, usize::MAX, READ), None);
        assert_eq!(tlb.hit(u64::MAX, 8, READ), None);
        assert_eq!(tlb.hit(0x1000, 1, WRITE_FAST), None);
        assert_eq!(tlb.find(0x2000).unwrap().bus(), 0x5000);
    }

    #[test]
    fn short_extents_of_one_window_are_found_by_the_second_probe() {
        let tlb = Tlb::new();
        for page in 0..16 {
            tlb.insert(page << 12, &entry(page << 12, 0x1000));
        }
        for page in 0..16 {
            assert_eq!(tlb.find(page << 12 | 5).map(|entry| entry.base), Some(page << 12));
            assert!(tlb.hit_second(page << 12, 8, READ).is_some());
        }
        tlb.clear();
        for page in 0..16 {
            assert!(tlb.find(page << 12).is_none());
        }
    }

    #[test]
    fn a_long_extent_is_found_in_each_window_it_was_used_in() {
        let tlb = Tlb::new();
        let long = entry(0, 1 << 30);
        tlb.insert(0x12_3456, &long);
        assert!(tlb.hit(0x12_0000, 8, READ).is_some());
        assert!(tlb.find(0x13_0000).is_none());
        tlb.clear();
        assert!(tlb.hit(0x12_0000, 8, READ).is_none());
    }
}
