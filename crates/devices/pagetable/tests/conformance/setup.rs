//! The set-ups of formats, and helpers for tests with tables.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_mem::{BusAddr, Granule, Iova};
use longshore_pagetable::cache_sync::CacheSync;
use longshore_pagetable::format::*;
use longshore_pagetable::table_memory::{TableAddr, TableMemory};
use longshore_pagetable::{Invalidate, Mapping, PageTable, Prot, TlbGather};

fn granule(log2: u32) -> Granule {
    Granule::new(1 << log2).unwrap()
}

pub(crate) fn stage1(granule_log2: u32, input_bits: u32, output_bits: u32) -> ArmStage1 {
    let config = ArmStage1Config::new(granule(granule_log2))
        .with_input_bits(input_bits)
        .with_output_bits(output_bits);
    ArmStage1::new(config).unwrap()
}

pub(crate) fn stage1_upper(granule_log2: u32, input_bits: u32) -> ArmStage1 {
    let config =
        ArmStage1Config::new(granule(granule_log2)).with_input_bits(input_bits).with_upper(true);
    ArmStage1::new(config).unwrap()
}

pub(crate) fn stage1_without_runs(granule_log2: u32, input_bits: u32) -> ArmStage1 {
    let config = ArmStage1Config::new(granule(granule_log2))
        .with_input_bits(input_bits)
        .with_contiguous(false);
    ArmStage1::new(config).unwrap()
}

pub(crate) fn stage1_tracking() -> ArmStage1 {
    let config =
        ArmStage1Config::new(granule(12)).with_dirty_tracking(true).with_live_size_changes(true);
    ArmStage1::new(config).unwrap()
}

pub(crate) fn stage1_tracking_without_runs() -> ArmStage1 {
    let config = ArmStage1Config::new(granule(12))
        .with_contiguous(false)
        .with_dirty_tracking(true)
        .with_live_size_changes(true);
    ArmStage1::new(config).unwrap()
}

pub(crate) fn stage2(granule_log2: u32, input_bits: u32, output_bits: u32) -> ArmStage2 {
    let config = ArmStage2Config::new(granule(granule_log2))
        .with_input_bits(input_bits)
        .with_output_bits(output_bits)
        .with_live_size_changes(true);
    ArmStage2::new(config).unwrap()
}

pub(crate) fn stage2_tracking() -> ArmStage2 {
    let config =
        ArmStage2Config::new(granule(12)).with_dirty_tracking(true).with_live_size_changes(true);
    ArmStage2::new(config).unwrap()
}

pub(crate) fn vtd_second(input_bits: u32) -> VtdSecond {
    let config = VtdSecondConfig::new().with_input_bits(input_bits);
    VtdSecond::new(config).unwrap()
}

pub(crate) fn vtd_second_tracking() -> VtdSecond {
    VtdSecond::new(VtdSecondConfig::new().with_dirty_tracking(true)).unwrap()
}

pub(crate) fn vtd_first(five_levels: bool) -> VtdFirst {
    VtdFirst::new(VtdFirstConfig::new().with_five_levels(five_levels)).unwrap()
}

pub(crate) fn vtd_first_tracking() -> VtdFirst {
    VtdFirst::new(VtdFirstConfig::new().with_dirty_tracking(true)).unwrap()
}

pub(crate) fn x86_64(five_levels: bool) -> X86_64 {
    X86_64::new(X86_64Config::new().with_five_levels(five_levels)).unwrap()
}

pub(crate) fn x86_64_tracking() -> X86_64 {
    X86_64::new(X86_64Config::new().with_dirty_tracking(true)).unwrap()
}

pub(crate) fn amd_v1(levels: u32) -> AmdV1 {
    AmdV1::new(AmdV1Config::new().with_levels(levels)).unwrap()
}

pub(crate) fn amd_v1_tracking() -> AmdV1 {
    AmdV1::new(AmdV1Config::new().with_dirty_tracking(true)).unwrap()
}

pub(crate) fn amd_v1_6_levels_tracking() -> AmdV1 {
    AmdV1::new(AmdV1Config::new().with_levels(6).with_dirty_tracking(true)).unwrap()
}

pub(crate) fn amd_v1_large(levels: u32) -> AmdV1 {
    let config = AmdV1Config::new().with_levels(levels).with_pages_512g(true);
    AmdV1::new(config).unwrap()
}

fn mode(bits: u32) -> RiscVMode {
    match bits {
        39 => RiscVMode::Sv39,
        48 => RiscVMode::Sv48,
        _ => RiscVMode::Sv57,
    }
}

pub(crate) fn riscv(bits: u32) -> RiscV {
    RiscV::new(RiscVConfig::new(mode(bits))).unwrap()
}

pub(crate) fn riscv_tracking() -> RiscV {
    let config = RiscVConfig::new(mode(48)).with_dirty_tracking(true);
    RiscV::new(config).unwrap()
}

/// The invalidation of a walker without a TLB.
pub(crate) struct NoTlb;

impl Invalidate for NoTlb {
    type Error = Infallible;

    fn flush(&self, _gather: &TlbGather) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Unmaps and finishes.
pub(crate) fn unmap<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
    iova: Iova,
    len_bytes: u64,
) -> Result<(), longshore_pagetable::Error> {
    let mut gather = TlbGather::new();
    table.unmap(iova, len_bytes, &mut gather)?;
    let Ok(()) = table.finish(gather, &NoTlb);
    Ok(())
}

/// Returns all mappings.
pub(crate) fn mappings<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
) -> Vec<Mapping> {
    let mut found = Vec::new();
    let walked = table.walker().walk_all(|mapping| {
        found.push(mapping);
        ControlFlow::<()>::Continue(())
    });
    assert!(walked.is_continue());
    found
}

/// Returns the number of tables that the root leads to, including the root.
pub(crate) fn reachable<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
) -> u64 {
    fn below<F: Format>(
        format: &F,
        memory: &impl TableMemory,
        level: u32,
        address: TableAddr,
    ) -> u64 {
        let slots = &memory.entries(address)[..format.geometry().slots(level)];
        let children =
            slots.iter().map(|slot| match format.decode(level, slot.load(Ordering::Acquire)) {
                Entry::Table(child) => below(format, memory, level - 1, child),
                _ => 0,
            });
        1 + if level == 0 { 0 } else { children.sum() }
    }
    below(table.format(), table.memory(), table.format().geometry().root_level(), table.root())
}

/// Returns the entry that ends the walk to `iova`, and its level.
pub(crate) fn last_slot<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
    iova: Iova,
) -> (u32, &AtomicU64) {
    let (format, geometry) = (table.format(), table.format().geometry());
    let va = geometry.va(iova).expect("an address of the window");
    let (mut address, mut level) = (table.root(), geometry.root_level());
    loop {
        let slot = &table.memory().entries(address)[geometry.index(level, va)];
        match format.decode(level, slot.load(Ordering::Acquire)) {
            Entry::Table(child) if level > 0 => address = child,
            _ => return (level, slot),
        }
        level -= 1;
    }
}

/// Writes to `iova` as a device does: sets the dirty bit of the leaf by one compare-and-exchange of
/// the entry that it has read. Returns the size of that leaf as a logarithm, or `None` if it was
/// already dirty, is not writable, or has changed.
pub(crate) fn mark<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
    iova: Iova,
) -> Option<u32> {
    let format = table.format();
    let (level, slot) = last_slot(table, iova);
    let entry = slot.load(Ordering::Acquire);
    let Entry::Leaf(leaf) = format.decode(level, entry) else { return None };
    if format.dirty_test()?.matches(entry) || !format.prot(entry).contains(Prot::WRITE) {
        return None;
    }
    let written = format.with_dirty(entry, true);
    let set = slot.compare_exchange(entry, written, Ordering::AcqRel, Ordering::Acquire);
    set.ok().map(|_| format.geometry().shift(level) + leaf.run_log2)
}

/// Returns the bus address for `va`.
pub(crate) fn leads<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
    va: u64,
) -> Option<u64> {
    let iova = at(table.format(), va);
    let mapping = table.lookup(iova).unwrap()?;
    Some(mapping.translate(iova).expect("the mapping contains the address").raw())
}

/// Returns all page sizes of a format as logarithms, in ascending order.
pub(crate) fn page_sizes<F: Format>(format: &F) -> impl Iterator<Item = u32> + use<F> {
    let sizes = format.geometry().page_sizes();
    (0..64).filter(move |log2| sizes >> log2 & 1 != 0)
}

/// Returns the page sizes of which at least four fit into the input range and the output range.
pub(crate) fn usable_sizes(format: &impl Format) -> Vec<u32> {
    let most = format.geometry().input_bits().min(format.geometry().output_bits()) - 2;
    page_sizes(format).filter(|log2| *log2 <= most).collect()
}

/// Returns the leaves that are larger than a page, each as its level and its number of entries as a
/// logarithm: for each level the block and the smallest run, if there are any and their pages do
/// not need too many tables to wait for.
pub(crate) fn large_leaves(format: &impl Format) -> Vec<(u32, u32)> {
    let geometry = format.geometry();
    let usable = usable_sizes(format);
    let mut found = Vec::new();
    for level in 0..geometry.levels().min(2) {
        let runs = geometry.runs(level);
        let block = (level > 0 && runs & 1 != 0).then_some(0);
        let run = (runs > 1).then(|| (runs & !1).trailing_zeros());
        for run_log2 in block.into_iter().chain(run) {
            let entries_log2 = run_log2 + geometry.slots_log2(0) * level;
            if usable.contains(&(geometry.shift(level) + run_log2)) && entries_log2 <= 14 {
                found.push((level, run_log2));
            }
        }
    }
    found
}

/// Returns the address whose va is `va`.
pub(crate) fn at(format: &impl Format, va: u64) -> Iova {
    format.geometry().iova(va)
}

pub(crate) fn bus(raw: u64) -> BusAddr {
    BusAddr::new(raw)
}
