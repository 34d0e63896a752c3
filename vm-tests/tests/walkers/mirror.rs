//! Page tables in this process's memory, copied to the guest's memory by cleaned cache lines only.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_pagetable::cache_sync::{CacheSync, LINE_BYTES};
use longshore_pagetable::table_memory::{Slab, TableAddr, TableMemory, TableMeta};

use crate::machine::{Machine, TABLES, TABLES_BYTES};

const LINE_ENTRIES: usize = LINE_BYTES / 8;
/// The initial content of the tables' memory on both sides. It looks like a valid entry in every format.
const LEFT_BEHIND: u8 = 0x5b;

/// A slab whose lines are copied to the guest if they are cleaned and a fence follows. The walker never
/// sees a line that is not cleaned.
pub(crate) struct Mirror<'a> {
    machine: &'a Machine,
    slab: Slab<'a>,
    entries: &'a [AtomicU64],
    cleaned: RefCell<BTreeSet<usize>>,
}

/// The memory of the tables in this process.
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
        Self { machine, slab, entries, cleaned: RefCell::default() }
    }

    /// Returns the number of tables in use.
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
        self.cleaned.borrow_mut().extend(first / LINE_ENTRIES..=last / LINE_ENTRIES);
    }

    fn fence(&self) {
        let mut lines = self.cleaned.take().into_iter().peekable();
        // Adjacent lines are written by one command.
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
