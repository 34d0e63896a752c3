//! A memory for tests of cache maintenance: see [`SimulatedDram`].

use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::vec::Vec;

use super::units::{UNIT_LOG2, Units};
use super::{TableAddr, TableMemory, TableMeta};
use crate::cache_sync::{CacheSync, LINE_BYTES};
use crate::walk::Image;

/// The walker's address of the region, a multiple of every table size.
const BASE: u64 = 1 << 24;
const LINE_ENTRIES: usize = LINE_BYTES / 8;
/// The number of random sets of lines that an observer is shown at each fence.
const ARBITRARY_SETS: u32 = 4;
/// The maximum number of cleaned lines that are shown one at a time.
const SINGLE_LINES_MAX: usize = 16;

type Observer = Box<dyn FnMut(&DramView<'_>) + Send>;

/// A region of tables and the walker's copy of it, for tests of cache maintenance.
///
/// The CPU accesses the region by atomics, as in every memory. The walker reads the copy. A cache
/// line reaches the copy when it is cleaned and a fence follows; between these, hardware may write
/// back any line at any moment. Therefore an observer is shown several possible states at each
/// fence: with none of the lines that were cleaned since the last fence, with all of them, with
/// each one alone (16 at most), and with random sets of all lines that differ.
///
/// It implements both [`TableMemory`] and [`CacheSync`].
pub struct SimulatedDram {
    entries: Box<[AtomicU64]>,
    metas: Box<[TableMeta]>,
    units: Units,
    /// The number of tables that can still be allocated.
    budget: AtomicU64,
    walker: Mutex<Walker>,
}

struct Walker {
    dram: Vec<u64>,
    /// Lines that were cleaned since the last fence.
    on_their_way: BTreeSet<usize>,
    observer: Option<Observer>,
    random: u64,
}

/// The memory as the walker sees it at some moment.
#[derive(Debug)]
pub struct DramView<'a> {
    dram: &'a [u64],
}

impl core::fmt::Debug for SimulatedDram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SimulatedDram").field("used", &self.used()).finish_non_exhaustive()
    }
}

impl SimulatedDram {
    /// Returns a region of `size_bytes` with stale content: entries that look present in every
    /// format.
    pub fn new(size_bytes: usize) -> Self {
        let left_behind = |index: usize| 0x7fff_0000_0a5a_5003 ^ (index as u64 & 0xff) << 12;
        let count = size_bytes >> 3;
        Self {
            entries: (0..count).map(|index| AtomicU64::new(left_behind(index))).collect(),
            metas: (0..size_bytes >> UNIT_LOG2).map(|_| TableMeta::new()).collect(),
            units: Units::new(),
            budget: AtomicU64::new(u64::MAX),
            walker: Mutex::new(Walker {
                dram: (0..count).map(left_behind).collect(),
                on_their_way: BTreeSet::new(),
                observer: None,
                random: 0x9e37_79b9_7f4a_7c15,
            }),
        }
    }

    /// Sets how many more tables can be allocated.
    pub fn set_budget(&self, tables: u64) {
        self.budget.store(tables, Ordering::Relaxed);
    }

    /// Returns the number of tables in use.
    pub fn used(&self) -> u64 {
        self.units.used()
    }

    /// Calls `observer` at each fence from now on, with states that the walker may have seen since
    /// the last fence.
    pub fn observe(&self, observer: impl FnMut(&DramView<'_>) + Send + 'static) {
        self.lock().observer = Some(Box::new(observer));
    }

    /// Ends the calls of the observer.
    pub fn observe_no_more(&self) {
        self.lock().observer = None;
    }

    /// Calls `look` with the walker's view, in which only fenced lines are written back.
    pub fn with_view<R>(&self, look: impl FnOnce(&DramView<'_>) -> R) -> R {
        look(&DramView { dram: &self.lock().dram })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Walker> {
        self.walker.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn address(unit: u64) -> TableAddr {
        TableAddr::new(BASE + (unit << UNIT_LOG2))
    }

    fn unit(table: TableAddr) -> u64 {
        table.raw().wrapping_sub(BASE) >> UNIT_LOG2
    }

    /// Returns the CPU's content of `line`.
    fn line(&self, line: usize) -> [u64; LINE_ENTRIES] {
        core::array::from_fn(|at| {
            let entry = self.entries.get(line * LINE_ENTRIES + at);
            entry.map_or(0, |entry| entry.load(Ordering::Relaxed))
        })
    }

    fn write_back(&self, dram: &mut [u64], line: usize) {
        let at = line * LINE_ENTRIES;
        if let Some(target) = dram.get_mut(at..at + LINE_ENTRIES) {
            target.copy_from_slice(&self.line(line));
        }
    }

    /// Returns the lines that differ between CPU and walker, in tables that are or were in use.
    fn differing(&self, dram: &[u64]) -> Vec<usize> {
        let taken = (self.units.taken() << (UNIT_LOG2 - 3)) as usize;
        let lines = dram[..taken.min(dram.len())].chunks_exact(LINE_ENTRIES).enumerate();
        lines
            .filter(|(line, content)| **content != self.line(*line))
            .map(|(line, _)| line)
            .collect()
    }

    fn show(&self, walker: &mut Walker) {
        let Some(mut observer) = walker.observer.take() else { return };
        let differing = self.differing(&walker.dram);
        let dram = &mut walker.dram;
        let mut show = |lines: &mut dyn Iterator<Item = usize>| {
            let mut changed = Vec::new();
            for line in lines {
                let at = line * LINE_ENTRIES;
                changed.push((at, dram[at..at + LINE_ENTRIES].to_vec()));
                self.write_back(dram, line);
            }
            observer(&DramView { dram });
            for (at, content) in changed {
                dram[at..at + LINE_ENTRIES].copy_from_slice(&content);
            }
        };
        let on_their_way: Vec<usize> = walker.on_their_way.iter().copied().collect();
        show(&mut core::iter::empty());
        show(&mut on_their_way.iter().copied());
        for line in on_their_way.iter().take(SINGLE_LINES_MAX) {
            show(&mut core::iter::once(*line));
        }
        for _ in 0..ARBITRARY_SETS {
            let random = &mut walker.random;
            show(&mut differing.iter().copied().filter(|_| {
                // xorshift64
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                *random >> 32 & 1 != 0
            }));
        }
        walker.observer = Some(observer);
    }
}

impl Image for DramView<'_> {
    fn entry(&self, table: TableAddr, index: usize) -> Option<u64> {
        let offset_bytes =
            table.raw().checked_sub(BASE)?.checked_add((index as u64).checked_mul(8)?)?;
        let at = offset_bytes.is_multiple_of(8).then_some(offset_bytes / 8)?;
        self.dram.get(usize::try_from(at).ok()?).copied()
    }
}

impl TableMemory for SimulatedDram {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        let budget = self.budget.load(Ordering::Relaxed).checked_sub(1)?;
        let next = |unit| Some(Self::unit(self.meta(Self::address(unit)).next()?));
        let unit = self.units.alloc(size_log2, self.metas.len() as u64, next, |_| true)?;
        if budget != u64::MAX - 1 {
            self.budget.store(budget, Ordering::Relaxed);
        }
        Some(Self::address(unit))
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        self.units.free(Self::unit(table), size_log2, |unit, next| {
            self.meta(Self::address(unit)).set_next(next.map(Self::address));
        });
    }

    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        let first = table.raw().wrapping_sub(BASE) >> 3;
        self.entries.get(first as usize..).unwrap_or_default()
    }

    fn meta(&self, table: TableAddr) -> &TableMeta {
        &self.metas[Self::unit(table) as usize]
    }
}

impl CacheSync for SimulatedDram {
    const COHERENT: bool = false;

    fn clean(&self, entries: &[AtomicU64]) {
        let start = self.entries.as_ptr().addr();
        let first = (entries.as_ptr().addr() - start) >> 3;
        let last = first + entries.len().saturating_sub(1);
        let lines = first / LINE_ENTRIES..=last / LINE_ENTRIES;
        self.lock().on_their_way.extend(lines);
    }

    fn fence(&self) {
        let walker = &mut *self.lock();
        self.show(walker);
        for line in core::mem::take(&mut walker.on_their_way) {
            self.write_back(&mut walker.dram, line);
        }
    }
}
