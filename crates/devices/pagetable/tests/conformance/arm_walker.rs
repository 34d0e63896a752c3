//! A walker of Arm tables that refuses everything that the architecture leaves unpredictable.
//!
//! It is written only from DDI 0487 (`AArch64.S2InvalidSL`, `AArch64.S2InconsistentSL`,
//! `AArch64.ContiguousBitFaults`, `ContiguousSize`, the rules of the Contiguous bit). Of this crate
//! it uses only the memory of the tables. Levels are numbered as in the manual.

use std::sync::atomic::Ordering;

use longshore_mem::Granule;
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{ArmStage1, ArmStage1Config, ArmStage2, ArmStage2Config, Format};
use longshore_pagetable::table_memory::{HostPages, TableAddr, TableMemory};
use longshore_pagetable::{PageTable, Prot, TlbGather};

use crate::setup::*;

const CONTIGUOUS: u64 = 1 << 52;

/// The registers that a driver programs.
#[derive(Clone, Copy, Debug)]
struct Walk {
    stage2: bool,
    granule_log2: u32,
    input_bits: u32,
    output_bits: u32,
    initial_level: i32,
    root: u64,
}

/// The reason that a walk is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// SL0 does not fit T0SZ on hardware with the fewest physical address bits that suffice for
    /// input and output.
    InitialLevel,
    /// The root is not aligned to its size.
    Root,
    Absent,
    /// A block at a level without blocks, or the encoding of a page for a block, or the other way
    /// round.
    Descriptor,
    /// A run that is larger than the input size, at a level without runs, or with entries that
    /// differ.
    Misprogrammed,
}

impl Walk {
    fn stride(&self) -> u32 {
        self.granule_log2 - 3
    }

    fn shift(&self, level: i32) -> u32 {
        self.granule_log2 + self.stride() * (3 - level) as u32
    }

    fn lpa2(&self) -> bool {
        self.granule_log2 < 16 && (self.input_bits > 48 || self.output_bits > 48)
    }

    fn check_initial_level(&self) -> Result<(), Refused> {
        let level = self.initial_level;
        let least = self.input_bits.max(self.output_bits);
        let sizes = [32, 36, 40, 42, 44, 48, 52];
        let physical = sizes.into_iter().find(|bits| *bits >= least).unwrap();
        let allowed = match (self.granule_log2, level) {
            (12, -1) => self.lpa2(),
            (12, 0) => !self.stage2 || physical >= 44,
            (12, 1 | 2) => true,
            (14, 0) => self.lpa2() || !self.stage2,
            (14, 1) => !self.stage2 || physical >= 42,
            (16, 1) => !self.stage2 || physical >= 44,
            (14 | 16, 2 | 3) => true,
            _ => false,
        };
        let entries_log2 = self.input_bits.checked_sub(self.shift(level));
        let most = self.stride() + if self.stage2 { 4 } else { 0 };
        match entries_log2 {
            Some(entries_log2) if allowed && (1..=most).contains(&entries_log2) => {}
            _ => return Err(Refused::InitialLevel),
        }
        let size_log2 = entries_log2.unwrap() + 3;
        if self.root & ((1 << size_log2) - 1) != 0 {
            return Err(Refused::Root);
        }
        Ok(())
    }

    fn address(&self, descriptor: u64) -> u64 {
        let field =
            |high: u32, low: u32| descriptor & (u64::MAX >> (63 - high)) & (u64::MAX << low);
        if self.lpa2() {
            field(49, self.granule_log2) | field(9, 8) << 42
        } else if self.output_bits > 48 {
            field(47, 16) | field(15, 12) << 36
        } else {
            field(47, self.granule_log2)
        }
    }

    fn attributes(&self, descriptor: u64) -> u64 {
        let low = if self.lpa2() { 0x00ff } else { 0x0fff };
        descriptor & (0xfff8 << 48 | low)
    }

    fn has_blocks(&self, level: i32) -> bool {
        match self.granule_log2 {
            12 => level >= if self.lpa2() { 0 } else { 1 },
            14 => level >= if self.lpa2() { 1 } else { 2 },
            _ => level >= if self.output_bits > 48 { 1 } else { 2 },
        }
    }

    /// Returns the number of entries of a run, as a logarithm.
    fn run_log2(&self, level: i32) -> Option<u32> {
        match (self.granule_log2, level) {
            (12, 1..=3) => Some(4),
            (14, 3) => Some(7),
            (14, 2) => Some(5),
            (16, 2 | 3) => Some(5),
            _ => None,
        }
    }

    /// Returns the address that `address` is translated to, and the size of the leaf, as a
    /// logarithm.
    fn translate(&self, memory: &impl TableMemory, address: u64) -> Result<(u64, u32), Refused> {
        self.check_initial_level()?;
        let (mut level, mut table) = (self.initial_level, self.root);
        let mut top = self.input_bits;
        loop {
            let shift = self.shift(level);
            let index = (address >> shift & ((1 << (top - shift)) - 1)) as usize;
            let read =
                |index: usize| memory.entries(TableAddr::new(table))[index].load(Ordering::Acquire);
            let descriptor = read(index);
            if descriptor & 1 == 0 {
                return Err(Refused::Absent);
            }
            if level < 3 && descriptor & 2 != 0 {
                (table, level, top) = (self.address(descriptor), level + 1, shift);
                continue;
            }
            if (level == 3) != (descriptor & 2 != 0) || !self.has_blocks(level) {
                return Err(Refused::Descriptor);
            }
            if self.address(descriptor) & ((1 << shift) - 1) != 0 {
                return Err(Refused::Descriptor);
            }
            let mut size_log2 = shift;
            if descriptor & CONTIGUOUS != 0 {
                let run_log2 = self.run_log2(level).ok_or(Refused::Misprogrammed)?;
                size_log2 += run_log2;
                if size_log2 > self.input_bits {
                    return Err(Refused::Misprogrammed);
                }
                let start = index >> run_log2 << run_log2;
                let first = self.address(read(start));
                let same = (0..1 << run_log2).all(|nth| {
                    let entry = read(start + nth);
                    self.attributes(entry) == self.attributes(descriptor)
                        && self.address(entry) == first + ((nth as u64) << shift)
                });
                if !same || first & ((1 << size_log2) - 1) != 0 {
                    return Err(Refused::Misprogrammed);
                }
            }
            return Ok((self.address(descriptor) | address & ((1 << shift) - 1), size_log2));
        }
    }
}

fn granule(log2: u32) -> Granule {
    Granule::new(1 << log2).unwrap()
}

fn walk<F: Format>(table: &PageTable<F, HostPages, Coherent>, stage2: bool) -> Walk {
    let geometry = table.format().geometry();
    Walk {
        stage2,
        granule_log2: geometry.granule_log2(),
        input_bits: geometry.input_bits(),
        output_bits: geometry.output_bits(),
        initial_level: 4 - geometry.levels() as i32,
        root: table.root().raw(),
    }
}

/// Maps each page size at the bottom and at the top of the input range, to the same addresses, and
/// walks there.
fn maps_and_walks<F: Format>(format: F, stage2: bool) {
    let geometry = format.geometry();
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    let walk = walk(&table, stage2);
    let name = format!("{walk:?}");
    let end = 1u64 << geometry.input_bits().min(geometry.output_bits());
    for size_log2 in page_sizes(&format) {
        let size = 1u64 << size_log2;
        for va in [0, end - size] {
            let at = at(&format, va);
            table.map(at, bus(va), size, Prot::READ_WRITE).expect(&name);
            for offset in [0, size / 2, size - 1] {
                let walked = walk.translate(table.memory(), va + offset);
                assert_eq!(walked, Ok((va + offset, size_log2)), "{name}");
            }
            unmap(&table, at, size).expect(&name);
            assert_eq!(walk.translate(table.memory(), va), Err(Refused::Absent), "{name}");
            // So that the next block finds no table at its place.
            let mut gather = TlbGather::new();
            table.reclaim_all(&mut gather);
            let Ok(()) = table.finish(gather, &NoTlb);
            assert_eq!(table.memory().used(), 1, "{name}");
        }
    }
    // The whole range of the root, if it can have leaves.
    let root_sizes = geometry.runs(geometry.root_level());
    if root_sizes != 0 && end == 1 << geometry.input_bits() {
        table.map(at(&format, 0), bus(0), end, Prot::READ).expect(&name);
        let largest = geometry.shift(geometry.root_level()) + root_sizes.ilog2();
        for va in [0, end / 2, end - 1] {
            assert_eq!(walk.translate(table.memory(), va), Ok((va, largest)), "{name}");
        }
        unmap(&table, at(&format, 0), end).expect(&name);
    }
}

/// Calls `run` with every granule, every input size and every output size.
fn each_size(mut run: impl FnMut(u32, u32, u32)) {
    for granule_log2 in [12, 14, 16] {
        for input_bits in 25..=52 {
            for output_bits in [32, 36, 40, 42, 44, 48, 52] {
                run(granule_log2, input_bits, output_bits);
            }
        }
    }
}

#[test]
fn every_size_of_stage_1_is_walked() {
    each_size(|granule_log2, input_bits, output_bits| {
        maps_and_walks(stage1(granule_log2, input_bits, output_bits), false);
    });
}

#[test]
fn every_size_of_stage_2_is_walked() {
    each_size(|granule_log2, input_bits, output_bits| {
        maps_and_walks(stage2(granule_log2, input_bits, output_bits), true);
    });
}

/// Stage 1 never concatenates tables, so it has every page size.
#[test]
fn concatenated_tables_lose_no_page_size() {
    each_size(|granule_log2, input_bits, output_bits| {
        for contiguous in [false, true] {
            let granule = granule(granule_log2);
            let config1 = ArmStage1Config::new(granule)
                .with_input_bits(input_bits)
                .with_output_bits(output_bits)
                .with_contiguous(contiguous);
            let config2 = ArmStage2Config::new(granule)
                .with_input_bits(input_bits)
                .with_output_bits(output_bits)
                .with_contiguous(contiguous);
            let (one, two) = (ArmStage1::new(config1).unwrap(), ArmStage2::new(config2).unwrap());
            assert_eq!(two.geometry().page_sizes(), one.geometry().page_sizes(), "{config2:?}");
        }
    });
}

/// KVM concatenates tables where it can: with 4 KiB and 34 bits it uses 16 tables of level 2.
#[test]
fn the_levels_of_stage_2_can_be_chosen() {
    let new = |granule_log2, input_bits, levels| {
        let plain = ArmStage2Config::new(granule(granule_log2));
        ArmStage2::new(plain.with_input_bits(input_bits).with_levels(levels))
    };
    for (granule_log2, input_bits, levels, concatenated_log2) in [
        (12, 34, 2, 4),
        (12, 34, 3, 0),
        (12, 40, 3, 1),
        (12, 40, 4, 0),
        (16, 33, 1, 4),
        (16, 46, 3, 0),
    ] {
        let format = new(granule_log2, input_bits, levels).unwrap();
        let found = (format.geometry().levels(), format.concatenated_log2());
        assert_eq!(found, (levels, concatenated_log2), "2^{granule_log2}, {input_bits} bits");
        maps_and_walks(format, true);
    }
    for (granule_log2, input_bits, levels) in
        [(12, 34, 1), (12, 34, 4), (12, 35, 2), (16, 33, 0), (16, 33, 3), (14, 48, u32::MAX)]
    {
        let refused = new(granule_log2, input_bits, levels);
        assert!(refused.is_err(), "2^{granule_log2}, {input_bits} bits, {levels} levels");
    }
}

#[test]
fn refused_levels_of_stage_2_have_distinct_reasons() {
    let refused = |granule_log2, input_bits, levels| {
        let plain = ArmStage2Config::new(granule(granule_log2));
        let refused = ArmStage2::new(plain.with_input_bits(input_bits).with_levels(levels));
        refused.unwrap_err().to_string()
    };
    for (granule_log2, input_bits, levels, reason) in [
        (12, 44, 0, "0 levels translate no address; use at least 4"),
        (
            12,
            44,
            3,
            "3 levels for 44 input bits would need 32 root tables, and at most 16 are possible; \
             use at least 4",
        ),
        (12, 44, 5, "5 levels are more than 44 input bits fill; use at most 4"),
        (
            12,
            52,
            1,
            "1 levels for 52 input bits would need 2147483648 root tables, and at most 16 are \
             possible; use at least 4",
        ),
        (16, 33, u32::MAX, "4294967295 levels are more than 33 input bits fill; use at most 2"),
    ] {
        let text = refused(granule_log2, input_bits, levels);
        assert_eq!(text, format!("Arm LPAE stage 2: {reason}"));
    }
}

/// A root of 8 entries has no run of 16, and a root of 16 entries can be one run.
#[test]
fn a_run_is_no_larger_than_the_input_size() {
    for (input_bits, page_log2) in [(33, 30), (34, 34)] {
        for stage in [1, 2] {
            let page_sizes = if stage == 1 {
                stage1(12, input_bits, 40).geometry().page_sizes()
            } else {
                stage2(12, input_bits, 40).geometry().page_sizes()
            };
            assert_eq!(page_sizes.ilog2(), page_log2, "stage {stage}, {input_bits} bits");
        }
    }
}

/// Shows that the walker does refuse such tables; otherwise the tests above would show nothing.
#[test]
fn the_walker_refuses_unpredictable_tables() {
    let table = PageTable::new(stage2(12, 33, 40), HostPages::new(), Coherent).unwrap();
    let right = walk(&table, true);
    table.map(at(table.format(), 0), bus(0), 1 << 33, Prot::READ).unwrap();
    assert_eq!(right.translate(table.memory(), 0), Ok((0, 30)));
    for slot in &table.memory().entries(table.root())[..8] {
        slot.fetch_or(CONTIGUOUS, Ordering::Relaxed);
    }
    assert_eq!(right.translate(table.memory(), 0), Err(Refused::Misprogrammed));

    let table = PageTable::new(stage2(12, 34, 40), HostPages::new(), Coherent).unwrap();
    let right = walk(&table, true);
    table.map(at(table.format(), 0), bus(0), 1 << 34, Prot::READ).unwrap();
    assert_eq!(right.translate(table.memory(), 0), Ok((0, 34)));
    let slot = &table.memory().entries(table.root())[15];
    slot.fetch_and(!CONTIGUOUS, Ordering::Relaxed);
    assert_eq!(right.translate(table.memory(), 0), Err(Refused::Misprogrammed));

    // Two entries at level 0, which hardware with 40 physical address bits does not have.
    let refused = Walk { input_bits: 40, output_bits: 40, initial_level: 0, ..right };
    assert_eq!(refused.translate(table.memory(), 0), Err(Refused::InitialLevel));
    // 32 concatenated tables.
    let refused = Walk { input_bits: 44, output_bits: 44, initial_level: 1, ..right };
    assert_eq!(refused.translate(table.memory(), 0), Err(Refused::InitialLevel));
    let refused = Walk { root: right.root + 8, ..right };
    assert_eq!(refused.translate(table.memory(), 0), Err(Refused::Root));
}
