//! Properties of page tables for any operations. Panics if one is violated.
//!
//! The fuzz target calls this, and so does the test of `longshore-pagetable` that replays the corpus.
//! The format of the input:
//!
//! ```text
//!     format   options   operations …
//!     byte     byte      a byte, and a range if it has one: place, offset, length
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use longshore_mem::{AddrRange, BusAddr, Granule, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{
    AmdV1, AmdV1Config, ArmStage1, ArmStage1Config, ArmStage2, ArmStage2Config, Entry, Format,
    RiscV, RiscVConfig, RiscVMode, VtdFirst, VtdFirstConfig, VtdSecond, VtdSecondConfig, X86_64,
    X86_64Config,
};
use longshore_pagetable::table_memory::{HostPages, TableMemory};
use longshore_pagetable::{Check, Error, Invalidate, Mapping, PageTable, Prot, TlbGather};

const OPS_MAX: usize = 64;
/// The number of tables besides the root: few, so that memory sometimes runs out. Large tables have
/// thousands of entries.
const TABLES: u64 = 16;
const LARGE_TABLES: u64 = 5;
/// Longer ranges take more time and find nothing new.
const LEN_MAX_LOG2: u32 = 40;

/// Reads a format and operations on a table from `data`, and compares each step with a map of intervals.
/// In the end everything is unmapped, and no table may be lost.
pub fn page_table(data: &[u8]) {
    let mut input = Input(data);
    let (format, options) = (input.byte(), input.byte());
    let dirty = options & 1 != 0;
    let live_size_changes = options & 2 != 0;
    let check = if options & 4 != 0 { Check::Trusted } else { Check::Checked };
    let granule = |log2: u32| Granule::new(1 << log2).expect("a power of two");
    let stage1 = |log2, bits: u32, upper| {
        let plain = ArmStage1Config::new(granule(log2));
        let (input_bits, output_bits) = (bits, bits.max(48));
        let config = plain
            .with_input_bits(input_bits)
            .with_output_bits(output_bits)
            .with_upper(upper)
            .with_dirty_tracking(dirty)
            .with_live_size_changes(live_size_changes);
        ArmStage1::new(config).expect("there is such hardware")
    };
    let stage2 = |log2, bits: u32| {
        let plain = ArmStage2Config::new(granule(log2));
        let (input_bits, output_bits) = (bits, bits.max(48));
        let config = plain
            .with_input_bits(input_bits)
            .with_output_bits(output_bits)
            .with_dirty_tracking(dirty)
            .with_live_size_changes(live_size_changes);
        ArmStage2::new(config).expect("there is such hardware")
    };
    let second = |input_bits| {
        let config = VtdSecondConfig::new().with_input_bits(input_bits).with_dirty_tracking(dirty);
        VtdSecond::new(config).expect("there is such hardware")
    };
    let amd = |levels, pages_512g| {
        let config = AmdV1Config::new()
            .with_levels(levels)
            .with_pages_512g(pages_512g)
            .with_dirty_tracking(dirty);
        AmdV1::new(config).expect("there is such hardware")
    };
    let riscv = |mode| {
        RiscV::new(RiscVConfig::new(mode).with_dirty_tracking(dirty))
            .expect("there is such hardware")
    };
    match format % 27 {
        0 => run(stage1(12, 48, false), check, input),
        1 => run(stage1(12, 39, true), check, input),
        2 => run(stage1(14, 48, false), check, input),
        3 => run(stage1(16, 42, false), check, input),
        4 => run(stage1(12, 52, false), check, input),
        5 => run(stage1(14, 52, false), check, input),
        6 => run(stage1(16, 52, false), check, input),
        7 => run(stage2(12, 40), check, input),
        8 => run(stage2(12, 48), check, input),
        9 => run(stage2(14, 40), check, input),
        10 => run(stage2(16, 46), check, input),
        11 => run(stage2(12, 25), check, input),
        12 => run(second(39), check, input),
        13 => run(second(48), check, input),
        14 => run(second(57), check, input),
        15 => run(amd(4, false), check, input),
        16 => run(amd(6, true), check, input),
        17 => run(amd(1, false), check, input),
        18 => run(riscv(RiscVMode::Sv39), check, input),
        19 => run(riscv(RiscVMode::Sv57), check, input),
        20 => {
            let config = X86_64Config::new().with_dirty_tracking(dirty);
            run(X86_64::new(config).expect("there is such hardware"), check, input);
        }
        // Small roots of blocks, and roots that are a single contiguous run.
        22 => run(stage2(12, 33), check, input),
        23 => run(stage2(12, 34), check, input),
        24 => run(stage2(14, 28), check, input),
        25 => run(stage2(16, 33), check, input),
        26 => run(stage1(14, 30, true), check, input),
        _ => {
            let config = VtdFirstConfig::new().with_dirty_tracking(dirty).with_five_levels(true);
            run(VtdFirst::new(config).expect("there is such hardware"), check, input);
        }
    }
}

/// The rest of the input; zeros after its end.
#[derive(Clone, Copy)]
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
}

/// A walker without a TLB.
struct NoTlb;

impl Invalidate for NoTlb {
    type Error = Infallible;

    fn flush(&self, _gather: &TlbGather) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A mapped range, from some virtual address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    len: u64,
    bus: u64,
    prot: Prot,
}

/// The expected mappings, by virtual address.
#[derive(Default)]
struct Model {
    pieces: BTreeMap<u64, Piece>,
    /// The pages that were written and not reported since.
    written: BTreeSet<u64>,
    /// Ranges that may be reported although they were not written: first and last byte.
    tainted: Vec<(u64, u64)>,
}

impl Model {
    fn at(&self, va: u64) -> Option<(u64, Prot)> {
        let (start, piece) = self.pieces.range(..=va).next_back()?;
        let offset = va - start;
        (offset < piece.len).then(|| (piece.bus + offset, piece.prot))
    }

    /// Returns the first mapped address of a range, which is given by its first and last byte.
    fn first_mapped(&self, first: u64, last: u64) -> Option<u64> {
        if self.at(first).is_some() {
            return Some(first);
        }
        self.pieces.range(first..=last).next().map(|(start, _)| *start)
    }

    /// Returns the first address of a range that is not mapped.
    fn first_hole(&self, first: u64, last: u64) -> Option<u64> {
        let mut va = first;
        loop {
            let Some((start, piece)) = self.pieces.range(..=va).next_back() else {
                return Some(va);
            };
            if va - start >= piece.len {
                return Some(va);
            }
            let end = start + (piece.len - 1);
            if end >= last {
                return None;
            }
            va = end + 1;
        }
    }

    /// Cuts ranges so that none spans `va`.
    fn cut(&mut self, va: u64) {
        let Some((&start, piece)) = self.pieces.range_mut(..va).next_back() else { return };
        let offset = va - start;
        if offset < piece.len {
            let rest = Piece { len: piece.len - offset, bus: piece.bus + offset, prot: piece.prot };
            piece.len = offset;
            self.pieces.insert(va, rest);
        }
    }

    fn cut_out(&mut self, first: u64, last: u64) {
        self.cut(first);
        if last != u64::MAX {
            self.cut(last + 1);
        }
    }

    fn remove(&mut self, first: u64, last: u64) {
        self.cut_out(first, last);
        let starts: Vec<u64> = self.pieces.range(first..=last).map(|(start, _)| *start).collect();
        for start in starts {
            self.pieces.remove(&start);
        }
    }

    fn forget_written(&mut self, first: u64, last: u64) {
        self.written.retain(|va| !(first..=last).contains(va));
    }
}

struct Run<'a, F: Format> {
    table: PageTable<F, &'a HostPages, Coherent>,
    format: F,
    model: Model,
    gather: TlbGather,
    granule: u64,
    check: Check,
}

fn run<F: Format>(format: F, check: Check, mut input: Input<'_>) {
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let root = 1u64 << geometry.table_log2(geometry.root_level());
    let tables = if granule > 4096 { LARGE_TABLES } else { TABLES };
    let memory = HostPages::with_limit(root + tables * granule);
    let table = PageTable::new(format, &memory, Coherent).expect("memory for a root");
    let table = table.with_check(check);
    let (model, gather) = (Model::default(), TlbGather::new());
    let mut run = Run { table, format, model, gather, granule, check };
    for _ in 0..OPS_MAX {
        if input.0.is_empty() {
            break;
        }
        run.step(&mut input);
    }
    run.compare();
    run.empty();
    drop(run);
    assert_eq!(memory.used(), 0, "{}: a table is lost", F::NAME);
}

impl<F: Format> Run<'_, F> {
    /// Returns a range inside the window, near one of the boundaries of tables.
    fn range(&self, input: &mut Input<'_>) -> (u64, u64) {
        let geometry = self.format.geometry();
        let all = geometry.last_va();
        let (place, offset, len) = (input.byte(), input.byte(), input.byte());
        let unit = |choice: u8| {
            let level = u32::from(choice % 3).min(geometry.root_level());
            1u64 << geometry.shift(level).min(geometry.input_bits() - 1)
        };
        let base = match place & 3 {
            0 => 0,
            1 => all / 2 + 1,
            2 => 1 << geometry.shift(1).min(geometry.input_bits() - 1),
            _ => all - (all / 4),
        };
        let base = base & !(self.granule - 1);
        let offset = u64::from(offset & 0x3f) * unit(offset >> 6);
        let first = base.saturating_add(offset).min(all - (self.granule - 1));
        let most = (all - first).min((1 << LEN_MAX_LOG2) - 1);
        // Some are one page shorter, so that their ends are not the ends of blocks.
        let len =
            (u64::from(len & 0x1f) + 1) * unit(len >> 6) - u64::from(len >> 5 & 1) * self.granule;
        let last = first + (len.max(self.granule) - 1).min(most);
        (first, last)
    }

    fn iova(&self, va: u64) -> Iova {
        self.format.geometry().iova(va)
    }

    fn va(&self, iova: Iova) -> u64 {
        self.format.geometry().va(iova).expect("an address of the window")
    }

    fn prot(&self, choice: u8) -> Prot {
        match choice & 3 {
            0 | 1 => Prot::READ_WRITE,
            2 => Prot::READ,
            // Only some formats support this; an error must not change anything.
            _ => Prot::WRITE | Prot::EXECUTE,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let (first, last) = self.range(input);
        let (iova, len) = (self.iova(first), last - first + 1);
        if !self.format.geometry().contains(iova, len) {
            // The two halves of a signed window are not adjacent.
            let done = self.table.map(iova, BusAddr::new(0), len, Prot::READ);
            assert!(matches!(done, Err(Error::OutOfRange { .. })), "{done:?}");
            return;
        }
        match op & 7 {
            0 | 1 => self.map(first, last, op >> 3),
            2 => self.unmap(first, last),
            3 => self.split(first, last),
            4 => self.set_prot(first, last, op >> 3),
            5 => self.write(first, last),
            6 => self.read_dirty(first, last, op & 8 != 0),
            _ if op & 8 != 0 => self.finish(),
            _ if op & 0x10 != 0 => self.table.reclaim_all(&mut self.gather),
            _ => {
                self.table.reclaim(iova, len, &mut self.gather).expect("a range of the window");
            }
        }
        for va in [first, last, first.wrapping_sub(self.granule), last.wrapping_add(1)] {
            if va <= self.format.geometry().last_va() {
                self.look_up(va);
            }
        }
        if op & 0x80 != 0 {
            self.compare();
        }
    }

    fn look_up(&self, va: u64) -> Option<Mapping> {
        let iova = self.iova(va);
        let found = self.table.lookup(iova).expect("an address of the window");
        let leads = found.map(|found| {
            (found.translate(iova).expect("inside").raw(), found.prot.without(Prot::COHERENT))
        });
        assert_eq!(leads, self.model.at(va), "{} at {va:#x}", F::NAME);
        found
    }

    fn map(&mut self, first: u64, last: u64, choice: u8) {
        let prot = self.prot(choice);
        let (iova, len) = (self.iova(first), last - first + 1);
        // Some addresses allow blocks, and some do not.
        let output = (1u64 << self.format.geometry().output_bits()) - 1;
        let bus = match choice >> 2 & 3 {
            0 | 1 => first & output,
            2 => self.granule,
            _ => output & !(self.granule - 1),
        };
        let fits = output - bus >= len - 1;
        let done = self.table.map(iova, BusAddr::new(bus), len, prot);
        let expressible = self.format.attributes(prot).is_some();
        let taken = self.model.first_mapped(first, last);
        match done {
            Ok(()) => {
                assert!(expressible && fits && taken.is_none(), "{} maps too much", F::NAME);
                self.model.pieces.insert(first, Piece { len, bus, prot });
            }
            Err(Error::Exists { at }) => {
                assert!(taken.is_some() && self.model.at(self.va(at)).is_some(), "{at:#x}");
            }
            Err(Error::Prot { .. }) => assert!(!expressible),
            Err(Error::BusOutOfRange { .. }) => assert!(!fits),
            Err(Error::OutOfMemory) => {}
            Err(other) => panic!("{}: {other}", F::NAME),
        }
        if expressible && fits && taken.is_none() {
            assert!(matches!(done, Ok(()) | Err(Error::OutOfMemory)), "{done:?}");
        }
    }

    /// Returns `true` if a range is mapped and ends at leaf boundaries on both sides.
    fn is_whole(&self, first: u64, last: u64) -> bool {
        self.model.first_hole(first, last).is_none()
            && self.look_up(first).is_some_and(|leaf| leaf.iova == self.iova(first))
            && self.look_up(last).is_some_and(|leaf| leaf.last() == self.iova(last))
    }

    /// Checks an error of an operation on a mapped range against the model.
    fn refused(&self, first: u64, last: u64, error: Error) {
        match error {
            Error::Hole { at } => {
                let va = self.va(at);
                assert!((first..=last).contains(&va) && self.model.at(va).is_none(), "{at:#x}");
            }
            Error::PartialBlock { at } => {
                let block = self.look_up(self.va(at)).expect("a block");
                let (start, end) = (self.va(block.iova), self.va(block.last()));
                assert!(start < first || end > last, "{block} lies inside");
                assert!(start <= last && end >= first, "{block} lies outside");
            }
            other => panic!("{}: {other}", F::NAME),
        }
    }

    fn unmap(&mut self, first: u64, last: u64) {
        let whole = self.is_whole(first, last);
        if self.check == Check::Trusted && self.model.first_hole(first, last).is_some() {
            // A trusted caller unmaps only what is mapped.
            return;
        }
        let (iova, len) = (self.iova(first), last - first + 1);
        let mut told = Vec::new();
        let note = |range: AddrRange<Iova>| told.push(range);
        match self.table.unmap_dirty(iova, len, &mut self.gather, note) {
            Ok(()) => {
                assert!(whole, "{} unmaps what is not there", F::NAME);
                self.told_of(first, last, &told);
                self.model.remove(first, last);
                self.model.forget_written(first, last);
            }
            Err(error) => {
                assert!(!whole && told.is_empty(), "{}: {error}", F::NAME);
                self.refused(first, last, error);
            }
        }
    }

    /// Checks that every written page was reported, and only pages that may have been written.
    fn told_of(&self, first: u64, last: u64, told: &[AddrRange<Iova>]) {
        let told: Vec<(u64, u64)> = told
            .iter()
            .map(|range| {
                let start = self.va(range.start());
                (start, start + (range.len() - 1))
            })
            .collect();
        let is_told = |va: &u64| told.iter().any(|(start, end)| (*start..=*end).contains(va));
        for va in self.model.written.range(first..=last) {
            assert!(is_told(va), "{}: {va:#x} was written", F::NAME);
        }
        for (start, end) in &told {
            let written = self.model.written.range(start..=end).next().is_some();
            let tainted =
                self.model.tainted.iter().any(|(first, last)| first <= end && last >= start);
            assert!(written || tainted, "{}: {start:#x} was not written", F::NAME);
        }
    }

    /// Returns the leaves that map any part of a range.
    fn leaves(&self, first: u64, last: u64) -> Vec<Mapping> {
        let mut found = Vec::new();
        let visit = |mapping| {
            found.push(mapping);
            ControlFlow::<()>::Continue(())
        };
        let walked = self.table.walk(self.iova(first), last - first + 1, visit);
        assert!(walked.expect("a range of the window").is_continue());
        found
    }

    fn is_run(&self, page_log2: u32) -> bool {
        let geometry = self.format.geometry();
        (0..geometry.levels()).all(|level| geometry.shift(level) != page_log2)
    }

    fn split(&mut self, first: u64, last: u64) {
        let granule_log2 = self.granule.ilog2();
        let blocks: Vec<Mapping> = self.leaves(first, last);
        let blocks: Vec<Mapping> =
            blocks.into_iter().filter(|leaf| leaf.page_log2 > granule_log2).collect();
        let (iova, len) = (self.iova(first), last - first + 1);
        let done = self.table.split(iova, len, &mut self.gather);
        if !blocks.is_empty() && self.format.needs_break_before_make() {
            assert_eq!(done, Err(Error::BreakBeforeMake { at: blocks[0].iova }));
            return;
        }
        match done {
            Ok(()) => {
                for block in &blocks {
                    if self.format.dirty_test().is_some() {
                        self.model.tainted.push((self.va(block.iova), self.va(block.last())));
                    }
                    for va in [self.va(block.iova), self.va(block.last())] {
                        let leaf = self.look_up(va).expect("it was mapped");
                        assert_eq!(leaf.page_log2, granule_log2, "{}: {leaf}", F::NAME);
                    }
                }
            }
            Err(Error::OutOfMemory) => {
                assert!(!blocks.is_empty());
                let large = |leaf: &Mapping| leaf.page_log2 > granule_log2;
                let left: Vec<Mapping> =
                    self.leaves(first, last).into_iter().filter(large).collect();
                assert_eq!(left, blocks, "{}: half split", F::NAME);
            }
            Err(other) => panic!("{}: {other}", F::NAME),
        }
        for block in &blocks {
            for va in [self.va(block.iova), self.va(block.last())] {
                self.look_up(va);
            }
        }
    }

    fn set_prot(&mut self, first: u64, last: u64, choice: u8) {
        let prot = self.prot(choice);
        let whole = self.is_whole(first, last);
        let leaves = self.leaves(first, last);
        let has_runs = leaves.iter().any(|leaf| self.is_run(leaf.page_log2));
        let fixed = self.format.fixed_while_live();
        let must_break = has_runs && self.format.needs_break_before_make()
            || leaves.iter().any(|leaf| leaf.prot.differs_in(prot, fixed));
        let (iova, len) = (self.iova(first), last - first + 1);
        let mut told = Vec::new();
        let note = |range: AddrRange<Iova>| told.push(range);
        match self.table.set_prot_dirty(iova, len, prot, &mut self.gather, note) {
            Ok(()) => {
                assert!(whole && self.format.attributes(prot).is_some());
                assert!(!must_break);
                self.model.cut_out(first, last);
                for (_, piece) in self.model.pieces.range_mut(first..=last) {
                    piece.prot = prot;
                }
                for range in told {
                    let start = self.va(range.start());
                    self.model.forget_written(start, start + (range.len() - 1));
                }
            }
            Err(Error::Prot { .. }) => assert!(self.format.attributes(prot).is_none()),
            Err(Error::BreakBeforeMake { .. }) => assert!(whole && must_break),
            Err(error) => {
                assert!(!whole, "{}: {error}", F::NAME);
                self.refused(first, last, error);
            }
        }
    }

    /// Writes to a page like a device: sets the dirty state of its entry.
    fn write(&mut self, first: u64, last: u64) {
        if self.format.dirty_test().is_none() {
            return;
        }
        let Some(va) = self.model.first_mapped(first, last) else { return };
        let va = va & !(self.granule - 1);
        if !self.model.at(va).is_some_and(|(_, prot)| prot.contains(Prot::WRITE)) {
            return;
        }
        let geometry = self.format.geometry();
        let (mut table, mut level) = (self.table.root(), geometry.root_level());
        loop {
            let slot = &self.table.memory().entries(table)[geometry.index(level, va)];
            let entry = slot.load(Ordering::Acquire);
            match self.format.decode(level, entry) {
                Entry::Table(child) => table = child,
                Entry::Leaf(_) => {
                    slot.store(self.format.with_dirty(entry, true), Ordering::Release);
                    break;
                }
                other => panic!("{va:#x} leads to {other:?}"),
            }
            level -= 1;
        }
        self.model.written.insert(va);
    }

    fn read_dirty(&mut self, first: u64, last: u64, clear: bool) {
        let (iova, len) = (self.iova(first), last - first + 1);
        let mut told = Vec::new();
        let note = |range: AddrRange<Iova>| told.push(range);
        let done = self.table.read_dirty(iova, len, clear, &mut self.gather, note);
        if self.format.dirty_test().is_none() {
            assert_eq!(done, Err(Error::NoDirtyTracking));
            return;
        }
        done.expect("a range of the window");
        self.told_of(first, last, &told);
        if clear {
            for range in told {
                let start = self.va(range.start());
                self.model.forget_written(start, start + (range.len() - 1));
            }
        }
    }

    fn finish(&mut self) {
        let gather = std::mem::take(&mut self.gather);
        let Ok(()) = self.table.finish(gather, &NoTlb);
    }

    /// Compares all mappings with the model, leaf by leaf.
    fn compare(&self) {
        let mut next = self.model.pieces.iter().map(|(start, piece)| (*start, *piece));
        let mut piece: Option<(u64, Piece)> = None;
        let walked = self.table.walker().walk_all(|leaf| {
            let (mut va, mut left) = (self.va(leaf.iova), 1u64 << leaf.page_log2);
            let mut bus = leaf.bus.raw();
            // A leaf may map several ranges: a block whose parts were mapped separately.
            while left > 0 {
                let (start, model) =
                    piece.take().or_else(|| next.next()).expect("more is mapped than should be");
                assert_eq!((va, bus), (start, model.bus), "{}: {leaf}", F::NAME);
                assert_eq!(leaf.prot.without(Prot::COHERENT), model.prot, "{leaf}");
                let taken = left.min(model.len);
                if taken < model.len {
                    let rest = Piece { len: model.len - taken, bus: bus + taken, ..model };
                    piece = Some((start + taken, rest));
                }
                va = va.wrapping_add(taken);
                (bus, left) = (bus + taken, left - taken);
            }
            ControlFlow::<()>::Continue(())
        });
        assert!(walked.is_continue());
        assert_eq!(piece.or_else(|| next.next()), None, "{}: less is mapped", F::NAME);
    }

    /// Unmaps everything, leaf by leaf, and reclaims empty tables.
    fn empty(&mut self) {
        let mut leaves = Vec::new();
        let walked = self.table.walker().walk_all(|leaf| {
            leaves.push(leaf);
            ControlFlow::<()>::Continue(())
        });
        assert!(walked.is_continue());
        for leaf in leaves {
            let done = self.table.unmap(leaf.iova, 1 << leaf.page_log2, &mut self.gather);
            done.expect("it is mapped");
        }
        self.table.reclaim_all(&mut self.gather);
        self.finish();
        assert_eq!(self.table.memory().used(), 1, "{}: a table is left besides the root", F::NAME);
    }
}
