//! Dirty logs and dirty bits of sessions: they are exact, and no write is lost while devices run.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "maps memory by its address")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longshore_access::dirty::{DirtyLog, ExternalLog, Log};
use longshore_access::{
    Error, Logs, OnUnmap, ProcessMemory, ReadWrite, Region, RegionAccess, Session, Space,
    SpaceConfig, WriteOnly,
};
use longshore_iov::{Cursor, Source};
use longshore_mem::{AddrRange, Address, BusAddr, FileOffset, Granule, GuestPhys, Iova};
use longshore_pagetable::Prot;
use longshore_sys::memfd::{self, Backing};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;
const START: u64 = 0x4000_0000;
const GUEST: u64 = 0x1_0000_0000;

fn iova(page: u64) -> Iova {
    Iova::new(START + page * PAGE)
}

fn range<A: Address>(start: u64, pages: u64) -> AddrRange<A> {
    AddrRange::new(A::from_raw(start), pages * PAGE).unwrap()
}

fn memory() -> Arc<Region> {
    let file = memfd::create("logged", Backing::Shmem).unwrap();
    memfd::set_len(&file, PAGES * PAGE).unwrap();
    let len = PAGES * PAGE;
    let region = Region::map_file(&file, FileOffset::new(0), len, RegionAccess::ReadWrite);
    Arc::new(region.unwrap().at_guest_phys(GuestPhys::new(GUEST)))
}

fn space_of(region: &Arc<Region>, config: SpaceConfig) -> Space {
    let space = Space::with_config(config).unwrap();
    space.attach(region).unwrap();
    space.map(iova(0), region, 0, PAGES * PAGE, Prot::READ_WRITE).unwrap();
    space
}

/// Writes one page in each way, every second page from page 1 on, and returns the written pages.
fn write_in_each_way(session: &Session) -> BTreeSet<u64> {
    let at = |way: u64| iova(1 + 2 * way);
    session.write(at(0), &[1; 100]).unwrap();
    session.write_obj(at(1), 1u64).unwrap();
    session.fill(at(2), 1, 100).unwrap();
    let slices = [std::io::IoSlice::new(b"some bytes")];
    session.write_iter(at(3), &mut Cursor::<Source>::own_vec(&slices), 10).unwrap();
    session.store(at(4), 1u32, Ordering::Relaxed).unwrap();
    session.fetch_or(at(5), 1u16).unwrap();
    session.pin(at(6), 8, WriteOnly, |view| view.write(0, &[1; 8])).unwrap().unwrap();
    session.pin(at(7), 8, ReadWrite, |_| ()).unwrap();
    drop(session.lease(at(8), 8, WriteOnly, OnUnmap::Wait).unwrap());
    // A write that ends early.
    session.write(iova(PAGES - 1), &[1; 2 * PAGE as usize]).unwrap_err();
    // Accesses that do not write.
    session.read(iova(30), &mut [0; 100]).unwrap();
    session.load::<u8>(iova(32), Ordering::Acquire).unwrap();
    session.pin(iova(34), 8, longshore_access::ReadOnly, |_| ()).unwrap();
    (0..9).map(|way| 1 + 2 * way).chain([PAGES - 1]).collect()
}

fn pages_of<A: Address>(runs: &[AddrRange<A>], start: u64) -> BTreeSet<u64> {
    let pages = |run: &AddrRange<A>| {
        let first = (run.start().raw() - start) / PAGE;
        first..first + run.len() / PAGE
    };
    runs.iter().flat_map(pages).collect()
}

fn collected<A: Address>(space: &Space, log: &DirtyLog<A>, start: u64) -> BTreeSet<u64> {
    let mut runs = Vec::new();
    space.collect(log, log.covers(), |run| runs.push(run)).unwrap();
    pages_of(&runs, start)
}

#[test]
fn writes_of_every_kind_are_logged_and_reads_are_not() {
    let region = memory();
    let space = space_of(&region, SpaceConfig::new());
    let session = space.session();
    let by_iova = Arc::new(DirtyLog::new(Granule::SIZE_4K, range(START, PAGES)).unwrap());
    let by_guest = Arc::new(DirtyLog::new(Granule::SIZE_4K, range(GUEST, PAGES)).unwrap());
    let logs = Logs::default()
        .with_iova(Log::Internal(Arc::clone(&by_iova)))
        .with_guest_phys(Log::Internal(Arc::clone(&by_guest)));
    // The logs are off.
    write_in_each_way(&session);
    assert!(collected(&space, &by_iova, START).is_empty());
    // The logs are on, and the TLB has entries from before.
    space.set_logs(logs).unwrap();
    assert!(matches!(space.logs().by_iova, Log::Internal(_)));
    for _ in 0..3 {
        let expected = write_in_each_way(&session);
        assert_eq!(collected(&space, &by_iova, START), expected);
        assert_eq!(collected(&space, &by_guest, GUEST), expected);
        assert!(collected(&space, &by_iova, START).is_empty(), "the second collection is empty");
    }
    // The logs are off again.
    space.set_logs(Logs::default()).unwrap();
    write_in_each_way(&session);
    assert!(collected(&space, &by_iova, START).is_empty());
    assert_eq!(space.counters().unlogged, 0);
}

#[test]
fn writes_to_remote_regions_are_logged() {
    // The stack of a process that waits for its standard input.
    let mut command = Command::new("cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // After it has copied a byte, its stack does not move any more.
    child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let end = u64::from_str_radix(stack.split([' ', '-']).nth(1).unwrap(), 16).unwrap();
    let pid = child.id();
    // SAFETY: it is the stack of another program, which shares no memory with this one.
    let remote = Arc::new(unsafe { ProcessMemory::open(pid, end - 4 * PAGE).unwrap().writable() });
    let region = Region::remote(remote, 4 * PAGE).unwrap().at_guest_phys(GuestPhys::new(GUEST));
    let (region, space) = (Arc::new(region), Space::new().unwrap());
    space.attach(&region).unwrap();
    space.map(iova(0), &region, 0, 4 * PAGE, Prot::READ_WRITE).unwrap();
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range(GUEST, 4)).unwrap());
    let logs = Logs::default().with_guest_phys(Log::Internal(Arc::clone(&log)));
    space.set_logs(logs).unwrap();
    let session = space.session();
    session.write(iova(1), &[1; 8]).unwrap();
    let slices = [std::io::IoSlice::new(b"some bytes")];
    session.write_iter(iova(3), &mut Cursor::<Source>::own_vec(&slices), 10).unwrap();
    assert_eq!(collected(&space, &log, GUEST), [1, 3].into());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_external_log_has_the_bits_of_the_written_pages() {
    let region = memory();
    let space = space_of(&region, SpaceConfig::new());
    let bits: &'static [AtomicU64] =
        Vec::leak((0..(GUEST / PAGE + PAGES) / 64).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let external = |words: usize| {
        let start = NonNull::from(bits).cast();
        // SAFETY: the words were leaked, and are accessed by atomics only.
        let log = unsafe { ExternalLog::from_raw_parts(start, words * 8, ()) };
        Logs::default().with_guest_phys(Log::External(Arc::new(log)))
    };
    let refused = space.set_logs(external(bits.len() - 1));
    assert!(matches!(refused, Err(Error::BeyondLog { .. })), "{refused:?}");
    space.set_logs(external(bits.len())).unwrap();
    let session = space.session();
    let expected = write_in_each_way(&session);
    let word = bits[(GUEST / PAGE / 64) as usize].load(Ordering::Acquire);
    assert_eq!((0..64).filter(|bit| word >> bit & 1 != 0).collect::<BTreeSet<u64>>(), expected);
    // A region beyond the log cannot be attached.
    let file = memfd::create("beyond", Backing::Shmem).unwrap();
    memfd::set_len(&file, PAGE).unwrap();
    let beyond =
        Region::map_file(&file, FileOffset::new(0), PAGE, RegionAccess::ReadWrite).unwrap();
    let beyond = Arc::new(beyond.at_guest_phys(GuestPhys::new(GUEST + PAGES * PAGE)));
    assert!(matches!(space.attach(&beyond), Err(Error::BeyondLog { .. })));
    let beyond =
        Region::map_file(&file, FileOffset::new(0), PAGE, RegionAccess::ReadWrite).unwrap();
    let beyond = Arc::new(beyond.at_guest_phys(GuestPhys::new(u64::MAX - 0x7ff)));
    assert!(matches!(space.attach(&beyond), Err(Error::BeyondLog { .. })));
}

#[test]
fn dirty_bits_are_set_as_hardware_sets_them() {
    let region = memory();
    let space = space_of(&region, SpaceConfig::new().with_dirty_bits(true));
    let session = space.session();
    let read = |clear| {
        let mut runs = Vec::new();
        space.read_dirty(iova(0), PAGES * PAGE, clear, |run| runs.push(run)).unwrap();
        pages_of(&runs, START)
    };
    assert!(read(false).is_empty());
    for _ in 0..3 {
        let expected = write_in_each_way(&session);
        assert_eq!(read(false), expected);
        assert_eq!(read(true), expected);
        assert!(read(true).is_empty());
    }
    let none = space_of(&memory(), SpaceConfig::new());
    assert!(matches!(none.read_dirty(iova(0), PAGE, true, |_| ()), Err(Error::Table { .. })));
    // A log and dirty bits at the same time.
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range(START, PAGES)).unwrap());
    let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
    space.set_logs(logs).unwrap();
    let expected = write_in_each_way(&session);
    assert_eq!((collected(&space, &log, START), read(true)), (expected.clone(), expected));
}

fn internal(range: AddrRange<Iova>) -> (Arc<DirtyLog<Iova>>, Logs) {
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range).unwrap());
    (Arc::clone(&log), Logs::default().with_iova(Log::Internal(log)))
}

fn read_dirty(space: &Space, clear: bool) -> BTreeSet<u64> {
    let mut runs = Vec::new();
    space.read_dirty(iova(0), PAGES * PAGE, clear, |run| runs.push(run)).unwrap();
    pages_of(&runs, START)
}

#[test]
fn each_collection_reports_the_pages_of_live_writable_leases() {
    let space = space_of(&memory(), SpaceConfig::new());
    let session = space.session();
    let (log, logs) = internal(range(START, PAGES));
    // A lease from before the log.
    let before = session.lease(iova(9), 16, WriteOnly, OnUnmap::Wait).unwrap();
    space.set_logs(logs.clone()).unwrap();
    let lease = session.lease(iova(3), 2 * PAGE as usize, ReadWrite, OnUnmap::Wait).unwrap();
    let _read = session.lease(iova(7), 8, longshore_access::ReadOnly, OnUnmap::Wait).unwrap();
    for _ in 0..3 {
        lease.view().write(0, b"at any time").unwrap();
        assert_eq!(collected(&space, &log, START), [3, 4, 9].into());
    }
    lease.view().write(0, b"at the end").unwrap();
    drop(lease);
    assert_eq!(collected(&space, &log, START), [3, 4, 9].into());
    assert_eq!(collected(&space, &log, START), [9].into());
    // A log that is removed has the writes until then.
    before.view().write(0, b"once more").unwrap();
    log.clear(log.covers());
    space.set_logs(Logs::default()).unwrap();
    drop(before);
    assert_eq!(collected(&space, &log, START), [9].into());
}

#[test]
fn log_leases_marks_live_leases_in_an_external_log() {
    let region = memory();
    let space = space_of(&region, SpaceConfig::new());
    let bits: &'static [AtomicU64] =
        Vec::leak((0..(GUEST / PAGE + PAGES) / 64).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    // SAFETY: the words were leaked, and are accessed by atomics only.
    let log =
        unsafe { ExternalLog::from_raw_parts(NonNull::from(bits).cast(), bits.len() * 8, ()) };
    let by_guest_phys = Log::External(Arc::new(log));
    space.set_logs(Logs::default().with_guest_phys(by_guest_phys)).unwrap();
    let lease = space.session().lease(iova(5), 8, WriteOnly, OnUnmap::Wait).unwrap();
    let word = &bits[(GUEST / PAGE / 64) as usize];
    lease.view().write(0, b"unseen").unwrap();
    assert_eq!(word.swap(0, Ordering::AcqRel), 0);
    for _ in 0..2 {
        space.log_leases();
        assert_eq!(word.swap(0, Ordering::AcqRel), 1 << 5);
    }
    drop(lease);
    assert_eq!(word.load(Ordering::Acquire), 1 << 5);
}

#[test]
fn the_pages_of_a_writable_lease_are_dirty_while_it_lives() {
    let config = SpaceConfig::new().with_dirty_bits(true);
    let space = space_of(&memory(), config);
    let session = space.session();
    let lease = session.lease(iova(3), 2 * PAGE as usize, WriteOnly, OnUnmap::Wait).unwrap();
    session.write(iova(20), &[1; 8]).unwrap();
    assert_eq!(read_dirty(&space, true), [3, 4, 20].into());
    for _ in 0..3 {
        lease.view().write(0, b"at any time").unwrap();
        assert_eq!(read_dirty(&space, true), [3, 4].into());
    }
    lease.view().write(0, b"at the end").unwrap();
    drop(lease);
    assert_eq!(read_dirty(&space, true), [3, 4].into());
    assert!(read_dirty(&space, true).is_empty());
}

#[test]
fn each_page_of_a_write_is_dirty_also_if_a_log_is_on() {
    let config = SpaceConfig::new().with_dirty_bits(true);
    let space = space_of(&memory(), config);
    let session = space.session();
    let (_, logs) = internal(range(START, PAGES));
    for logs in [Logs::default(), logs] {
        space.set_logs(logs).unwrap();
        // The second walk in a window of the TLB merges neighbouring pages.
        session.read(iova(0), &mut [0; 8]).unwrap();
        session.read(iova(1), &mut [0; 8]).unwrap();
        session.write(iova(2), &[1; 3 * PAGE as usize]).unwrap();
        session.pin(iova(6), 2 * PAGE as usize, WriteOnly, |_| ()).unwrap();
        session.fill(iova(9), 1, 2 * PAGE as usize).unwrap();
        assert_eq!(read_dirty(&space, true), [2, 3, 4, 6, 7, 9, 10].into());
    }
}

#[test]
fn unmapping_reports_the_written_pages() {
    let config = SpaceConfig::new().with_dirty_bits(true);
    let region = memory();
    let space = space_of(&region, config);
    let session = space.session();
    let expected = write_in_each_way(&session);
    let mut runs = Vec::new();
    space.unmap_dirty(iova(0), PAGES * PAGE, |run| runs.push(run)).unwrap();
    assert_eq!(pages_of(&runs, START), expected);
    assert_eq!(runs.len(), expected.len(), "no two of them are adjacent");

    // Several unmappings of a batch are reported together, and in order.
    for page in 0..8 {
        space.map(iova(page), &region, page * PAGE, PAGE, Prot::READ_WRITE).unwrap();
    }
    for page in [5, 1, 2, 7] {
        session.write_obj(iova(page), 1u8).unwrap();
    }
    let mut batch = space.batch();
    for page in (0..8).rev() {
        if page == 7 {
            batch.unmap(iova(page), PAGE).unwrap();
        } else {
            batch.unmap_dirty(iova(page), PAGE).unwrap();
        }
    }
    assert!(matches!(batch.unmap_dirty(iova(3), PAGE), Err(Error::Table { .. })));
    let mut runs = Vec::new();
    batch.finish_dirty(|run| runs.push(run)).unwrap();
    assert_eq!(runs, [range(iova(1).raw(), 2), range(iova(5).raw(), 1)]);
    batch.finish_dirty(|run| panic!("{run:?} was reported")).unwrap();
    drop(batch);

    let none = space_of(&memory(), SpaceConfig::new());
    let refused = none.unmap_dirty(iova(0), PAGES * PAGE, |_| ());
    assert!(matches!(refused, Err(Error::Table { .. })), "{refused:?}");
    none.unmap(iova(0), PAGES * PAGE).unwrap();
}

/// The dirty bit of a leased page is cleared, and the lease may write until its unmapping revokes it.
#[test]
fn unmapping_reports_the_last_writes_of_a_lease() {
    let config = SpaceConfig::new().with_dirty_bits(true);
    let space = space_of(&memory(), config);
    let session = space.session();
    let kept = Arc::new(std::sync::Mutex::new(None));
    let given_back = Arc::clone(&kept);
    let notify = OnUnmap::Notify(Arc::new(move || drop(given_back.lock().unwrap().take())));
    let lease = session.lease(iova(3), 8, WriteOnly, notify).unwrap();
    *kept.lock().unwrap() = Some(lease);
    assert_eq!(read_dirty(&space, true), [3].into());
    let mut runs = Vec::new();
    space.unmap_dirty(iova(0), PAGES * PAGE, |run| runs.push(run)).unwrap();
    assert_eq!(runs, [range(iova(3).raw(), 1)]);
}

/// One thread maps, writes and unmaps pages while another one reads and clears dirty bits. Each write is
/// reported to one of them.
#[test]
fn no_write_is_lost_between_reading_dirty_bits_and_unmapping() {
    let config = SpaceConfig::new().with_dirty_bits(true);
    let region = memory();
    let space = Space::with_config(config).unwrap();
    space.attach(&region).unwrap();
    let (space, stop, passes) = (&space, &AtomicBool::new(false), &AtomicU64::new(0));
    // `told` has a bit for each page.
    let told = &AtomicU64::new(0);
    let tell = |run: AddrRange<Iova>| {
        for page in pages_of(&[run], START) {
            told.fetch_or(1 << page, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                space.read_dirty(iova(0), 8 * PAGE, true, tell).unwrap();
                passes.fetch_add(1, Ordering::AcqRel);
            }
        });
        let session = space.session();
        let mut missing = 0;
        for round in 0..100 {
            space.map(iova(0), &region, 0, 8 * PAGE, Prot::READ_WRITE).unwrap();
            for page in 0..8 {
                session.write_obj(iova(page), round).unwrap();
            }
            session.park();
            space.unmap_dirty(iova(0), 8 * PAGE, tell).unwrap();
            // After two more passes, the other thread has reported all bits that it has cleared.
            let end = passes.load(Ordering::Acquire) + 2;
            while passes.load(Ordering::Acquire) < end {
                assert!(!reader.is_finished());
                std::thread::yield_now();
            }
            missing |= 0xff & !told.swap(0, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(missing, 0);
    });
}

/// Threads write growing numbers while this thread collects and copies the reported pages. In the end
/// the copy must equal the memory.
fn nothing_is_lost(config: SpaceConfig, mut collect: impl FnMut(&Space, &mut dyn FnMut(u64))) {
    let memory = vec![0u8; (PAGES as usize + 1) * PAGE as usize].leak();
    let bus = (memory.as_mut_ptr().expose_provenance() as u64 + PAGE - 1) & !(PAGE - 1);
    let space = Space::with_config(config).unwrap();
    // SAFETY: the memory was leaked, and is accessed by sessions only.
    unsafe { space.map_raw(iova(0), BusAddr::new(bus), PAGES * PAGE, Prot::READ_WRITE) }.unwrap();
    let (stop, space) = (AtomicBool::new(false), &space);
    let mut copy = vec![0u64; 2 * PAGES as usize];
    let reader = space.session();
    let look = |copy: &mut [u64], page: u64| {
        for word in 0..2 {
            let at = Iova::new(iova(page).raw() + 8 * word);
            copy[(2 * page + word) as usize] = reader.read_obj(at).unwrap();
        }
    };
    let found = std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let stop = &stop;
            scope.spawn(move || {
                let session = space.session();
                let mut number = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    for page in 0..PAGES {
                        number += 1;
                        let at = Iova::new(iova(page).raw() + 8 * thread);
                        session.write_obj(at, number).unwrap();
                    }
                }
            });
        }
        let (mut found, mut rounds) = (0, 0);
        while found < 8 * PAGES || rounds < 300 {
            rounds += 1;
            collect(space, &mut |page| {
                found += 1;
                look(&mut copy, page);
            });
        }
        stop.store(true, Ordering::Relaxed);
        found
    });
    collect(space, &mut |page| look(&mut copy, page));
    let mut now = vec![0; copy.len()];
    (0..PAGES).for_each(|page| look(&mut now, page));
    assert_eq!(copy, now, "after {found} pages");
}

#[test]
fn no_write_is_lost_between_collections() {
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range(START, PAGES)).unwrap());
    let mut is_on = false;
    nothing_is_lost(SpaceConfig::new(), |space, look| {
        if !is_on {
            // The threads write already, so all pages count as new.
            let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
            log.start(|| space.set_logs(logs)).unwrap();
            is_on = true;
            (0..PAGES).for_each(&mut *look);
        }
        let done = space.collect(&log, log.covers(), |run| {
            pages_of(&[run], START).into_iter().for_each(&mut *look);
        });
        done.unwrap();
    });
}

#[test]
fn no_write_is_lost_when_dirty_bits_are_cleared() {
    let config = SpaceConfig::new().with_dirty_bits(true);
    nothing_is_lost(config, |space, look| {
        let read = space.read_dirty(iova(0), PAGES * PAGE, true, |run| {
            pages_of(&[run], START).into_iter().for_each(&mut *look);
        });
        read.unwrap();
    });
}

/// A log in a file begins and ends at any byte. The file is sealed, or else truncated.
#[test]
fn a_log_in_a_file_is_marked_and_survives_its_truncation() {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    const OFFSET: u64 = 4096 + 13;
    const LEN: u64 = 3 * 4096 - 5;
    for is_sealed in [true, false] {
        let file = memfd::create("log", Backing::Shmem).unwrap();
        memfd::set_len(&file, OFFSET + LEN).unwrap();
        memfd::add_seals(&file, memfd::Seals { shrink: is_sealed, ..Default::default() }).unwrap();
        let map =
            |offset, len| ExternalLog::<GuestPhys>::map_file(&file, FileOffset::new(offset), len);
        assert!(map(OFFSET, LEN + 1).is_err() && map(OFFSET, 0).is_err());
        assert!(map(u64::MAX, LEN).is_err() && map(1, u64::MAX).is_err());
        let log = map(OFFSET, LEN).unwrap();
        assert_eq!(log.pages(), LEN * 8);
        let file = File::from(file);
        let mark = |page: u64, pages: u64| log.mark(GuestPhys::new(page * PAGE), pages * PAGE);
        // Marks in whole words, and in the bytes before and after them.
        for (page, pages) in [(0, 1), (1, 7), (20, 200), (LEN * 8 - 30, 30)] {
            mark(page, pages).unwrap();
            let mut bytes = vec![0; LEN as usize];
            file.read_exact_at(&mut bytes, OFFSET).unwrap();
            for other in 0..LEN * 8 {
                let is_set = bytes[other as usize / 8] >> (other % 8) & 1 != 0;
                assert_eq!(is_set, (page..page + pages).contains(&other), "{other}");
            }
            file.write_all_at(&vec![0; LEN as usize], OFFSET).unwrap();
        }
        assert_eq!(mark(LEN * 8, 1).unwrap_err().log_pages, LEN * 8);
        if is_sealed {
            assert!(file.set_len(0).is_err());
            continue;
        }
        file.set_len(2 * 4096).unwrap();
        // The remaining bits are set, and the missing ones return an error.
        mark(5, 1).unwrap();
        let lost = mark(LEN * 8 - 1, 1).unwrap_err();
        assert!(lost.log_pages < LEN * 8, "{lost}");
        let mut burst = log.burst();
        burst.mark(GuestPhys::new((LEN * 8 - 1) * PAGE), 1).unwrap();
        assert!(burst.mark(GuestPhys::new(0), 1).is_err(), "the pending marks are lost");
        drop(burst);
        drop(log);
    }
}
