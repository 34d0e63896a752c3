//! Unmapping in a process that has reached its limit of mappings. The only test of its program, because
//! the limit belongs to the process.
#![cfg(not(miri))]

use std::fs;
use std::os::fd::OwnedFd;

use longshore_mem::{FileOffset, Granule};
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::{self, Backing};

/// The maximum number of mappings; making more takes too long.
const MAPPINGS_MAX: usize = 1 << 20;
const PART_BYTES: u64 = 64 << 20;

fn file(len_bytes: u64) -> OwnedFd {
    let file = memfd::create("map-count", Backing::Shmem).unwrap();
    memfd::set_len(&file, len_bytes).unwrap();
    file
}

/// Returns the number of bytes of addresses that this process has mapped.
fn mapped_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    pages * longshore_sys::page_size_bytes() as u64
}

/// Makes as many mappings as the process may have.
fn fill(file: &OwnedFd) -> Vec<Mapping> {
    let mut all = Vec::with_capacity(MAPPINGS_MAX);
    let page = Granule::new(longshore_sys::page_size_bytes() as u64).unwrap();
    // All map the same page, so that no two of them are merged.
    while let Ok(mapping) = Mapping::of_file(file, page.bytes(), page, Access::ReadWrite) {
        all.push(mapping);
    }
    all
}

#[test]
fn a_process_at_its_limit_of_mappings_loses_no_addresses() {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if limit.trim().parse::<usize>().unwrap() > MAPPINGS_MAX {
        println!("SKIPPED: vm.max_map_count is {}, more than this test makes", limit.trim());
        return;
    }
    let (one, three) = (file(1 << 20), file(3 * PART_BYTES));

    let mut all = fill(&one);
    let full_bytes = mapped_bytes();
    for _ in 0..16 {
        all.pop();
        for _ in 0..16 {
            // This may fail.
            drop(Mapping::of_file(&one, 4096, Granule::SIZE_2M, Access::ReadWrite));
        }
    }
    assert!(mapped_bytes() <= full_bytes, "addresses are lost");
    Mapping::of_file(&one, 4096, Granule::SIZE_2M, Access::ReadWrite).unwrap();
    drop(all);

    // The kernel places each mapping below the previous one, and so merges them.
    let part = |number| {
        let (offset, page) = (FileOffset::new(number * PART_BYTES), Granule::SIZE_4K);
        Mapping::of_file_part(&three, offset, PART_BYTES, page, Access::Read).unwrap()
    };
    let [last, middle, first] = [2, 1, 0].map(part);
    let starts = [&first, &middle, &last].map(|part| part.start().addr().get() as u64);
    if starts.windows(2).any(|pair| pair[0] + PART_BYTES != pair[1]) {
        println!("SKIPPED: the kernel puts mappings elsewhere: {starts:x?}");
        return;
    }
    let before_bytes = mapped_bytes();
    let all = fill(&one);
    let full_bytes = mapped_bytes();
    drop(middle);
    assert_eq!(mapped_bytes(), full_bytes, "the kernel refuses to split a mapping");
    drop(all);
    assert!(mapped_bytes() <= before_bytes - PART_BYTES, "the middle is unmapped later");
}
