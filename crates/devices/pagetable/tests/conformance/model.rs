//! Random ranges against an interval map.

use std::collections::BTreeMap;

use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Check, Error, PageTable, Prot, TlbGather};

use crate::read_write;
use crate::setup::*;

/// The number of ranges for each format.
const RANGES: usize = 1000;

/// xorshift64, with the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The expected mappings: from a va to its length and target.
#[derive(Default)]
pub(crate) struct Model(pub(crate) BTreeMap<u64, (u64, u64)>);

impl Model {
    /// Returns `true` if any of `va..va + len` is mapped.
    pub(crate) fn overlaps(&self, va: u64, len: u64) -> bool {
        self.0.range(..va + len).next_back().is_some_and(|(start, (size, _))| start + size > va)
    }

    pub(crate) fn target(&self, va: u64) -> Option<u64> {
        let (start, (size, target)) = self.0.range(..=va).next_back()?;
        (va - start < *size).then(|| target + (va - start))
    }
}

pub(crate) fn random<F: Format>(format: F) {
    for check in [Check::Checked, Check::Trusted] {
        run(format, check);
    }
}

fn run<F: Format>(format: F, check: Check) {
    let prot = read_write(&format);
    let geometry = format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let memory = HostPages::new();
    let table = PageTable::new(format, &memory, Coherent).unwrap().with_check(check);
    let mut model = Model::default();
    let mut random = Random(0x1234_5678_9abc_def1);
    // Around a boundary of the highest levels, with so few pages that ranges overlap often.
    let window = (1u64 << (geometry.shift(1) + 3).min(geometry.input_bits() - 1)).min(1 << 36);
    let base = geometry.last_va() / 2 + 1;
    let base = if base >= window { base - window / 2 } else { 0 };
    for _ in 0..RANGES {
        let pages = window / granule;
        let page = random.below(pages);
        let len_log2 = random.below(u64::from(pages.ilog2()));
        let len = (1 + random.below(1 << len_log2)).min(pages - page) * granule;
        // Half of them are aligned, so that there are blocks.
        let page = if random.below(2) == 0 { page } else { page >> len_log2 << len_log2 };
        let va = base + page * granule;
        if !geometry.contains(at(&format, va), len) {
            continue;
        }
        if random.below(3) > 0 {
            let target = random.below(64) * granule
                + if random.below(2) == 0 { 0 } else { va & ((1 << 31) - 1) };
            let done = table.map(at(&format, va), bus(target), len, prot);
            if model.overlaps(va, len) {
                assert!(matches!(done, Err(Error::Exists { .. })), "{}: {done:?}", F::NAME);
            } else {
                assert_eq!(done, Ok(()), "{}", F::NAME);
                model.0.insert(va, (len, target));
            }
        } else if let Some((&va, &(len, _))) = model.0.range(va..).next() {
            unmap(&table, at(&format, va), len).unwrap();
            model.0.remove(&va);
        }
        for probe in [va, va + len - granule, va + len, va.wrapping_sub(granule)] {
            if probe > geometry.last_va() {
                continue;
            }
            let found = table.lookup(at(&format, probe)).unwrap();
            let found = found.map(|m| m.translate(at(&format, probe)).unwrap().raw());
            assert_eq!(found, model.target(probe), "{} at {probe:#x}", F::NAME);
        }
    }
    // All of it, leaf by leaf.
    let mut mapped = 0;
    for mapping in mappings(&table) {
        let va = geometry.va(mapping.iova).unwrap();
        for offset in [0, (1 << mapping.page_log2) - granule] {
            assert_eq!(model.target(va + offset), Some(mapping.bus.raw() + offset));
        }
        assert_eq!(mapping.prot.without(Prot::COHERENT), prot);
        mapped += 1u64 << mapping.page_log2;
    }
    assert_eq!(mapped, model.0.values().map(|(len, _)| len).sum::<u64>());
    for (va, (len, _)) in &model.0 {
        unmap(&table, at(&format, *va), *len).unwrap();
    }
    assert_eq!(mappings(&table), []);
    let mut gather = TlbGather::new();
    let all = geometry.last_va();
    let half = all / 2 + 1;
    for part in [0, half] {
        table.reclaim(at(&format, part), half, &mut gather).unwrap();
    }
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(memory.used(), 1, "{}: only the root is left", F::NAME);
    drop(table);
    assert_eq!(memory.used(), 0);
}
