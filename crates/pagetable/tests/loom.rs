//! Every interleaving of two threads, with loom in the place of the atomics:
//! `RUSTFLAGS="--cfg loom" cargo test -p longshore-pagetable --release --test loom`.
//!
//! Tables have two entries here, so that there is an end to the interleavings.
#![cfg(loom)]

use std::convert::Infallible;

use longshore_mem::{BusAddr, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{DirtyTest, Entry, Fields, LeafEntry};
use longshore_pagetable::geometry::{Geometry, LEVELS_MAX, Shape, Window};
use longshore_pagetable::table_memory::{TableAddr, TableMemory, TableMeta};
use longshore_pagetable::{Format, Invalidate, PageTable, Prot, TlbGather};
use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Pages of 16 bytes, tables of two entries, three levels: bit 0 present, bit 1 a table.
#[derive(Clone, Copy, Debug)]
struct Toy(Geometry);

const PAGE: u64 = 16;

impl Toy {
    fn new() -> Self {
        Self(Geometry::new(Shape {
            granule_log2: 4,
            index_log2: 1,
            levels: 3,
            input_bits: 7,
            output_bits: 32,
            window: Window::Low,
            runs: [1, 1, 0, 0, 0, 0],
            linear_log2: 64,
        }))
    }
}

impl Format for Toy {
    const NAME: &'static str = "toy";
    const RUNS_REPEAT: bool = false;
    const READ_ONLY_KEEPS_DIRTY: bool = true;
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = ["page", "middle", "root", "", "", ""];

    fn geometry(&self) -> &Geometry {
        &self.0
    }

    fn present_mask(&self) -> u64 {
        1
    }

    fn decode(&self, _level: u32, entry: u64) -> Entry {
        match entry & 3 {
            1 => Entry::Leaf(LeafEntry { bus: BusAddr::new(entry & !15), run_log2: 0 }),
            3 => Entry::Table(TableAddr::new(entry & !15)),
            _ => Entry::Absent,
        }
    }

    fn attributes(&self, _prot: Prot) -> Option<u64> {
        Some(1)
    }

    fn prot(&self, _leaf: u64) -> Prot {
        Prot::READ_WRITE
    }

    fn attributes_of(&self, leaf: u64) -> u64 {
        leaf & 15
    }

    fn leaf(&self, _level: u32, _run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        bus.raw() | attributes
    }

    fn table(&self, _level: u32, table: TableAddr) -> u64 {
        table.raw() | 3
    }

    fn dirty_test(&self) -> Option<DirtyTest> {
        None
    }

    fn with_dirty(&self, leaf: u64, _dirty: bool) -> u64 {
        leaf
    }

    fn fields(&self, _level: u32, _entry: u64) -> Fields {
        &[]
    }

    fn needs_break_before_make(&self) -> bool {
        false
    }
}

/// A few tables of two entries.
struct Few {
    tables: Vec<([AtomicU64; 2], TableMeta)>,
    free: Mutex<Vec<usize>>,
}

impl Few {
    fn new(count: usize) -> Self {
        let table = |_| ([AtomicU64::new(0), AtomicU64::new(0)], TableMeta::new());
        Self {
            tables: (0..count).map(table).collect(),
            free: Mutex::new((0..count).rev().collect()),
        }
    }

    fn index(table: TableAddr) -> usize {
        (table.raw() / PAGE) as usize
    }

    fn left(&self) -> usize {
        self.free.lock().unwrap().len()
    }
}

impl TableMemory for Few {
    fn alloc(&self, _size_log2: u32) -> Option<TableAddr> {
        Some(TableAddr::new(self.free.lock().unwrap().pop()? as u64 * PAGE))
    }

    fn free(&self, table: TableAddr, _size_log2: u32) {
        self.free.lock().unwrap().push(Self::index(table));
    }

    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        self.tables.get(Self::index(table)).map_or(&[], |(entries, _)| entries)
    }

    fn meta(&self, table: TableAddr) -> &TableMeta {
        &self.tables[Self::index(table)].1
    }
}

struct NoTlb;

impl Invalidate for NoTlb {
    type Error = Infallible;

    fn flush(&self, _gather: &TlbGather) -> Result<(), Infallible> {
        Ok(())
    }
}

type Table = PageTable<Toy, Few, Coherent>;

fn table(count: usize) -> Arc<Table> {
    Arc::new(PageTable::new(Toy::new(), Few::new(count), Coherent).unwrap())
}

fn map(table: &Table, page: u64, pages: u64) {
    let (iova, bus) = (Iova::new(page * PAGE), BusAddr::new(0x1000 + page * PAGE));
    table.map(iova, bus, pages * PAGE, Prot::READ_WRITE).unwrap();
}

fn found(table: &Table, page: u64) -> Option<u64> {
    let iova = Iova::new(page * PAGE);
    let mapping = table.lookup(iova).unwrap()?;
    Some(mapping.translate(iova).unwrap().raw())
}

fn expected(page: u64) -> Option<u64> {
    Some(0x1000 + page * PAGE)
}

/// Two threads install the same two tables; each page is there, and the loser's tables come back.
#[test]
fn two_threads_install_a_table() {
    loom::model(|| {
        let table = table(6);
        let other = Arc::clone(&table);
        let thread = thread::spawn(move || map(&other, 0, 1));
        map(&table, 1, 1);
        thread.join().unwrap();
        assert_eq!((found(&table, 0), found(&table, 1)), (expected(0), expected(1)));
        assert_eq!(table.memory().left(), 3);
    });
}

/// The ranges meet in a subtree, but at different depths of it.
#[test]
fn a_subtree_is_moved_over() {
    loom::model(|| {
        let table = table(8);
        let other = Arc::clone(&table);
        let thread = thread::spawn(move || map(&other, 1, 2));
        map(&table, 3, 1);
        thread.join().unwrap();
        for page in 1..4 {
            assert_eq!(found(&table, page), expected(page));
        }
        assert_eq!((found(&table, 0), found(&table, 4)), (None, None));
        assert_eq!(table.memory().left(), 8 - 4);
    });
}

/// A reader finds the page, or nothing, while its tables are taken out.
#[test]
fn a_reader_beside_unmap() {
    loom::model(|| {
        let table = table(4);
        map(&table, 0, 1);
        map(&table, 1, 1);
        let other = Arc::clone(&table);
        let reader = thread::spawn(move || found(&other, 1));
        let mut gather = TlbGather::new();
        table.unmap(Iova::new(0), 2 * PAGE, &mut gather).unwrap();
        let seen = reader.join().unwrap();
        assert!(seen.is_none() || seen == expected(1));
        // The reader is gone, which is what a flush waits for.
        let Ok(()) = table.finish(gather, &NoTlb);
        assert_eq!(found(&table, 1), None);
        assert_eq!(table.memory().left(), 2);
    });
}

/// A reader finds the page whole, or nothing, while it is mapped.
#[test]
fn a_reader_beside_map() {
    loom::model(|| {
        let table = table(4);
        let other = Arc::clone(&table);
        let reader = thread::spawn(move || found(&other, 1));
        map(&table, 1, 1);
        let seen = reader.join().unwrap();
        assert!(seen.is_none() || seen == expected(1));
    });
}

/// Unmapping a page leaves the table that another thread maps the neighbour into.
#[test]
fn map_beside_unmap_of_the_neighbour() {
    loom::model(|| {
        let table = table(5);
        map(&table, 0, 1);
        let other = Arc::clone(&table);
        let thread = thread::spawn(move || map(&other, 1, 1));
        let mut gather = TlbGather::new();
        table.unmap(Iova::new(0), PAGE, &mut gather).unwrap();
        let Ok(()) = table.finish(gather, &NoTlb);
        thread.join().unwrap();
        assert_eq!((found(&table, 0), found(&table, 1)), (None, expected(1)));
    });
}
