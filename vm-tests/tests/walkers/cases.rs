//! The test cases that run with every format and unit.
//!
//! `va`s are addresses inside the translated window, as defined by the crate's geometry.

use std::collections::BTreeMap;

use longshore_mem::BusAddr;
use longshore_pagetable::format::Format;
use longshore_pagetable::{Prot, TlbGather};

use crate::machine::TARGETS;
use crate::unit::{Reason, Rig, Unit};

/// The name of a case and its function.
pub(crate) type Case<F, U> = (&'static str, fn(&Rig<'_, F, U>));

/// Returns all cases.
pub(crate) fn all<F: Format, U: Unit>() -> Vec<Case<F, U>> {
    vec![
        ("every_address_bit", every_address_bit),
        ("every_page_size", every_page_size),
        ("every_item_of_a_run", every_item_of_a_run),
        ("every_permission", every_permission),
        ("permissions_change", permissions_change),
        ("absent_at_every_level", absent_at_every_level),
        ("stale_until_invalidated", stale_until_invalidated),
        ("a_detached_subtree_is_gone", a_detached_subtree_is_gone),
        ("block_and_pages_unmapped_as_one", block_and_pages_unmapped_as_one),
        ("mapped_again_elsewhere", mapped_again_elsewhere),
        ("blocks_split", blocks_split),
        ("random_ranges_agree_with_a_model", random_ranges_agree_with_a_model),
    ]
}

/// Returns the cases that depend on the input size.
pub(crate) fn of_input_size<F: Format, U: Unit>() -> Vec<Case<F, U>> {
    vec![("every_address_bit", every_address_bit)]
}

fn bus(raw: u64) -> BusAddr {
    BusAddr::new(raw)
}

/// A page in each part of the address space: page 0, one for each address bit, and the last page.
fn every_address_bit<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule_log2 = geometry.granule_log2();
    let granule = 1u64 << granule_log2;
    let input_bits = geometry.input_bits().min(rig.unit.address_bits());
    let last = u64::MAX >> (64 - input_bits) & !(granule - 1);
    let bits = (granule_log2..input_bits).map(|bit| 1 << bit);
    let pages: Vec<u64> = [0].into_iter().chain(bits).chain([last]).collect();
    let target = |index: usize| TARGETS.start + 5 * granule + index as u64 * 3 * granule;
    for (index, va) in pages.iter().enumerate() {
        rig.table.map(rig.iova(*va), bus(target(index)), granule, Prot::READ_WRITE).unwrap();
    }
    for (index, va) in pages.iter().enumerate() {
        rig.is_mapped(*va, target(index));
        rig.write_arrives(va + granule - 8, target(index) + granule - 8);
        // Adjacent pages are unmapped.
        let beside = va ^ (2 * granule);
        if !pages.contains(&beside) {
            rig.write_is_refused(beside, target(index), Reason::Absent);
        }
    }
}

/// Returns the address that a page of 2^`page_log2` bytes leads to, and the offset and length of the
/// part of the page that is memory.
fn target_of(page_log2: u32) -> (u64, u64, u64) {
    let size = 1u64 << page_log2;
    let base = TARGETS.start & !(size - 1);
    (base, TARGETS.start - base, size.min(TARGETS.end - TARGETS.start))
}

/// Returns the va of a page of 2^`page_log2` bytes, with the bits of `pattern` outside the page's
/// offset.
fn somewhere(input_bits: u32, page_log2: u32, pattern: u64) -> u64 {
    pattern & (u64::MAX >> (64 - input_bits)) & (u64::MAX << page_log2)
}

const PATTERNS: [u64; 3] = [0, 0x5a5a_5a5a_5a5a_5a5a, u64::MAX];

/// Every page size, at the start, in the middle and at the end of the address space.
fn every_page_size<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    // The largest first: empty tables stay in place, and a larger page cannot replace them.
    let sizes = (0..64).rev().filter(|log2| geometry.page_sizes() >> log2 & 1 != 0);
    for page_log2 in sizes {
        let size = 1u64 << page_log2;
        let (base, offset, len) = target_of(page_log2);
        for pattern in PATTERNS {
            let va = somewhere(geometry.input_bits(), page_log2, pattern);
            let iova = rig.iova(va);
            rig.table.map(iova, bus(base), size, Prot::READ_WRITE).unwrap();
            assert_eq!(rig.table.lookup(iova).unwrap().unwrap().page_log2, page_log2);
            let middle = (len * 3 / 4) & !7;
            for at in [0, middle, len - 8] {
                rig.is_mapped(va + offset + at, base + offset + at);
            }
            // The page before and the page after.
            if let Some(before) = va.checked_sub(8) {
                rig.write_is_refused(before, TARGETS.start, Reason::Absent);
            }
            if va + size - 1 < geometry.last_va() {
                rig.write_is_refused(va + size, TARGETS.start, Reason::Absent);
            }
            let mut gather = TlbGather::new();
            rig.table.unmap(iova, size, &mut gather).unwrap();
            rig.finish(gather);
            rig.is_absent(va + offset + middle, base + offset + middle);
        }
    }
}

/// Every entry of the runs that form one page: contiguous entries, and sizes between those of two
/// levels.
fn every_item_of_a_run<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    for level in (0..geometry.levels()).rev() {
        let runs = geometry.runs(level);
        let Some(run_log2) = (1u32..32).filter(|log2| runs >> log2 & 1 != 0).min_by_key(|log2| {
            // A run of about 32 entries, if there are several lengths.
            log2.abs_diff(5)
        }) else {
            continue;
        };
        let slot_log2 = geometry.shift(level);
        let page_log2 = slot_log2 + run_log2;
        let (base, offset, len) = target_of(page_log2);
        let va = somewhere(geometry.input_bits(), page_log2, 0x3333_3333_3333_3333);
        rig.table.map(rig.iova(va), bus(base), 1 << page_log2, Prot::READ_WRITE).unwrap();
        let found = rig.table.lookup(rig.iova(va)).unwrap().unwrap();
        assert_eq!(found.page_log2, page_log2, "no run at level {level}");
        let step = (1u64 << slot_log2).min(len);
        for at in (0..len).step_by(step as usize) {
            rig.write_arrives(va + offset + at, base + offset + at);
            rig.read_arrives(va + offset + at + step - 8, base + offset + at + step - 8);
        }
        let mut gather = TlbGather::new();
        rig.table.unmap(rig.iova(va), 1 << page_log2, &mut gather).unwrap();
        rig.finish(gather);
    }
}

/// The accesses that each set of permissions allows, in a page and in a block.
fn every_permission<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule_log2 = geometry.granule_log2();
    let sizes = geometry.page_sizes() & !(1 << granule_log2);
    let block_log2 = if sizes == 0 { granule_log2 } else { sizes.trailing_zeros() };
    let mut number = 0;
    for prot in Prot::all().filter(|prot| rig.table.format().attributes(*prot).is_some()) {
        // The device's accesses are unprivileged, but not every model checks that.
        if prot.contains(Prot::PRIVILEGED) {
            continue;
        }
        for page_log2 in [granule_log2, block_log2] {
            number += 2;
            let size = 1u64 << page_log2;
            let (va, at) = (number << block_log2, TARGETS.start + (number << block_log2));
            rig.table.map(rig.iova(va), bus(at), size, prot).unwrap();
            // Refusals first: VT-d's model does not report refusals by cached entries.
            if !prot.contains(Prot::WRITE) {
                rig.write_is_refused(va + 8, at + 8, Reason::Permission);
            }
            if !prot.contains(Prot::READ) {
                rig.read_is_refused(va + 16, at + 16, Reason::Permission);
            }
            if prot.contains(Prot::WRITE) {
                rig.write_arrives(va + 8, at + 8);
            }
            if prot.contains(Prot::READ) {
                rig.read_arrives(va + 16, at + 16);
            }
        }
    }
    assert!(number >= 8, "a format has at least two sets of permissions");
}

/// Permissions that are removed and restored.
fn permissions_change<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let granule = 1u64 << rig.geometry().granule_log2();
    let (va, at) = (granule * 6, TARGETS.start + granule * 3);
    rig.table.map(rig.iova(va), bus(at), 4 * granule, Prot::READ_WRITE).unwrap();
    for page in 0..4 {
        rig.write_arrives(va + page * granule, at + page * granule);
    }
    let mut gather = TlbGather::new();
    rig.table.set_prot(rig.iova(va + granule), 2 * granule, Prot::READ, &mut gather).unwrap();
    // Until the invalidation, the unit uses the cached permission to write.
    rig.write_arrives(va + granule, at + granule);
    rig.finish(gather);
    for page in [1, 2] {
        rig.write_is_refused(va + page * granule, at + page * granule, Reason::Permission);
        rig.read_arrives(va + page * granule, at + page * granule);
    }
    for page in [0, 3] {
        rig.is_mapped(va + page * granule, at + page * granule);
    }
    let mut gather = TlbGather::new();
    rig.table.set_prot(rig.iova(va), 4 * granule, Prot::READ_WRITE, &mut gather).unwrap();
    rig.finish(gather);
    for page in 0..4 {
        rig.is_mapped(va + page * granule, at + page * granule);
    }
}

/// Faults at every level at which a walk can end without an entry.
fn absent_at_every_level<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let at = TARGETS.start;
    rig.is_absent(0, at);
    rig.table.map(rig.iova(0), bus(at), granule, Prot::READ_WRITE).unwrap();
    rig.is_mapped(0, at);
    for level in 0..geometry.levels() {
        rig.is_absent(1 << geometry.shift(level), at);
    }
    rig.is_absent(geometry.last_va() & !(granule - 1), at);
    rig.is_mapped(0, at);
}

/// A cached translation stays in use until it is invalidated, and no longer. This shows that the walker
/// caches, and that the gather describes enough.
fn stale_until_invalidated<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let sizes = (0..30).rev().filter(|log2| geometry.page_sizes() >> log2 & 1 != 0);
    for page_log2 in sizes {
        let size = 1u64 << page_log2;
        let (base, offset, len) = target_of(page_log2);
        let va = somewhere(geometry.input_bits(), page_log2, 0x6969_6969_6969_6969);
        // The neighbours on both sides stay mapped.
        let around = [va - size, va, va + size];
        for part in around {
            rig.table.map(rig.iova(part), bus(base), size, Prot::READ_WRITE).unwrap();
        }
        for part in around {
            rig.write_arrives(part + offset, base + offset);
        }
        let mut gather = TlbGather::new();
        rig.table.unmap(rig.iova(va), size, &mut gather).unwrap();
        assert_eq!(rig.table.lookup(rig.iova(va)).unwrap(), None);
        rig.write_arrives(va + offset, base + offset);
        rig.finish(gather);
        for within in [0, len / 2, len - 8] {
            let target = base + offset + within;
            rig.write_is_refused(va + offset + within, target, Reason::Absent);
        }
        rig.write_arrives(around[0] + offset, base + offset);
        rig.write_arrives(around[2] + offset, base + offset);
        let mut gather = TlbGather::new();
        for part in [around[0], around[2]] {
            rig.table.unmap(rig.iova(part), size, &mut gather).unwrap();
        }
        rig.finish(gather);
        rig.write_is_refused(around[0] + offset, base + offset, Reason::Absent);
        rig.write_is_refused(around[2] + offset, base + offset, Reason::Absent);
    }
}

/// A table that is detached as a whole by clearing one entry.
fn a_detached_subtree_is_gone<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let slot = 1u64 << geometry.shift(1);
    let va = slot * 3;
    let before = rig.table.memory().used();
    // The pages lead to every second page of memory, so that they cannot form a larger one.
    let pages = slot / granule;
    let target = |page: u64| TARGETS.start + page % 512 * 2 * granule;
    for page in 0..pages {
        let iova = rig.iova(va + page * granule);
        rig.table.map(iova, bus(target(page)), granule, Prot::READ_WRITE).unwrap();
    }
    let some = [0, 1, 7, 8, pages / 2, pages - 1];
    for page in some {
        rig.write_arrives(va + page * granule, target(page));
    }
    let used = rig.table.memory().used();
    let mut gather = TlbGather::new();
    rig.table.unmap(rig.iova(va), slot, &mut gather).unwrap();
    assert!(gather.has_tables());
    for page in some {
        rig.write_arrives(va + page * granule, target(page));
    }
    assert_eq!(rig.table.memory().used(), used, "a table in use was freed");
    rig.finish(gather);
    assert!(rig.table.memory().used() < used && rig.table.memory().used() >= before);
    for page in some {
        rig.write_is_refused(va + page * granule, target(page), Reason::Absent);
    }
}

/// A block and two halves of a block in pages, unmapped at once.
fn block_and_pages_unmapped_as_one<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let block = 1u64 << geometry.shift(1);
    let va = block * 8;
    let at = TARGETS.start;
    rig.table.map(rig.iova(va), bus(at), block, Prot::READ_WRITE).unwrap();
    // Shifted by a page, so that they cannot form a block.
    for half in 0..2 {
        let from = block + half * (block / 2);
        let target = bus(at + from + granule);
        rig.table.map(rig.iova(va + from), target, block / 2, Prot::READ_WRITE).unwrap();
    }
    let places = [0, block / 2 + 8, block - 8, block, block + granule, 2 * block - 8];
    let target = |place: u64| at + place + if place < block { 0 } else { granule };
    for place in places {
        rig.is_mapped(va + place, target(place));
    }
    let mut gather = TlbGather::new();
    rig.table.unmap(rig.iova(va), 2 * block, &mut gather).unwrap();
    rig.finish(gather);
    for place in places {
        rig.write_is_refused(va + place, target(place), Reason::Absent);
    }
}

/// An address that leads elsewhere after an unmap; the memory of its table is reused.
fn mapped_again_elsewhere<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let slot = 1u64 << geometry.shift(1);
    let va = slot * 5;
    // Alternates between a block and pages, each with a different target.
    for round in 0..6 {
        let len = if round % 2 == 0 { slot } else { 32 * granule };
        let at = TARGETS.start + round % 4 / 2 * slot + round % 2 * granule;
        rig.table.map(rig.iova(va), bus(at), len, Prot::READ_WRITE).unwrap();
        for place in [0, granule, len / 2, len - granule] {
            rig.write_arrives(va + place, at + place);
        }
        let mut gather = TlbGather::new();
        rig.table.unmap(rig.iova(va), len, &mut gather).unwrap();
        rig.finish(gather);
        rig.write_is_refused(va, at, Reason::Absent);
    }
}

/// A live block that is split into pages, one of which is unmapped.
fn blocks_split<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let block = 1u64 << geometry.shift(1);
    let (va, at) = (block * 4, TARGETS.start);
    rig.table.map(rig.iova(va), bus(at), block, Prot::READ_WRITE).unwrap();
    rig.write_arrives(va, at);
    let mut gather = TlbGather::new();
    rig.table.split(rig.iova(va), block, &mut gather).unwrap();
    rig.finish(gather);
    let pages = block / granule;
    let some = [0, 1, 15, 16, pages / 2, pages - 1];
    for page in some {
        rig.is_mapped(va + page * granule, at + page * granule);
    }
    let mut gather = TlbGather::new();
    rig.table.unmap(rig.iova(va + 15 * granule), granule, &mut gather).unwrap();
    rig.finish(gather);
    for page in some {
        if page == 15 {
            rig.write_is_refused(va + page * granule, at + page * granule, Reason::Absent);
        } else {
            rig.write_arrives(va + page * granule, at + page * granule);
        }
    }
}

/// The unit's translations match a map of pages after random maps and unmaps.
fn random_ranges_agree_with_a_model<F: Format, U: Unit>(rig: &Rig<'_, F, U>) {
    let geometry = *rig.geometry();
    let granule_log2 = geometry.granule_log2();
    let granule = 1u64 << granule_log2;
    let block_pages = 1 << (geometry.shift(1) - granule_log2);
    // Around the middle of the address space, where two tables of every level meet.
    let targets = (TARGETS.end - TARGETS.start) >> granule_log2;
    let space = (3 * block_pages).min(targets / 4);
    let base = (1u64 << (geometry.input_bits() - 1)) - ((space / 2) << granule_log2);
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut random = Random(0x1234_5678_9abc_def1);
    for _ in 0..60 {
        let first = random.below(space - 1);
        let most = match random.below(3) {
            0 => 4,
            1 => 64,
            _ => space,
        };
        let count = 1 + random.below(most.min(space - first));
        let (iova, len) = (rig.iova(base + first * granule), count << granule_log2);
        let mapped = model.range(first..first + count).count() as u64;
        if mapped == 0 {
            // Half of the ranges have the same alignment on both sides, so that there are blocks.
            let shift = random.below(2) * random.below(8);
            let target = (random.below(targets - 2 * space) & !(block_pages - 1))
                + (first & (block_pages - 1))
                + shift;
            let target = target % (targets - count);
            let to = TARGETS.start + (target << granule_log2);
            rig.table.map(iova, bus(to), len, Prot::READ_WRITE).unwrap();
            model.extend((0..count).map(|page| (first + page, to + page * granule)));
        } else {
            // Unmaps all leaves in the range.
            let mut gather = TlbGather::new();
            let mut page = first;
            let mut touched = Vec::new();
            while page < first + count {
                let Some(found) = rig.table.lookup(rig.iova(base + page * granule)).unwrap() else {
                    page += 1;
                    continue;
                };
                let size = 1u64 << found.page_log2;
                let va = geometry.va(found.iova).unwrap();
                rig.table.unmap(found.iova, size, &mut gather).unwrap();
                let start = (va - base) >> granule_log2;
                for page in start..start + (size >> granule_log2) {
                    touched.extend(model.remove(&page).map(|to| (page, to)));
                }
                page = start + (size >> granule_log2);
            }
            rig.finish(gather);
            for _ in 0..3 {
                let (page, to) = touched[random.below(touched.len() as u64) as usize];
                rig.write_is_refused(base + page * granule, to, Reason::Absent);
            }
        }
        for _ in 0..6 {
            let page = random.below(space);
            let va = base + page * granule + random.below(granule / 8) * 8;
            let within = va & (granule - 1);
            match model.get(&page) {
                Some(to) => rig.write_arrives(va, to + within),
                None => rig.write_is_refused(va, TARGETS.start, Reason::Absent),
            }
        }
    }
}

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }
}
