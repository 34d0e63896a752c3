//! A dirty log takes memory only for marked pages. The only test of its program, because it measures the
//! memory of the whole process.
#![cfg(all(not(loom), not(miri)))]

use std::fs;

use longshore_access::dirty::DirtyLog;
use longshore_mem::{AddrRange, Granule, GuestPhys};

fn resident_bytes() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap()
}

#[test]
fn a_log_of_sixteen_tebibytes_takes_memory_only_for_marked_pages() {
    const MIB: i64 = 1 << 20;
    let range = AddrRange::new(GuestPhys::new(1 << 32), 16 << 40).unwrap();
    let before = resident_bytes();
    // 512 MiB of bits for pages, 8 MiB and 128 KiB of summaries.
    let log = DirtyLog::new(Granule::SIZE_4K, range).unwrap();
    log.collect(range, || {}, |_| {});
    let untouched = resident_bytes() - before;
    assert!(untouched < 2 * MIB, "{untouched} bytes for a log without marks");
    for tebibyte in 0..16 {
        log.mark(GuestPhys::new((1 << 32) + (tebibyte << 40)), 8);
    }
    let done = log.collect(range, || {}, |_| {});
    assert_eq!((done.pages, done.page_words, done.middle_words), (16, 16, 16));
    // With transparent huge pages, each mark may touch 2 MiB of bits, and the first one all summaries.
    let touched = resident_bytes() - before;
    assert!(touched < (16 * 2 + 8 + 4) * MIB, "{touched} bytes for 16 marks");
}
