//! The dirty log: which pages are marked and when, and a log that vanishes.

use std::fs::File;
use std::os::fd::AsFd;

use longshore::vhost_user::wire::number;
use longshore_sys::memfd;

use crate::frontend::{
    AVAILABLE, DATA, Descriptor, Frontend, GUEST, IOVA, LOG_ALL, MEMORY_BYTES, PROTOCOL_FEATURES,
    STATUS, Served, USED, USER, VERSION_1, WRITE, addresses,
};

/// The length of a log that has a bit for each page of memory.
const LOG_BYTES: u64 = (GUEST + MEMORY_BYTES) / 4096 / 8;
/// The offset of the log in its file, which is within a page.
const OFFSET: u64 = 0x1238;

fn log(seals: memfd::Seals) -> File {
    let log = memfd::create("log", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&log, OFFSET + LOG_BYTES).unwrap();
    memfd::add_seals(&log, seals).unwrap();
    File::from(log)
}

fn sealed() -> memfd::Seals {
    memfd::Seals { shrink: true, ..memfd::Seals::default() }
}

fn set_log(frontend: &mut Frontend, log: &File, len_bytes: u64, offset: u64) {
    let payload = [len_bytes, offset].map(u64::to_ne_bytes).concat();
    frontend.send(number::SET_LOG_BASE, &payload, &[log.as_fd()], false);
}

fn start(frontend: &mut Frontend, features: u64, log: &File) {
    set_log(frontend, log, LOG_BYTES, OFFSET);
    let (header, payload) = crate::frontend::receive(&frontend.socket);
    assert!(header.is_reply && header.request == number::SET_LOG_BASE && payload.is_empty());
    frontend.done(number::SET_FEATURES, &(features | LOG_ALL).to_ne_bytes(), &[]);
}

/// Clears the log, and returns the offsets in memory of the pages that were marked.
fn marked(log: &File) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; LOG_BYTES as usize];
    log.read_exact_at(&mut bytes, OFFSET).unwrap();
    log.write_all_at(&vec![0; bytes.len()], OFFSET).unwrap();
    let is_set = |page: &u64| bytes[*page as usize / 8] >> (page % 8) & 1 != 0;
    let pages = (0..LOG_BYTES * 8).filter(is_set);
    pages.map(|page| (page * 4096).checked_sub(GUEST).expect("memory")).collect()
}

/// Returns the pages that a read request into `DATA` marks: used ring, status, data.
fn pages_of_a_read() -> Vec<u64> {
    vec![USED, STATUS & !0xfff, DATA]
}

#[test]
fn written_pages_are_marked_while_logging_is_on() {
    let served = Served::new();
    for seals in [sealed(), memfd::Seals::default()] {
        let log = log(seals);
        let features = PROTOCOL_FEATURES | VERSION_1;
        let mut frontend = Frontend::ready(&served);
        assert_eq!(frontend.read(0, 4096).0, 0);
        start(&mut frontend, features, &log);
        assert!(marked(&log).is_empty());
        for _ in 0..3 {
            assert_eq!(frontend.read(0, 4096).0, 0);
            assert_eq!(marked(&log), pages_of_a_read());
        }
        // The request writes to two pages, one byte to the first of them.
        let part = Descriptor(GUEST + DATA + 0x1fff, 512, WRITE, 0);
        assert_eq!(frontend.request(0, 0, &[part]), 0);
        assert_eq!(marked(&log), [USED, STATUS & !0xfff, DATA + 0x1000, DATA + 0x2000]);
        // A write to the disk writes only a status to memory.
        assert_eq!(frontend.request(1, 0, &[Descriptor(GUEST + DATA, 512, 0, 0)]), 0);
        assert_eq!(marked(&log), [USED, STATUS & !0xfff]);
        frontend.done(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
        assert_eq!(frontend.read(0, 4096).0, 0);
        assert!(marked(&log).is_empty());
        drop(frontend);
        assert_eq!(served.ended(), "closed by the front-end");
    }
    assert_eq!(served.counts.snapshot().ring_errors, 0);
}

#[test]
fn behind_an_iommu_pages_are_marked_by_guest_physical_address() {
    let served = Served::new();
    let log = log(sealed());
    let mut frontend = Frontend::ready_behind_iommu(&served, Frontend::translate);
    let features = PROTOCOL_FEATURES | VERSION_1 | crate::frontend::ACCESS_PLATFORM;
    start(&mut frontend, features, &log);
    // As QEMU sends it: the address for logging is not guest-physical behind an IOMMU.
    frontend.done(number::SET_VRING_ADDR, &addresses(0, 1, IOVA), &[]);
    assert_eq!(frontend.read(0, 4096).0, 0);
    assert_eq!(marked(&log), pages_of_a_read());
    // A new log is set while logging is on. From here on it has all marks.
    let newer = self::log(sealed());
    start(&mut frontend, features, &newer);
    assert_eq!(frontend.read(0, 4096).0, 0);
    assert_eq!((marked(&log), marked(&newer)), (vec![], pages_of_a_read()));
}

/// A flag of the ring turns logging of the used ring on, with an address for it.
#[test]
fn the_used_ring_is_logged_at_its_log_address() {
    let served = Served::new();
    let log = log(sealed());
    let mut frontend = Frontend::ready(&served);
    set_log(&mut frontend, &log, LOG_BYTES, OFFSET);
    crate::frontend::receive(&frontend.socket);
    let mut at = addresses(0, 1, USER);
    // The log address is that of the available ring.
    at[32..].copy_from_slice(&(GUEST + AVAILABLE).to_ne_bytes());
    frontend.done(number::SET_VRING_ADDR, &at, &[]);
    assert_eq!(frontend.read(0, 4096).0, 0);
    assert_eq!(marked(&log), [AVAILABLE]);
}

#[test]
fn a_log_that_is_too_short_is_refused() {
    let served = Served::new();
    for (len_bytes, offset, why) in [
        (LOG_BYTES - 1, OFFSET, "cannot all be marked"),
        (LOG_BYTES + 1, OFFSET, "a dirty log of"),
        (LOG_BYTES, OFFSET + 1, "a dirty log of"),
        (0, OFFSET, "a dirty log of"),
        (u64::MAX, OFFSET, "a dirty log of"),
        (LOG_BYTES, u64::MAX, "a dirty log of"),
    ] {
        let mut frontend = Frontend::ready(&served);
        set_log(&mut frontend, &log(sealed()), len_bytes, offset);
        served.ends_with(why);
    }
    // A file that cannot be mapped.
    let mut frontend = Frontend::ready(&served);
    let event = File::from(longshore_sys::event_fd::create().unwrap());
    set_log(&mut frontend, &event, LOG_BYTES, 0);
    served.ends_with("a dirty log of");
    // No log at all.
    let mut frontend = Frontend::ready(&served);
    let features = PROTOCOL_FEATURES | VERSION_1 | LOG_ALL;
    frontend.refused(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
    assert_eq!(frontend.read(0, 512).0, 0);
}

/// The ring stops with an error, and SIGBUS does not end the process.
#[test]
fn a_log_that_vanishes_breaks_the_ring() {
    let served = Served::new();
    for flags in [0, 1] {
        let log = log(memfd::Seals::default());
        let mut frontend = Frontend::ready(&served);
        start(&mut frontend, PROTOCOL_FEATURES | VERSION_1, &log);
        frontend.done(number::SET_VRING_ADDR, &addresses(0, flags, USER), &[]);
        assert_eq!(frontend.read(0, 4096).0, 0);
        log.set_len(0).unwrap();
        let data = [Descriptor(GUEST + DATA, 4096, WRITE, 0)];
        // The first request may complete before the loss is noticed.
        let goes_on = frontend.try_request(0, 0, &data) && frontend.try_request(0, 0, &data);
        assert!(!goes_on, "the ring continues without logging");
        drop(frontend);
        assert_eq!(served.ended(), "closed by the front-end");
        served.still_serves();
    }
    assert_eq!(served.counts.snapshot().ring_errors, 2);
}
