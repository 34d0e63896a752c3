//! Every interleaving of two threads, with loom's atomics:
//! `RUSTFLAGS="--cfg loom" cargo test -p longshore-pagetable --release --test loom`.
//!
//! Tables have only two entries, so that the number of interleavings stays small enough.
#![cfg(loom)]

use std::convert::Infallible;

use longshore_mem::{BusAddr, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{
    DirtyTest, Entry, Fields, Format, Geometry, LEVELS_MAX, LeafEntry, Shape,
};
use longshore_pagetable::table_memory::{TableAddr, TableMemory, TableMeta};
use longshore_pagetable::{Invalidate, PageTable, Prot, TlbGather};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Pages of 16 bytes, tables of two entries, three levels, and blocks of two pages. Bit 0 is
/// present, bit 1 a table; in a leaf bit 2 is dirty and bit 3 writable.
#[derive(Clone, Copy, Debug)]
struct Toy {
    geometry: Geometry,
    tracking: bool,
}

const PAGE: u64 = 16;
const PRESENT: u64 = 1 << 0;
const TABLE: u64 = 1 << 1;
const DIRTY: u64 = 1 << 2;
const WRITE: u64 = 1 << 3;
const LEFT_BEHIND: u64 = 0xbad0;

impl Toy {
    fn new(tracking: bool) -> Self {
        let geometry =
            Geometry::new(Shape::new(4, 3, 7, 32).with_index_log2(1).with_runs([1, 1, 0, 0, 0, 0]));
        Self { geometry, tracking }
    }
}

impl Format for Toy {
    const NAME: &'static str = "toy";
    const RUNS_REPEAT: bool = false;
    const READ_ONLY_KEEPS_DIRTY: bool = true;
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = ["page", "middle", "root", "", "", ""];

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn present_mask(&self) -> u64 {
        PRESENT
    }

    fn decode(&self, _level: u32, entry: u64) -> Entry {
        match entry & (PRESENT | TABLE) {
            PRESENT => Entry::Leaf(LeafEntry { bus: BusAddr::new(entry & !15), run_log2: 0 }),
            0 => Entry::Absent,
            TABLE => Entry::Reserved,
            _ => Entry::Table(TableAddr::new(entry & !15)),
        }
    }

    fn attributes(&self, prot: Prot) -> Option<u64> {
        Some(if prot.contains(Prot::WRITE) { WRITE } else { 0 })
    }

    fn prot(&self, leaf: u64) -> Prot {
        if leaf & WRITE != 0 { Prot::READ_WRITE } else { Prot::READ }
    }

    fn attributes_of(&self, leaf: u64) -> u64 {
        leaf & (DIRTY | WRITE)
    }

    fn leaf(&self, _level: u32, _run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        bus.raw() | PRESENT | attributes
    }

    fn table(&self, _level: u32, table: TableAddr) -> u64 {
        table.raw() | PRESENT | TABLE
    }

    fn dirty_test(&self) -> Option<DirtyTest> {
        self.tracking.then_some(DirtyTest { mask: DIRTY | PRESENT, value: DIRTY | PRESENT })
    }

    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        leaf & !DIRTY | if dirty { DIRTY } else { 0 }
    }

    fn fields(&self, _level: u32, _entry: u64) -> Fields {
        &[]
    }

    fn needs_break_before_make(&self) -> bool {
        false
    }
}

/// A few tables of two entries. Free tables hold stale pages, and a thread that finds one of these
/// has seen a table before it was filled.
struct Few {
    tables: Vec<([AtomicU64; 2], TableMeta)>,
    free: Mutex<Vec<usize>>,
}

impl Few {
    fn new(count: usize) -> Self {
        let left = || AtomicU64::new(LEFT_BEHIND | PRESENT | WRITE);
        let table = |_| ([left(), left()], TableMeta::new());
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
    Arc::new(PageTable::new(Toy::new(false), Few::new(count), Coherent).unwrap())
}

fn tracking(count: usize) -> Arc<Table> {
    Arc::new(PageTable::new(Toy::new(true), Few::new(count), Coherent).unwrap())
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

/// Writes to a page as a device does: sets the dirty bit of its leaf by one compare-and-exchange of
/// the entry that it has read. Returns the level of that leaf.
fn mark(table: &Table, page: u64) -> Option<u32> {
    let (mut address, mut level) = (table.root(), 2);
    loop {
        let index = (page >> level & 1) as usize;
        let slot = &table.memory().entries(address)[index];
        let entry = slot.load(Ordering::Acquire);
        match table.format().decode(level, entry) {
            Entry::Table(child) => address = child,
            Entry::Leaf(_) if entry & (WRITE | DIRTY) == WRITE => {
                let dirty = entry | DIRTY;
                let set = slot.compare_exchange(entry, dirty, Ordering::AcqRel, Ordering::Acquire);
                return set.ok().map(|_| level);
            }
            _ => return None,
        }
        level -= 1;
    }
}

fn is_dirty(table: &Table, page: u64) -> bool {
    table.lookup(Iova::new(page * PAGE)).unwrap().is_some_and(|mapping| mapping.dirty)
}

fn split(table: &Table, page: u64) {
    let mut gather = TlbGather::new();
    table.split(Iova::new(page * PAGE), PAGE, &mut gather).unwrap();
    let Ok(()) = table.finish(gather, &NoTlb);
}

fn expected(page: u64) -> Option<u64> {
    Some(0x1000 + page * PAGE)
}

/// Two threads install the same two tables. Each page is mapped, and the tables of the loser are
/// freed.
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

/// The ranges meet in one subtree, at different levels.
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

/// A reader finds the page, or nothing, while its tables are detached.
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
        // The reader has ended, as a flush would make sure.
        let Ok(()) = table.finish(gather, &NoTlb);
        assert_eq!(found(&table, 1), None);
        assert_eq!(table.memory().left(), 2);
    });
}

/// A reader finds the complete page, or nothing, while it is mapped.
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

/// Unmapping a page keeps the table into which another thread maps the neighbour.
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

/// Two threads split a block, each for a page of it, and one unmaps its page. The block is split
/// once, the page stays unmapped, and the table of the loser is freed.
#[test]
fn two_threads_split_a_block() {
    loom::model(|| {
        let table = table(4);
        map(&table, 0, 2);
        assert_eq!(table.memory().left(), 2);
        let other = Arc::clone(&table);
        let thread = thread::spawn(move || split(&other, 1));
        split(&table, 0);
        let mut gather = TlbGather::new();
        table.unmap(Iova::new(0), PAGE, &mut gather).unwrap();
        let Ok(()) = table.finish(gather, &NoTlb);
        thread.join().unwrap();
        assert_eq!((found(&table, 0), found(&table, 1)), (None, expected(1)));
        assert_eq!(table.memory().left(), 1);
    });
}

/// A reader finds the right address for each page while its block is split.
#[test]
fn a_reader_beside_split() {
    loom::model(|| {
        let table = table(3);
        map(&table, 0, 2);
        let other = Arc::clone(&table);
        let reader = thread::spawn(move || found(&other, 1));
        split(&table, 0);
        assert_eq!(reader.join().unwrap(), expected(1));
    });
}

/// A page that a walker marks dirty while it is unmapped is reported.
#[test]
fn a_walker_marks_beside_unmap() {
    loom::model(|| {
        let table = tracking(3);
        map(&table, 0, 1);
        let other = Arc::clone(&table);
        let walker = thread::spawn(move || mark(&other, 0).is_some());
        let (mut gather, mut told) = (TlbGather::new(), false);
        table.unmap_dirty(Iova::new(0), PAGE, &mut gather, |_| told = true).unwrap();
        assert_eq!(walker.join().unwrap(), told);
        assert_eq!((found(&table, 0), gather.saw_dirty()), (None, told));
        let Ok(()) = table.finish(gather, &NoTlb);
    });
}

/// A page that a walker marks dirty while dirty bits are read and cleared is reported, or still
/// dirty.
#[test]
fn a_walker_marks_beside_read_dirty() {
    loom::model(|| {
        let table = tracking(3);
        map(&table, 0, 2);
        split(&table, 0);
        assert!(mark(&table, 1).is_some());
        let other = Arc::clone(&table);
        // Marks the other page, and the one whose bit is cleared.
        let walker = thread::spawn(move || {
            u32::from(mark(&other, 0).is_some()) + u32::from(mark(&other, 1).is_some())
        });
        let (mut gather, mut told) = (TlbGather::new(), 0);
        table.read_dirty(Iova::new(0), 2 * PAGE, true, &mut gather, |_| told += 1).unwrap();
        let marked = 1 + walker.join().unwrap();
        let left = u32::from(is_dirty(&table, 0)) + u32::from(is_dirty(&table, 1));
        assert_eq!(told + left, marked);
        let Ok(()) = table.finish(gather, &NoTlb);
    });
}

/// A page that a walker marks dirty while it is made read-only stays dirty.
#[test]
fn a_walker_marks_beside_set_prot() {
    loom::model(|| {
        let table = tracking(3);
        map(&table, 0, 1);
        let other = Arc::clone(&table);
        let walker = thread::spawn(move || mark(&other, 0).is_some());
        let mut gather = TlbGather::new();
        table.set_prot(Iova::new(0), PAGE, Prot::READ, &mut gather).unwrap();
        assert_eq!(walker.join().unwrap(), is_dirty(&table, 0));
        let page = table.lookup(Iova::new(0)).unwrap().unwrap();
        assert!(!page.prot.contains(Prot::WRITE));
        let Ok(()) = table.finish(gather, &NoTlb);
    });
}

/// If a walker marks a block dirty while it is split, both pages are dirty; if it marks a page,
/// only that one is.
#[test]
fn a_walker_marks_beside_split() {
    loom::model(|| {
        let table = tracking(4);
        map(&table, 0, 2);
        let other = Arc::clone(&table);
        let walker = thread::spawn(move || mark(&other, 1));
        split(&table, 0);
        let marked = walker.join().unwrap();
        let dirty = (is_dirty(&table, 0), is_dirty(&table, 1));
        assert_eq!(dirty, (marked == Some(1), marked.is_some()));
    });
}
