//! A front-end's memory in a space: its table, its IOTLB and its log.
#![cfg(not(any(loom, miri)))]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use longshore_access::{
    CLIENT_TABLE_BYTES_MAX, Error, ReadOnly, Reason, Session, Space, SpaceConfig,
};
use longshore_mem::{FileOffset, GuestPhys, Iova};
use longshore_pagetable::Prot;
use longshore_sys::memfd::{self, Backing};
use longshore_vhost_user::{
    IOTLB_ENTRIES_MAX, MemoryError, REGIONS_MAX, SpaceMemory, TABLE_BYTES_MAX, TableRegion,
    Translation, UserAddr,
};

const PAGE: u64 = 4096;
const LEN: u64 = 16 * PAGE;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f12_3456_7000;
/// Covers `GUEST + 2 * LEN`.
const LOG_BYTES: u64 = (GUEST + 2 * LEN) / PAGE / 8;

fn file(len: u64) -> File {
    let file = memfd::create("front-end", Backing::Shmem).unwrap();
    memfd::set_len(&file, len).unwrap();
    File::from(file)
}

/// Returns region `index` of the file, of `LEN` bytes.
fn region(file: &File, index: u64) -> TableRegion<'_> {
    TableRegion {
        guest_phys: GuestPhys::new(GUEST + index * LEN),
        len_bytes: LEN,
        user: UserAddr::new(USER + index * LEN),
        file: file.as_fd(),
        offset: FileOffset::new(index * LEN),
    }
}

fn translated(file: &File) -> SpaceMemory {
    let mut memory = SpaceMemory::new(Space::new().unwrap());
    memory.set_translation(Translation::Iotlb).unwrap();
    memory.set_table(&[region(file, 0), region(file, 1)]).unwrap();
    memory
}

/// Returns a file in which each page begins with its number.
fn numbered() -> File {
    let file = file(2 * LEN);
    for page in 0..2 * LEN / PAGE {
        file.write_all_at(&page.to_ne_bytes(), page * PAGE).unwrap();
    }
    file
}

fn at(session: &Session, iova: u64) -> Result<u64, Reason> {
    session.read_obj(Iova::new(iova)).map_err(|fault| fault.reason)
}

#[test]
fn a_table_is_mapped_one_to_one_and_replaced_as_a_whole() {
    let file = numbered();
    let mut memory = SpaceMemory::new(Space::new().unwrap());
    let session = memory.space().session();
    assert_eq!(at(&session, GUEST), Err(Reason::Unmapped));
    memory.set_table(&[region(&file, 0), region(&file, 1)]).unwrap();
    for page in 0..2 * LEN / PAGE {
        assert_eq!(at(&session, GUEST + page * PAGE), Ok(page));
    }
    assert_eq!(at(&session, GUEST + 2 * LEN), Err(Reason::Unmapped));
    // By the front-end's addresses, as for rings.
    let find = |memory: &SpaceMemory, user, len| {
        memory.guest_phys_of(UserAddr::new(user), len).map(GuestPhys::raw).ok()
    };
    assert_eq!(find(&memory, USER + LEN + 5, 7), Some(GUEST + LEN + 5));
    assert_eq!(find(&memory, USER, LEN), Some(GUEST));
    assert_eq!(find(&memory, USER, LEN + 1), None, "not across two regions");
    assert_eq!(find(&memory, USER - 1, 1), None);
    assert_eq!(find(&memory, USER + 2 * LEN, 1), None);
    // A refused table changes nothing.
    let wrong = TableRegion { len_bytes: PAGE + 1, ..region(&file, 1) };
    let refused = memory.set_table(&[region(&file, 0), wrong]).unwrap_err();
    assert!(matches!(refused, MemoryError::BadRange { .. }), "{refused}");
    let no_memory = File::open("/dev/null").unwrap();
    let refused = memory.set_table(&[region(&file, 0), region(&no_memory, 1)]).unwrap_err();
    assert!(matches!(refused, MemoryError::Space(_)), "{refused}");
    let many = vec![region(&file, 0); REGIONS_MAX + 1];
    assert!(matches!(memory.set_table(&many), Err(MemoryError::TooManyRegions { .. })));
    assert_eq!((at(&session, GUEST), memory.mapped_count()), (Ok(0), 2));
    // The same region at another address.
    let moved = TableRegion { guest_phys: GuestPhys::new(0), ..region(&file, 1) };
    memory.set_table(&[moved]).unwrap();
    assert_eq!((at(&session, 0), at(&session, GUEST)), (Ok(16), Err(Reason::Unmapped)));
    memory.reset().unwrap();
    assert_eq!((at(&session, 0), memory.mapped_count()), (Err(Reason::Unmapped), 0));
}

#[test]
fn translations_are_exactly_those_of_the_front_end() {
    let file = numbered();
    let mut memory = translated(&file);
    let session = memory.space().session();
    assert_eq!(at(&session, GUEST), Err(Reason::Unmapped), "nothing is mapped one to one");
    let user = |page: u64| UserAddr::new(USER + page * PAGE);
    let iova = |page: u64| Iova::new(0xffff_0000 + page * PAGE);
    memory.iotlb_update(iova(0), PAGE, user(20), Prot::READ).unwrap();
    memory.iotlb_update(iova(1), 2 * PAGE, user(3), Prot::READ_WRITE).unwrap();
    let read = |page: u64| at(&session, iova(page).raw());
    assert_eq!([0, 1, 2, 3].map(read), [Ok(20), Ok(3), Ok(4), Err(Reason::Unmapped)]);
    let write = |page: u64| session.write_obj(iova(page), page).map_err(|fault| fault.reason);
    assert_eq!((write(0), write(1)), (Err(Reason::Permission), Ok(())));
    // More permissions, by another update.
    memory.iotlb_update(iova(0), PAGE, user(20), Prot::READ_WRITE).unwrap();
    assert_eq!((write(0), memory.mapped_count()), (Ok(()), 2));
    // An update of one page of two: the rest of the old translation may be dropped, but must not be
    // wrong.
    memory.iotlb_update(iova(2), PAGE, user(7), Prot::READ_WRITE).unwrap();
    assert_eq!([1, 2].map(read), [Err(Reason::Unmapped), Ok(7)]);
    // Invalidations: of a range without translations, of no bytes, within a page, and of all addresses.
    memory.iotlb_invalidate(iova(3), PAGE).unwrap();
    memory.iotlb_invalidate(iova(2), 0).unwrap();
    assert_eq!(memory.mapped_count(), 2);
    memory.iotlb_invalidate(Iova::new(iova(0).raw() + 17), 1).unwrap();
    assert_eq!([0, 2].map(read), [Err(Reason::Unmapped), Ok(7)]);
    memory.iotlb_invalidate(Iova::new(1), u64::MAX).unwrap();
    assert_eq!((read(2), memory.mapped_count()), (Err(Reason::Unmapped), 0));
    // Without an IOMMU no translations remain.
    memory.set_translation(Translation::Identity).unwrap();
    assert_eq!(at(&session, GUEST + 20 * PAGE), Ok(0));
    let refused = memory.iotlb_update(iova(0), PAGE, user(0), Prot::READ).unwrap_err();
    assert!(matches!(refused, MemoryError::NotTranslated));
}

#[test]
fn an_invalidation_waits_for_a_thread_that_reads() {
    let file = numbered();
    let mut memory = translated(&file);
    let iova = Iova::new(0x5000);
    memory.iotlb_update(iova, PAGE, UserAddr::new(USER), Prot::READ).unwrap();
    let (space, is_over) = (memory.space().clone(), AtomicBool::new(false));
    let (pinned, is_pinned) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let session = space.session();
            let held = session.pin(iova, 8, ReadOnly, |_| {
                pinned.send(()).unwrap();
                // Long enough for the other thread to invalidate, and to return too early.
                thread::sleep(std::time::Duration::from_millis(200));
                assert!(!is_over.load(Ordering::SeqCst), "invalidated while it was pinned");
            });
            held.unwrap();
        });
        is_pinned.recv().unwrap();
        memory.iotlb_invalidate(iova, PAGE).unwrap();
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(at(&memory.space().session(), 0x5000), Err(Reason::Unmapped));
}

#[test]
fn translations_beyond_the_limit_drop_all_earlier_ones() {
    let file = numbered();
    let mut memory = translated(&file);
    let session = memory.space().session();
    for page in 0..IOTLB_ENTRIES_MAX as u64 {
        let user = UserAddr::new(USER + page % 32 * PAGE);
        memory.iotlb_update(Iova::new(page * PAGE), PAGE, user, Prot::READ).unwrap();
    }
    assert_eq!((memory.mapped_count(), at(&session, 33 * PAGE)), (IOTLB_ENTRIES_MAX, Ok(1)));
    let one_more = Iova::new(IOTLB_ENTRIES_MAX as u64 * PAGE);
    memory.iotlb_update(one_more, PAGE, UserAddr::new(USER), Prot::READ).unwrap();
    assert_eq!((memory.mapped_count(), at(&session, 33 * PAGE)), (1, Err(Reason::Unmapped)));
    assert_eq!(at(&session, one_more.raw()), Ok(0));
}

/// Returns the pages that are marked in the log, relative to the first region.
fn marked(log: &File) -> Vec<u64> {
    let mut bytes = vec![0; LOG_BYTES as usize];
    log.read_exact_at(&mut bytes, 0).unwrap();
    let is_set = |page: &u64| bytes[*page as usize / 8] >> (page % 8) & 1 != 0;
    (0..8 * LOG_BYTES).filter(is_set).map(|page| page - GUEST / PAGE).collect()
}

#[test]
fn writes_are_logged_by_guest_physical_address_and_counted_if_the_log_vanishes() {
    let (file, log) = (numbered(), file(LOG_BYTES));
    let mut memory = translated(&file);
    let session = memory.space().session();
    let iova = Iova::new(0xabcd_e000);
    let user = UserAddr::new(USER + 18 * PAGE);
    memory.iotlb_update(iova, PAGE, user, Prot::READ_WRITE).unwrap();
    assert!(matches!(memory.log_writes(true), Err(MemoryError::NoLog)));
    let start = FileOffset::new(0);
    let short = memory.set_log(&log, start, LOG_BYTES - 1).unwrap_err();
    assert!(matches!(short, MemoryError::BeyondLog(_)), "{short}");
    let long = memory.set_log(&log, start, LOG_BYTES + 1).unwrap_err();
    assert!(matches!(long, MemoryError::Log { .. }), "{long}");
    memory.set_log(&log, start, LOG_BYTES).unwrap();
    session.write_obj(iova, 1_u8).unwrap();
    assert!(marked(&log).is_empty());
    memory.log_writes(true).unwrap();
    session.write_obj(iova, 2_u8).unwrap();
    assert_eq!(marked(&log), [18]);
    // A region that the log has no bits for.
    let beyond = TableRegion { guest_phys: GuestPhys::new(GUEST + 2 * LEN), ..region(&file, 0) };
    assert!(memory.set_table(&[beyond]).is_err());
    session.write_obj(iova, 3_u8).unwrap();
    assert_eq!(memory.unlogged_count(), 0);
    log.set_len(0).unwrap();
    session.write_obj(iova, 4_u8).unwrap();
    assert_eq!(memory.unlogged_count(), 1);
    // With another log, writes are logged again.
    let log = self::file(LOG_BYTES);
    memory.set_log(&log, start, LOG_BYTES).unwrap();
    session.write_obj(iova, 5_u8).unwrap();
    assert_eq!((marked(&log), memory.unlogged_count()), (vec![18], 1));
    memory.log_writes(false).unwrap();
    log.write_all_at(&[0; LOG_BYTES as usize], 0).unwrap();
    session.write_obj(iova, 6_u8).unwrap();
    assert!(marked(&log).is_empty());
}

/// The size of one table in bytes, which is all that an empty space has.
const TABLE: u64 = 4096;

/// Returns one region of a sparse file, from `guest` on.
fn long_region(file: &File, guest: u64, len_bytes: u64) -> TableRegion<'_> {
    let (guest_phys, user) = (GuestPhys::new(guest), UserAddr::new(USER));
    TableRegion { guest_phys, len_bytes, user, file: file.as_fd(), offset: FileOffset::new(0) }
}

#[test]
fn long_translations_take_a_few_tables_and_lead_to_the_right_bytes() {
    const LONG: u64 = 1 << 38;
    let file = file(LONG);
    let mut memory = SpaceMemory::new(Space::new().unwrap());
    let space = memory.space().clone();
    // One to one.
    memory.set_table(&[long_region(&file, 0x1000, LONG)]).unwrap();
    assert!(space.table_bytes() <= 12 * TABLE, "{}", space.table_bytes());
    memory.set_translation(Translation::Iotlb).unwrap();
    assert_eq!(space.table_bytes(), TABLE);
    // Translations whose addresses are unrelated to the region's.
    for (iova, offset, len) in [
        (0x1000, 0, LONG),
        (0x7000, 0x3000, LONG - 0x3000),
        (0x5432_1000, 0x1234_5000, 1 << 36),
        (0x5432_1000, 0x1234_5000, (2 << 20) + PAGE),
    ] {
        memory
            .iotlb_update(Iova::new(iova), len, UserAddr::new(USER + offset), Prot::READ_WRITE)
            .unwrap();
        assert!(space.table_bytes() <= 12 * TABLE, "{}", space.table_bytes());
        let session = space.session();
        for at in [0, 0x12_3456, len / 2 + 8, len - 8] {
            session.write_obj(Iova::new(iova + at), iova ^ at).unwrap();
            let mut word = [0; 8];
            file.read_exact_at(&mut word, offset + at).unwrap();
            assert_eq!(u64::from_le_bytes(word), iova ^ at);
        }
        assert_eq!(
            session.read_obj::<u8>(Iova::new(iova + len)).unwrap_err().reason,
            Reason::Unmapped
        );
    }
    memory.iotlb_invalidate(Iova::new(0), u64::MAX).unwrap();
    assert_eq!((memory.mapped_count(), space.table_bytes()), (0, TABLE));
    // The region that is attached for a translation is detached with it.
    for round in 0..5_000 {
        let iova = Iova::new(0x1000 * (1 + round % 3));
        memory.iotlb_update(iova, LONG, UserAddr::new(USER), Prot::READ).unwrap();
    }
    assert_eq!(memory.mapped_count(), 1);
    memory.reset().unwrap();
    assert_eq!(space.table_bytes(), TABLE);
}

#[test]
fn writes_by_long_translations_are_logged_by_guest_physical_address() {
    const LONG: u64 = 8 << 20;
    let (memory_file, log_file) = (file(LONG), file((GUEST + LONG) / PAGE / 8));
    let mut memory = SpaceMemory::new(Space::new().unwrap());
    memory.set_translation(Translation::Iotlb).unwrap();
    memory.set_table(&[long_region(&memory_file, GUEST, LONG)]).unwrap();
    memory.set_log(&log_file, FileOffset::new(0), (GUEST + LONG) / PAGE / 8).unwrap();
    memory.log_writes(true).unwrap();
    let (iova, offset) = (0x9000, 0x5000);
    let user = UserAddr::new(USER + offset);
    memory.iotlb_update(Iova::new(iova), LONG - offset, user, Prot::READ_WRITE).unwrap();
    memory.space().session().write(Iova::new(iova + 3 * PAGE), b"here").unwrap();
    let page = (GUEST + offset) / PAGE + 3;
    let mut bits = vec![0; (page / 8 + 2) as usize];
    log_file.read_exact_at(&mut bits, 0).unwrap();
    let marked = |at: u64| bits[(at / 8) as usize] >> (at % 8) & 1 == 1;
    assert!((0..8 * bits.len() as u64).all(|at| marked(at) == (at == page)));
    assert_eq!(memory.unlogged_count(), 0);
}

#[test]
fn translations_beyond_the_limit_of_tables_drop_all_earlier_ones() {
    let config = SpaceConfig::new().with_table_bytes_max(Some(32 * TABLE));
    let file = file(2 * LEN);
    let mut memory = SpaceMemory::new(Space::with_config(config).unwrap());
    memory.set_translation(Translation::Iotlb).unwrap();
    memory.set_table(&[region(&file, 0), region(&file, 1)]).unwrap();
    let mut forgotten = 0;
    for nth in 0..100_u64 {
        let before = memory.mapped_count();
        // Two tables each.
        let iova = Iova::new(nth << 30);
        memory.iotlb_update(iova, PAGE, UserAddr::new(USER), Prot::READ).unwrap();
        assert!(memory.space().table_bytes() <= 32 * TABLE);
        assert_eq!(memory.space().session().read_obj::<u8>(iova), Ok(0));
        forgotten += usize::from(memory.mapped_count() <= before);
    }
    assert_eq!(forgotten, 6, "15 at a time");
}

#[test]
fn a_space_without_a_limit_gets_the_limit_of_a_client() {
    let file = file(2 * LEN);
    let mut memory = translated(&file);
    let mut count = 0;
    // Translations that share no table, until one replaces all earlier ones.
    while memory.mapped_count() == count {
        let iova = Iova::new((count as u64) << 30);
        memory.iotlb_update(iova, PAGE, UserAddr::new(USER), Prot::READ).unwrap();
        assert!(memory.space().table_bytes() <= CLIENT_TABLE_BYTES_MAX);
        count += 1;
    }
    assert_eq!(memory.mapped_count(), 1);
    // Two tables each.
    assert!(count > 8_000 && count < IOTLB_ENTRIES_MAX, "{count}");
    memory.reset().unwrap();
    assert_eq!(memory.space().table_bytes(), TABLE);
}

#[test]
fn tables_that_are_too_long_or_exceed_their_files_are_refused() {
    let file = file(2 * TABLE_BYTES_MAX);
    let mut memory = SpaceMemory::new(Space::new().unwrap());
    let refused = memory.set_table(&[long_region(&file, 0, TABLE_BYTES_MAX + PAGE)]).unwrap_err();
    assert!(matches!(refused, MemoryError::TooLong { .. }), "{refused}");
    let short = File::from(memfd::create("short", Backing::Shmem).unwrap());
    short.set_len(LEN).unwrap();
    for claim in [long_region(&short, 0, LEN + PAGE), region(&short, 1)] {
        let refused = memory.set_table(&[claim]).unwrap_err();
        assert!(matches!(refused, MemoryError::Space(Error::BeyondFile { .. })), "{refused}");
    }
    let log = memory.set_log(&file, FileOffset::new(0), (1 << 33) + 1).unwrap_err();
    assert!(matches!(log, MemoryError::Log { .. }), "{log}");
    memory.set_table(&[long_region(&file, 0, TABLE_BYTES_MAX)]).unwrap();
    // A region far into a file takes only the addresses of its own length.
    let at_end = TableRegion {
        offset: FileOffset::new(2 * TABLE_BYTES_MAX - LEN),
        ..long_region(&file, GUEST, LEN)
    };
    for _ in 0..20 {
        memory.set_table(&[at_end]).unwrap();
    }
    assert_eq!(memory.space().session().read_obj::<u64>(Iova::new(GUEST)), Ok(0));
}
