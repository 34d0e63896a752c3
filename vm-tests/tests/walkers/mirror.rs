//! Tables in memory of this process, of which the guest's memory sees the lines that were cleaned.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_pagetable::cache_sync::{CacheSync, LINE_BYTES};
use longshore_pagetable::table_memory::{Slab, TableAddr, TableMemory, TableMeta};

use crate::machine::{Machine, TABLES, TABLES_BYTES};

const LINE_ENTRIES: usize = LINE_BYTES / 8;
/// What someone else left in the memory of tables, on both sides: an entry of it looks alive in
/// every format.
const LEFT_BEHIND: u8 = 0x5b;

/// A slab whose lines reach the guest when they were cleaned and a fence follows. Nothing else
/// does: a line that is not cleaned is missed by the walker for good.
pub(crate) struct Mirror<'a> {
    machine: &'a Machine,
    slab: Slab<'a>,
    entries: &'a [AtomicU64],
    on_their_way: RefCell<BTreeSet<usize>>,
}

/// This process' side of the memory.
pub(crate) struct Backing {
    entries: Vec<AtomicU64>,
    metas: Vec<TableMeta>,
}

impl Backing {
    pub(crate) fn new() -> Self {
        let entry = u64::from_ne_bytes([LEFT_BEHIND; 8]);
        Self {
            entries: (0..TABLES_BYTES / 8).map(|_| AtomicU64::new(entry)).collect(),
            metas: (0..TABLES_BYTES >> 12).map(|_| TableMeta::new()).collect(),
        }
    }
}

impl<'a> Mirror<'a> {
    pub(crate) fn new(machine: &'a Machine, backing: &'a Backing) -> Self {
        machine.fill(TABLES, TABLES_BYTES, LEFT_BEHIND);
        let entries = &backing.entries[..];
        let slab = Slab::new(entries, &backing.metas, TableAddr::new(TABLES)).expect("it fits");
        Self { machine, slab, entries, on_their_way: RefCell::default() }
    }

    /// Tables in use.
    pub(crate) fn used(&self) -> u64 {
        self.slab.used()
    }
}

impl TableMemory for Mirror<'_> {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        self.slab.alloc(size_log2)
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        self.slab.free(table, size_log2);
    }

    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        self.slab.entries(table)
    }

    fn meta(&self, table: TableAddr) -> &TableMeta {
        self.slab.meta(table)
    }
}

impl CacheSync for Mirror<'_> {
    const COHERENT: bool = false;

    fn clean(&self, entries: &[AtomicU64]) {
        let first = (entries.as_ptr().addr() - self.entries.as_ptr().addr()) >> 3;
        let last = first + entries.len().saturating_sub(1);
        self.on_their_way.borrow_mut().extend(first / LINE_ENTRIES..=last / LINE_ENTRIES);
    }

    fn fence(&self) {
        let mut lines = self.on_their_way.take().into_iter().peekable();
        // Lines side by side go in one command.
        while let Some(first) = lines.next() {
            let mut end = first + 1;
            while lines.next_if_eq(&end).is_some() {
                end += 1;
            }
            let entries = &self.entries[first * LINE_ENTRIES..end * LINE_ENTRIES];
            let words: Vec<u64> = entries.iter().map(|e| e.load(Ordering::Acquire)).collect();
            self.machine.write_words(TABLES + (first * LINE_BYTES) as u64, &words);
        }
    }
}
