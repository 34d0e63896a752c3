//! The TLB of a session. Its entries are extents: adjacent leaves whose memory is adjacent, too.
//!
//! ```text
//!   IOVA          ┌── in units of 64 KiB ──► windows[256]   the extent of the last walk there
//!   63 … 0   ─────┼── in units of 4 KiB ───► pages[2048]    extents shorter than 64 KiB
//!                 └── in units of 2 MiB ───► blocks[512]    extents of 2 MiB and more
//!
//!   an entry, 32 bytes   ┌──────┬─────┬──────┬─────────────────┐
//!                        │ base │ len │ host │ bus │ flags 0…11│
//!                        └──────┴─────┴──────┴─────────────────┘
//! ```
//!
//! The first probe is that of the window. It has 256 hints for the last extent instead of one, so that
//! alternating between extents costs nothing; compared with a single hint, it only has to compute the
//! index. Extents that were evicted from a window are found in the other tables: long ones by their
//! block, if more of their windows are in use than the first table holds (for example if accesses are
//! spread over a guest's memory), and short ones by their page, if a window has several. The first two
//! probes are inlined, the third is a call. Higher bits are folded into the indices, because buffers
//! often have the same alignment.

use std::cell::Cell;
use std::ptr;

/// Flag: the memory may be read.
pub(crate) const READ: u64 = 1;
/// Flag: the memory may be written, but the write must be logged unless [`WRITE_FAST`] is set.
pub(crate) const WRITE: u64 = 2;
/// Flag: the memory may be written, and the write need not be logged.
pub(crate) const WRITE_FAST: u64 = 4;
/// Flag: both [`READ`] and [`WRITE_FAST`] hold.
pub(crate) const BOTH_FAST: u64 = 8;
/// Flag: before a write, the dirty bit of the page must be set or found set.
pub(crate) const CLEAN: u64 = 16;
/// Flag: the memory is writable in this process, whatever the mapping permits.
pub(crate) const WRITABLE: u64 = 32;
const FLAGS: u64 = 0xfff;

/// The unit by which the first table is indexed, and the largest extent that leaves of 4 KiB are merged
/// to.
pub(crate) const WINDOW_LOG2: u32 = 16;
const PAGE_LOG2: u32 = 12;
const BLOCK_LOG2: u32 = 21;
const WINDOWS: usize = 256;
const PAGES: usize = 2048;
const BLOCKS: usize = 512;

/// An extent of adjacent IOVAs and adjacent memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Its first IOVA.
    pub(crate) base: u64,
    /// Its length in bytes, a multiple of 4 KiB.
    pub(crate) len: u64,
    /// Its address in this process.
    pub(crate) host: *mut u8,
    /// Its bus address, and flags in the low 12 bits.
    pub(crate) bus_flags: u64,
}

impl Entry {
    /// Returns its first bus address.
    pub(crate) const fn bus(&self) -> u64 {
        self.bus_flags & !FLAGS
    }

    /// Returns the bus address of `iova`, which must be in the extent.
    pub(crate) const fn bus_of(&self, iova: u64) -> u64 {
        self.bus() + (iova - self.base)
    }

    /// Returns `true` if all of `flags` are set.
    pub(crate) const fn permits(&self, flags: u64) -> bool {
        self.bus_flags & flags == flags
    }

    /// Returns the address of `iova`, which must be in the extent, and the number of bytes from there to
    /// its end.
    pub(crate) fn place(&self, iova: u64) -> (*mut u8, u64) {
        let offset = iova - self.base;
        (self.host.wrapping_add(offset as usize), self.len - offset)
    }
}

/// An entry in a table. Each field is a cell of its own, so that a probe loads only the fields that it
/// needs.
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

/// The tables, and bitmaps of their lines that are in use.
#[derive(Debug)]
pub(crate) struct Tlb {
    windows: [Line; WINDOWS],
    pages: [Line; PAGES],
    blocks: [Line; BLOCKS],
    windows_used: [Cell<u64>; WINDOWS / 64],
    pages_used: [Cell<u64>; PAGES / 64],
    blocks_used: [Cell<u64>; BLOCKS / 64],
}

impl Tlb {
    pub(crate) const fn new() -> Self {
        Self {
            windows: [const { Line::empty() }; WINDOWS],
            pages: [const { Line::empty() }; PAGES],
            blocks: [const { Line::empty() }; BLOCKS],
            windows_used: [const { Cell::new(0) }; WINDOWS / 64],
            pages_used: [const { Cell::new(0) }; PAGES / 64],
            blocks_used: [const { Cell::new(0) }; BLOCKS / 64],
        }
    }

    /// Does the first two probes, of the window and of the block. Returns the address of `len` bytes
    /// from `iova` if one extent contains them all and its flag `flag` is set.
    #[inline(always)]
    pub(crate) fn hit(&self, iova: u64, len: usize, flag: u64) -> Option<*mut u8> {
        let in_window = self.windows[window(iova)].hit(iova, len, flag);
        if in_window.is_some() {
            return in_window;
        }
        self.blocks[block(iova)].hit(iova, len, flag)
    }

    /// Does the third probe, of the page.
    #[inline]
    pub(crate) fn hit_page(&self, iova: u64, len: usize, flag: u64) -> Option<*mut u8> {
        self.pages[page(iova)].hit(iova, len, flag)
    }

    /// Returns `true` if the last walk in the window of `iova` found an extent within that window. A
    /// second walk there is a sign that many follow.
    pub(crate) fn was_in_window(&self, iova: u64) -> bool {
        let line = &self.windows[window(iova)];
        line.len.get() != 0 && line.base.get() >> WINDOW_LOG2 == iova >> WINDOW_LOG2
    }

    /// Returns the extent that contains `iova`, found by all probes.
    #[inline]
    pub(crate) fn find(&self, iova: u64) -> Option<Entry> {
        let lines =
            [&self.windows[window(iova)], &self.pages[page(iova)], &self.blocks[block(iova)]];
        lines.into_iter().find(|line| line.has(iova)).map(Line::get)
    }

    /// Inserts an extent that contains `iova`.
    pub(crate) fn insert(&self, iova: u64, entry: &Entry) {
        let at = window(iova);
        self.windows[at].set(entry);
        mark(&self.windows_used, at);
        if entry.len < 1 << WINDOW_LOG2 {
            let at = page(iova);
            self.pages[at].set(entry);
            mark(&self.pages_used, at);
        } else if entry.len >= 1 << BLOCK_LOG2 {
            let at = block(iova);
            self.blocks[at].set(entry);
            mark(&self.blocks_used, at);
        }
    }

    /// Removes all entries. The cost grows with the number of lines in use.
    pub(crate) fn clear(&self) {
        drain(&self.windows_used, &self.windows);
        drain(&self.pages_used, &self.pages);
        drain(&self.blocks_used, &self.blocks);
    }
}

#[inline(always)]
fn window(iova: u64) -> usize {
    (iova >> WINDOW_LOG2 ^ iova >> (WINDOW_LOG2 + 8)) as usize & (WINDOWS - 1)
}

#[inline(always)]
fn page(iova: u64) -> usize {
    (iova >> PAGE_LOG2 ^ iova >> (PAGE_LOG2 + 11)) as usize & (PAGES - 1)
}

#[inline(always)]
fn block(iova: u64) -> usize {
    (iova >> BLOCK_LOG2 ^ iova >> (BLOCK_LOG2 + 9)) as usize & (BLOCKS - 1)
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
    fn short_extents_of_one_window_are_found_by_the_page_probe() {
        let tlb = Tlb::new();
        for page in 0..16 {
            tlb.insert(page << 12, &entry(page << 12, 0x1000));
        }
        for page in 0..16 {
            assert_eq!(tlb.find(page << 12 | 5).map(|entry| entry.base), Some(page << 12));
            assert!(tlb.hit_page(page << 12, 8, READ).is_some());
        }
        tlb.clear();
        for page in 0..16 {
            assert!(tlb.find(page << 12).is_none());
        }
    }

    #[test]
    fn a_long_extent_is_found_in_its_windows_and_blocks() {
        let tlb = Tlb::new();
        let long = entry(0, 1 << 30);
        tlb.insert(0x12_3456, &long);
        assert!(tlb.hit(0x12_0000, 8, READ).is_some());
        // In the same 2 MiB, and in the next.
        assert!(tlb.hit(0x13_0000, 8, READ).is_some());
        assert!(tlb.hit(0x23_0000, 8, READ).is_none());
        assert!(tlb.find(0x1f_0000).is_some());
        assert!(tlb.find(0x20_0000).is_none());
        tlb.clear();
        assert!(tlb.hit(0x12_0000, 8, READ).is_none());
        assert!(tlb.find(0x12_0000).is_none());
    }

    #[test]
    fn buffers_with_the_same_alignment_do_not_evict_each_other() {
        for distance_log2 in [24, 26, 28] {
            let tlb = Tlb::new();
            let bases: Vec<u64> = (0..16).map(|nth| nth << distance_log2).collect();
            for base in &bases {
                tlb.insert(*base, &entry(*base, 1 << WINDOW_LOG2));
            }
            let kept = bases.iter().filter(|base| tlb.hit(**base, 8, READ).is_some()).count();
            assert_eq!(kept, 16, "2^{distance_log2} apart");
        }
    }
}
