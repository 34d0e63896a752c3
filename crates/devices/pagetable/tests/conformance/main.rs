//! One suite for every format, granule, stage and input size.
//!
//! The macro `conformance!` makes the tests of a format from a function that sets the format up.
//! The tests take all that they need from the format's geometry, and know no encoding. The
//! encodings have tables of their own in `encodings.rs`.

#![cfg(not(loom))]

mod arm_walker;
mod basic;
mod counts;
mod dirty;
mod dram;
mod encodings;
mod gather;
mod growing;
mod memories;
mod memory;
mod model;
mod narrowing;
mod preempted;
mod race;
mod reclaimed;
mod setup;
mod sources;
mod split;
mod together;
mod walker_races;

use longshore_pagetable::format::Format;

/// Makes a module of tests for the format that `$make` sets up.
macro_rules! conformance {
    ($($name:ident: $make:expr;)*) => {
        $(
            mod $name {
                #[allow(unused_imports, reason = "not every format uses them")]
                use crate::setup::*;

                fn format() -> impl longshore_pagetable::format::Format {
                    $make
                }

                #[test]
                fn an_empty_table_maps_nothing() { crate::basic::empty(format()); }
                #[test]
                fn an_entry_outside_the_tables_is_none() { crate::basic::entries_of_no_table(format()); }
                #[test]
                fn every_page_size_maps_first_middle_and_last() { crate::basic::every_page_size(format()); }
                #[test]
                fn overlap_is_refused() { crate::basic::overlap(format()); }
                #[test]
                fn mapped_unmapped_mapped_again() { crate::basic::remap(format()); }
                #[test]
                fn part_of_a_block_is_refused() { crate::basic::partial(format()); }
                #[test]
                fn an_emptied_table_gives_way_to_a_block() { crate::basic::emptied(format()); }
                #[test]
                fn out_of_range_is_refused() { crate::basic::out_of_range(format()); }
                #[test]
                fn a_mixed_range_has_the_fewest_leaves() { crate::basic::mixed(format()); }
                #[test]
                fn entries_round_trip() { crate::encodings::round_trip(format()); }
                #[test]
                fn any_entry_decodes() {
                    crate::encodings::any_entry(format());
                }
                #[test]
                fn out_of_memory_leaves_nothing() { crate::memory::out_of_memory(format()); }
                #[test]
                fn unmap_allocates_nothing_and_nothing_is_reused_before_the_flush() { crate::memory::no_reuse(format()); }
                #[test]
                fn random_ranges_agree_with_a_model() { crate::model::random(format()); }
                #[test]
                fn a_walker_of_dram_never_sees_a_half_written_state() { crate::dram::never_half_written(format()); }
                #[test]
                fn permissions_change() { crate::split::set_prot(format()); }
                #[test]
                fn a_level_on_top_changes_nothing_below() { crate::growing::growing(format()); }
                #[test]
                fn blocks_split() { crate::split::split(format()); }
                #[test]
                fn a_split_without_memory_changes_nothing() { crate::split::out_of_memory(format()); }
                #[test]
                fn a_new_root_is_empty() { crate::dram::a_new_root_is_empty(format()); }
                #[test]
                fn in_place_changes_reach_the_walker_whole() { crate::dram::changed_in_place(format()); }
                #[test]
                fn part_of_a_run_is_refused_trusted_or_not() { crate::basic::part_of_a_run(format()); }
                #[test]
                fn a_gather_has_the_levels() { crate::gather::levels(format()); }
                #[test]
                fn two_threads_split_one_leaf() { crate::preempted::two_splits(format()); }
                #[test]
                fn unmapped_pages_stay_unmapped() { crate::preempted::gone_stays_gone(format()); }
                #[test]
                fn two_threads_map_neighbours() { crate::preempted::two_maps(format()); }
                #[test]
                fn every_empty_table_is_reclaimed() { crate::reclaimed::all(format()); }
                #[test]
                fn empty_tables_on_a_path_are_reclaimed() { crate::reclaimed::on_the_path(format()); }
            }
        )*
    };
}

conformance! {
    stage1_4k_32: stage1(12, 32, 40);
    stage1_4k_36: stage1(12, 36, 48);
    stage1_4k_40: stage1(12, 40, 48);
    stage1_4k_42: stage1(12, 42, 48);
    stage1_4k_44: stage1(12, 44, 48);
    stage1_4k_48: stage1(12, 48, 48);
    stage1_4k_52: stage1(12, 52, 52);
    stage1_16k_32: stage1(14, 32, 40);
    stage1_16k_36: stage1(14, 36, 48);
    stage1_16k_40: stage1(14, 40, 48);
    stage1_16k_42: stage1(14, 42, 48);
    stage1_16k_44: stage1(14, 44, 48);
    stage1_16k_48: stage1(14, 48, 48);
    stage1_16k_52: stage1(14, 52, 52);
    stage1_64k_32: stage1(16, 32, 40);
    stage1_64k_36: stage1(16, 36, 48);
    stage1_64k_40: stage1(16, 40, 48);
    stage1_64k_42: stage1(16, 42, 48);
    stage1_64k_44: stage1(16, 44, 48);
    stage1_64k_48: stage1(16, 48, 48);
    stage1_64k_52: stage1(16, 52, 52);
    stage1_4k_48_upper: stage1_upper(12, 48);
    stage1_64k_42_upper: stage1_upper(16, 42);
    stage1_4k_plain: stage1_without_runs(12, 48);
    stage1_4k_33_small_root: stage1(12, 33, 40);
    stage1_16k_30_one_run: stage1(14, 30, 40);
    stage2_4k_32: stage2(12, 32, 40);
    stage2_4k_34_one_run: stage2(12, 34, 40);
    stage2_4k_36: stage2(12, 36, 48);
    stage2_4k_40: stage2(12, 40, 48);
    stage2_4k_42: stage2(12, 42, 48);
    stage2_4k_44: stage2(12, 44, 48);
    stage2_4k_48: stage2(12, 48, 48);
    stage2_4k_52: stage2(12, 52, 52);
    stage2_16k_28_small_root: stage2(14, 28, 40);
    stage2_16k_32: stage2(14, 32, 40);
    stage2_16k_36: stage2(14, 36, 48);
    stage2_16k_40: stage2(14, 40, 48);
    stage2_16k_42: stage2(14, 42, 48);
    stage2_16k_44: stage2(14, 44, 48);
    stage2_16k_48: stage2(14, 48, 48);
    stage2_16k_52: stage2(14, 52, 52);
    stage2_64k_33_small_root: stage2(16, 33, 40);
    stage2_64k_32: stage2(16, 32, 40);
    stage2_64k_36: stage2(16, 36, 48);
    stage2_64k_40: stage2(16, 40, 48);
    stage2_64k_42: stage2(16, 42, 48);
    stage2_64k_44: stage2(16, 44, 48);
    stage2_64k_48: stage2(16, 48, 48);
    stage2_64k_52: stage2(16, 52, 52);
    vtd_second_32: vtd_second(32);
    vtd_second_36: vtd_second(36);
    vtd_second_39: vtd_second(39);
    vtd_second_40: vtd_second(40);
    vtd_second_42: vtd_second(42);
    vtd_second_44: vtd_second(44);
    vtd_second_48: vtd_second(48);
    vtd_second_52: vtd_second(52);
    vtd_second_57: vtd_second(57);
    vtd_first_4_levels: vtd_first(false);
    vtd_first_5_levels: vtd_first(true);
    x86_64_4_levels: x86_64(false);
    x86_64_5_levels: x86_64(true);
    amd_v1_3_levels: amd_v1(3);
    amd_v1_4_levels: amd_v1(4);
    amd_v1_5_levels: amd_v1(5);
    amd_v1_6_levels: amd_v1(6);
    amd_v1_6_levels_512g: amd_v1_large(6);
    riscv_sv39: riscv(39);
    riscv_sv48: riscv(48);
    riscv_sv57: riscv(57);
}

/// Returns a writable `Prot` that every format can express.
fn read_write(format: &impl Format) -> longshore_pagetable::Prot {
    assert!(format.attributes(longshore_pagetable::Prot::READ_WRITE).is_some());
    longshore_pagetable::Prot::READ_WRITE
}
