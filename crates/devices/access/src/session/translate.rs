//! The translation of an IOVA to an extent of memory: slower probes, page-table walk, merging of leaves.
#![expect(unsafe_code, reason = "looks at regions while the slot is entered")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_pagetable::format::{Entry, Format};
use longshore_pagetable::table_memory::{TableAddr, TableMemory};
use longshore_pagetable::{Image, Prot};

use super::{Place, Session};
use crate::fault::Reason;
use crate::region::Memory;
use crate::space::Table;
use crate::tlb::{self, BOTH_FAST, CLEAN, READ, WINDOW_LOG2, WRITABLE, WRITE, WRITE_FAST};
use crate::windows::WINDOWS_START;

/// The shape of the tables: 4 KiB pages, 512 entries.
const PAGE_LOG2: u32 = 12;
const INDEX_LOG2: u32 = 9;
const SLOTS: usize = 1 << INDEX_LOG2;

/// The most leaves that are merged: the leaves of 4 KiB in a window of the TLB.
const MERGE: usize = 1 << (WINDOW_LOG2 - PAGE_LOG2);

impl Session {
    /// Translates `iova` for an access of kind `want`. The slot must be entered. In a remote region, the
    /// result has up to `len` bytes.
    #[inline]
    pub(crate) fn translate(&self, iova: u64, len: usize, want: u64) -> Result<Place, Reason> {
        match self.private().tlb.find(iova) {
            Some(entry) if want & WRITE != 0 && entry.permits(WRITE | CLEAN) => {
                self.walk(iova, len, want)
            }
            Some(entry) if entry.permits(want) => Ok(Place::Direct(entry)),
            Some(_) => Err(Reason::Permission),
            None => self.walk(iova, len, want),
        }
    }

    /// Finds `len` bytes from `iova` by the third probe or by a page-table walk, which is enough for
    /// most reads that the first probes miss. The slot must be entered, and no flush pending.
    #[inline(never)]
    pub(super) fn hit_or_walk(&self, iova: u64, len: usize, flag: u64) -> Option<*mut u8> {
        let in_page = self.private().tlb.hit_page(iova, len, flag);
        if in_page.is_some() {
            return in_page;
        }
        // If the extent is cached and yet no hit, the access extends into another one, must be logged,
        // or is not permitted.
        if self.private().tlb.find(iova).is_some() {
            return None;
        }
        let Ok(Place::Direct(entry)) = self.walk(iova, 1, 0) else { return None };
        let (host, room) = entry.place(iova);
        (entry.permits(flag) && len as u64 <= room).then_some(host)
    }

    /// Returns the extent of this process's memory that contains `iova`, found by all probes or by a
    /// page-table walk. The slot must be entered, and no flush pending.
    #[inline]
    pub(super) fn find_or_walk(&self, iova: u64) -> Option<tlb::Entry> {
        let known = self.private().tlb.find(iova);
        if known.is_some() {
            return known;
        }
        match self.walk(iova, 1, 0) {
            Ok(Place::Direct(entry)) => Some(entry),
            _ => None,
        }
    }

    fn walk(&self, iova: u64, len: usize, want: u64) -> Result<Place, Reason> {
        let inner = &*self.space.inner;
        let format = inner.table.format();
        let (leaf, mut flags) = loop {
            let leaf = Leaf::find(&inner.table, iova).ok_or(Reason::Unmapped)?;
            let flags = flags_of(format.prot(leaf.entry));
            if flags & want != want {
                return Err(Reason::Permission);
            }
            // Like hardware, set the bit before the write.
            let sets_bit = want & WRITE != 0 && format.dirty_test().is_some();
            if !sets_bit || leaf.set_dirty(&inner.table) {
                break (leaf, flags);
            }
        };
        let is_dirty =
            format.dirty_test().is_none_or(|test| want & WRITE != 0 || test.matches(leaf.entry));
        let is_silent = is_dirty && !inner.logs.are_on();
        if !is_silent {
            flags &= !(WRITE_FAST | BOTH_FAST);
            if format.dirty_test().is_some() {
                flags |= CLEAN;
            }
        }
        let mut run = leaf.run();
        let mut host = std::ptr::with_exposed_provenance_mut(run.bus as usize);
        // For raw memory, only the permissions of the mapping are known.
        if flags & WRITE != 0 {
            flags |= WRITABLE;
        }
        if run.bus >= WINDOWS_START {
            // SAFETY: its leaf was found while the slot is entered, so it stays attached until the slot
            // is left.
            let attached = unsafe { inner.windows.get(run.bus) }.ok_or(Reason::Unmapped)?;
            match attached.region.memory() {
                Memory::Host(start, _) => {
                    if !attached.region.is_read_only() {
                        flags |= WRITABLE;
                    }
                    host = start.as_ptr().wrapping_add((run.bus - attached.bus) as usize);
                }
                Memory::Remote(memory) => {
                    let offset = run.bus - attached.bus + (iova - run.first);
                    let start = attached.region.guest_phys();
                    // Each leaf has a dirty bit of its own.
                    let len = if want & WRITE != 0 && format.dirty_test().is_some() {
                        (run.first + run.len - iova).min(len as u64) as usize
                    } else {
                        leaf.adjacent(&inner.table, iova, len)
                    };
                    return Ok(Place::Remote {
                        memory: Arc::clone(memory),
                        offset,
                        guest_phys: start.and_then(|start| start.checked_add(offset)),
                        len,
                    });
                }
            }
        }
        // Under Miri a pointer belongs to one allocation, and adjacent pages may be of two.
        let may_merge = !cfg!(miri) && leaf.size_log2 == PAGE_LOG2;
        // All pages of an extent must have the same dirty state, and a write has set only one bit.
        let is_alike = !is_silent && want & WRITE == 0;
        let may_merge = may_merge && (inner.table.format().dirty_test().is_none() || is_alike);
        if may_merge && self.private().tlb.was_in_window(iova) {
            let merged = leaf.merged(&inner.table);
            host = host.wrapping_sub((run.first - merged.first) as usize);
            run = merged;
        }
        let entry = tlb::Entry { base: run.first, len: run.len, host, bus_flags: run.bus | flags };
        self.private().tlb.insert(iova, &entry);
        Ok(Place::Direct(entry))
    }
}

/// Adjacent IOVAs that translate to adjacent bus addresses.
struct Run {
    first: u64,
    len: u64,
    bus: u64,
}

/// A leaf, and its place in the tables.
struct Leaf {
    first: u64,
    bus: u64,
    entry: u64,
    table: TableAddr,
    index: usize,
    size_log2: u32,
}

impl Leaf {
    /// Walks the tables like hardware, and returns the leaf of `iova`. Unlike [`Walker::lookup`], it
    /// returns the place of the leaf, too.
    ///
    /// [`Walker::lookup`]: longshore_pagetable::Walker::lookup
    #[inline]
    fn find(tables: &Table, iova: u64) -> Option<Self> {
        let geometry = tables.format().geometry();
        if iova >> geometry.input_bits() != 0 {
            return None;
        }
        let (mut level, mut table) = (geometry.root_level(), tables.root());
        loop {
            let size_log2 = PAGE_LOG2 + INDEX_LOG2 * level;
            let index = (iova >> size_log2) as usize & (SLOTS - 1);
            let entry = tables.entry(table, index)?;
            match tables.format().decode(level, entry) {
                Entry::Table(next) if level > 0 => {
                    table = next;
                    level -= 1;
                }
                Entry::Leaf(leaf) => {
                    let first = iova & (u64::MAX << size_log2);
                    let bus = leaf.bus.raw();
                    return Some(Self { first, bus, entry, table, index, size_log2 });
                }
                _ => return None,
            }
        }
    }

    /// Sets the dirty bit, by a compare-and-exchange of the whole entry in the table. Returns `false` if
    /// the entry has changed.
    fn set_dirty(&self, tables: &Table) -> bool {
        let dirty = tables.format().with_dirty(self.entry, true);
        let same = |slot: &AtomicU64| {
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            slot.compare_exchange(self.entry, dirty, success, failure).is_ok()
        };
        dirty == self.entry || tables.memory().entries(self.table).get(self.index).is_some_and(same)
    }

    fn prot(&self, tables: &Table) -> Prot {
        tables.format().prot(self.entry)
    }

    fn run(&self) -> Run {
        Run { first: self.first, len: 1 << self.size_log2, bus: self.bus }
    }

    /// Merges a page of 4 KiB with those neighbours in its window of the TLB that continue it with the
    /// same permissions. A window has 16 entries, which are two cache lines of the table.
    fn merged(&self, tables: &Table) -> Run {
        let group = self.index & !(MERGE - 1);
        let size = 1u64 << self.size_log2;
        // Apart from their dirty bits, the entries of adjacent leaves differ by the leaf size.
        let continues = |index: usize| {
            let distance = (index as u64).wrapping_sub(self.index as u64);
            let expected = self.entry.wrapping_add(distance.wrapping_mul(size));
            let clean = |entry| tables.format().with_dirty(entry, false);
            tables.entry(self.table, index).is_some_and(|found| clean(found) == clean(expected))
        };
        let mut start = self.index;
        while start > group && continues(start - 1) {
            start -= 1;
        }
        let mut end = self.index + 1;
        while end < group + MERGE && continues(end) {
            end += 1;
        }
        let before = (self.index - start) as u64 * size;
        Run { first: self.first - before, len: (end - start) as u64 * size, bus: self.bus - before }
    }

    /// Returns how many of `len` bytes from `iova`, which lies in the leaf, translate to adjacent
    /// addresses.
    fn adjacent(&self, tables: &Table, iova: u64, len: usize) -> usize {
        let mut run = self.run();
        let last = iova.saturating_add(len as u64 - 1);
        while run.first + run.len <= last {
            let next = Self::find(tables, run.first + run.len);
            match next.filter(|next| {
                next.bus == run.bus + run.len && next.prot(tables) == self.prot(tables)
            }) {
                Some(next) => run.len += 1 << next.size_log2,
                None => break,
            }
        }
        (run.first + run.len - iova).min(len as u64) as usize
    }
}

fn flags_of(prot: Prot) -> u64 {
    let read = if prot.contains(Prot::READ) { READ } else { 0 };
    let write = if prot.contains(Prot::WRITE) { WRITE | WRITE_FAST } else { 0 };
    let both = if prot.contains(Prot::READ_WRITE) { BOTH_FAST } else { 0 };
    read | write | both
}
