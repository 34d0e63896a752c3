//! Compares random sequences of operations with a plain map of pages: mappings, bytes read and written,
//! and the address of each fault.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "makes a region of memory that Miri can look at")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use longshore_access::{
    Error, Fault, ReadOnly, ReadWrite, Reason, Region, RemoteFault, RemoteMemory, Session, Space,
    SpaceConfig,
};
use longshore_iov::{Cursor, Dest, Source};
use longshore_mem::{AddrRange, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_pagetable::{Error as TableError, Prot};
use proptest::prelude::*;

const PAGE: u64 = 4096;
/// The number of pages in a block of 2 MiB.
const BLOCK: u64 = 512;
/// The number of pages of a region: slightly more than a block, or a few under Miri, which is slow.
const REGION_PAGES: u64 = if cfg!(miri) { 8 } else { BLOCK + 8 };
const START: u64 = 1 << 40;

/// Remote memory.
struct Asked(Mutex<Vec<u8>>);

impl RemoteMemory for Asked {
    fn read(&self, offset: u64, mut into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        let memory = self.0.lock().unwrap();
        into.write(0, &memory[offset as usize..][..into.len()]).unwrap();
        Ok(())
    }

    fn write(&self, offset: u64, from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        let mut memory = self.0.lock().unwrap();
        from.read(0, &mut memory[offset as usize..][..from.len()]).unwrap();
        Ok(())
    }

    fn cancel(&self, _range: Range<u64>) {}
}

/// Memory of this process, which is freed after the regions.
struct Own {
    start: NonNull<u8>,
    layout: std::alloc::Layout,
}

impl Own {
    fn new(bytes: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(bytes, 1 << 21).unwrap();
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        Self { start, layout }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[derive(Clone, Debug)]
enum Op {
    Map { page: u64, region: usize, offset: u64, pages: u64, prot: Prot },
    Unmap { page: u64, pages: u64 },
    UnmapMany { pages: Vec<u64> },
    Read { session: usize, at: u64, len: usize, how: u8 },
    Write { session: usize, at: u64, len: usize, how: u8, byte: u8 },
    Word { session: usize, at: u64, or: u32 },
    Pin { session: usize, at: u64, len: usize, byte: u8 },
    ReadDirty { page: u64, pages: u64, clear: bool },
    Park { session: usize },
    Renew { session: usize },
}

/// Generates pages: many near each other, and some at the start of a block.
fn some_page() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..12u64, 1 => (BLOCK - 4)..(BLOCK + 4), 1 => Just(BLOCK), 1 => Just(2 * BLOCK)]
}

fn some_len() -> impl Strategy<Value = usize> {
    let long = if cfg!(miri) { 9000usize } else { 40_000 };
    prop_oneof![3 => 0..70usize, 2 => 4000..9000usize, 1 => 0..long]
}

fn some_at() -> impl Strategy<Value = u64> {
    let offset = prop_oneof![Just(0), Just(PAGE - 8), 0..PAGE];
    (some_page(), offset).prop_map(|(page, offset)| page * PAGE + offset)
}

fn some_op() -> impl Strategy<Value = Op> {
    let prot = prop_oneof![
        4 => Just(Prot::READ_WRITE),
        1 => Just(Prot::READ),
        1 => Just(Prot::WRITE),
    ];
    let pages = prop_oneof![4 => 1..6u64, 1 => Just(BLOCK)];
    let offset = prop_oneof![Just(0u64), 0..8u64];
    let session = 0..2usize;
    prop_oneof![
        4 => (some_page(), 0..4usize, offset, pages.clone(), prot).prop_map(
            |(page, region, offset, pages, prot)| Op::Map { page, region, offset, pages, prot }
        ),
        2 => (some_page(), pages.clone()).prop_map(|(page, pages)| Op::Unmap { page, pages }),
        1 => (some_page(), pages, any::<bool>())
            .prop_map(|(page, pages, clear)| Op::ReadDirty { page, pages, clear }),
        1 => prop::collection::vec(some_page(), 0..4).prop_map(|pages| Op::UnmapMany { pages }),
        6 => (session.clone(), some_at(), some_len(), 0..3u8)
            .prop_map(|(session, at, len, how)| Op::Read { session, at, len, how }),
        6 => (session.clone(), some_at(), some_len(), 0..4u8, any::<u8>())
            .prop_map(|(session, at, len, how, byte)| Op::Write { session, at, len, how, byte }),
        1 => (session.clone(), some_at(), any::<u32>())
            .prop_map(|(session, at, or)| Op::Word { session, at, or }),
        1 => (session.clone(), some_at(), some_len(), any::<u8>())
            .prop_map(|(session, at, len, byte)| Op::Pin { session, at, len, byte }),
        1 => session.clone().prop_map(|session| Op::Park { session }),
        1 => session.prop_map(|session| Op::Renew { session }),
    ]
}

/// The expected state.
struct Oracle {
    /// The region, the page in it and the permissions of each mapped page.
    mapped: BTreeMap<u64, (usize, u64, Prot)>,
    content: Vec<Vec<u8>>,
    /// The pages that were written since they were mapped or their dirty bits were cleared.
    dirty: BTreeSet<u64>,
    /// The pages that may be dirty: also those whose write failed, and those in the same block.
    touched: BTreeSet<u64>,
}

const REMOTE: usize = 2;
const ROM: usize = 3;

impl Oracle {
    /// Returns the byte at `at`, or the reason why it cannot be accessed.
    fn byte(&mut self, at: u64, want: Prot) -> Result<&mut u8, Reason> {
        let (region, page, prot) = *self.mapped.get(&(at / PAGE)).ok_or(Reason::Unmapped)?;
        if !prot.contains(want) {
            return Err(Reason::Permission);
        }
        Ok(&mut self.content[region][(page * PAGE + at % PAGE) as usize])
    }

    fn fault(at: u64, done: usize, reason: Reason) -> Fault {
        Fault::new(Iova::new(START + at + done as u64), done, reason)
    }

    fn read(&mut self, at: u64, len: usize) -> (Vec<u8>, Result<(), Fault>) {
        let mut bytes = Vec::new();
        for done in 0..len {
            match self.byte(at + done as u64, Prot::READ) {
                Ok(byte) => bytes.push(*byte),
                Err(reason) => return (bytes, Err(Self::fault(at, done, reason))),
            }
        }
        (bytes, Ok(()))
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Fault> {
        for (done, new) in from.iter().enumerate() {
            match self.byte(at + done as u64, Prot::WRITE) {
                Ok(byte) => *byte = *new,
                Err(reason) => return Err(Self::fault(at, done, reason)),
            }
        }
        Ok(())
    }

    /// Returns the first fault of an access that needs all of a range in this process.
    fn whole(&mut self, at: u64, len: usize, want: Prot) -> Result<(), Fault> {
        for done in 0..len {
            let page = (at + done as u64) / PAGE;
            self.byte(at + done as u64, want).map_err(|reason| Self::fault(at, done, reason))?;
            if self.mapped[&page].0 == REMOTE {
                return Err(Self::fault(at, done, Reason::NotDirect));
            }
        }
        Ok(())
    }
}

struct World {
    space: Space,
    has_dirty_bits: bool,
    regions: Vec<Arc<Region>>,
    sessions: Vec<Session>,
    oracle: Oracle,
    asked: Arc<Asked>,
    /// The memory, which is freed last.
    own: Vec<Own>,
}

impl World {
    fn new(has_dirty_bits: bool) -> Self {
        let bytes = (REGION_PAGES * PAGE) as usize;
        let own: Vec<Own> = (0..3).map(|_| Own::new(bytes)).collect();
        let asked = Arc::new(Asked(Mutex::new(vec![0; bytes])));
        // SAFETY: the memory is freed after the regions are dropped, and only accessed by volatile
        // reads.
        let host = |own: &Own| unsafe { Region::from_raw_parts(own.start, bytes as u64) }.unwrap();
        let remote = Arc::clone(&asked) as Arc<dyn RemoteMemory>;
        let regions = vec![
            Arc::new(host(&own[0])),
            Arc::new(host(&own[1])),
            Arc::new(Region::remote(remote, bytes as u64).unwrap()),
            Arc::new(host(&own[2]).read_only()),
        ];
        let config = SpaceConfig::new().with_dirty_bits(has_dirty_bits);
        let space = Space::with_config(config).unwrap();
        for region in &regions {
            space.attach(region).unwrap();
        }
        let sessions = vec![space.session(), space.session()];
        let oracle = Oracle {
            mapped: BTreeMap::new(),
            content: vec![vec![0; bytes]; 4],
            dirty: BTreeSet::new(),
            touched: BTreeSet::new(),
        };
        Self { space, has_dirty_bits, regions, sessions, oracle, asked, own }
    }

    /// Records a write of `len` bytes at `at`, of which the first `done` were written.
    fn note_write(&mut self, at: u64, len: usize, done: usize) {
        if done != 0 {
            self.oracle.dirty.extend(at / PAGE..=(at + done as u64 - 1) / PAGE);
        }
        for page in at / PAGE..(at + len as u64).div_ceil(PAGE) {
            let leaf = self.space.walker().lookup(Self::iova(page * PAGE)).unwrap();
            self.oracle.touched.extend(leaf.into_iter().flat_map(|leaf| {
                (leaf.iova.raw() - START) / PAGE..=(leaf.last().raw() - START) / PAGE
            }));
        }
    }

    /// Checks that `told` has all dirty pages of `pages`, and only pages that may be dirty.
    fn check_dirty(&self, pages: Range<u64>, told: &[AddrRange<Iova>]) {
        let told: BTreeSet<u64> = told
            .iter()
            .flat_map(|run| {
                let first = (run.start().raw() - START) / PAGE;
                first..first + run.len() / PAGE
            })
            .collect();
        let missing = self.oracle.dirty.range(pages).find(|page| !told.contains(page));
        assert_eq!(missing, None, "in {told:?}");
        let stray = told.iter().find(|page| !self.oracle.touched.contains(page));
        assert_eq!(stray, None);
    }

    fn read_dirty(&mut self, page: u64, pages: u64, clear: bool) {
        let mut told = Vec::new();
        let iova = Self::iova(page * PAGE);
        let outcome = self.space.read_dirty(iova, pages * PAGE, clear, |run| told.push(run));
        assert_eq!(outcome.is_ok(), self.has_dirty_bits, "{outcome:?}");
        if outcome.is_err() {
            return;
        }
        self.check_dirty(page..page + pages, &told);
        if clear {
            for run in told {
                let first = (run.start().raw() - START) / PAGE;
                for page in first..first + run.len() / PAGE {
                    self.oracle.dirty.remove(&page);
                    self.oracle.touched.remove(&page);
                }
            }
        }
    }

    fn iova(at: u64) -> Iova {
        Iova::new(START + at)
    }

    fn map(&mut self, page: u64, region: usize, offset: u64, pages: u64, prot: Prot) {
        let (iova, len) = (Self::iova(page * PAGE), pages * PAGE);
        let outcome = self.space.map(iova, &self.regions[region], offset * PAGE, len, prot);
        let taken = (page..page + pages).find(|page| self.oracle.mapped.contains_key(page));
        match outcome {
            Ok(()) => {
                assert_eq!(taken, None);
                assert!(offset + pages <= REGION_PAGES);
                assert!(region != ROM || !prot.contains(Prot::WRITE));
                for at in 0..pages {
                    self.oracle.mapped.insert(page + at, (region, offset + at, prot));
                }
            }
            Err(Error::ReadOnlyRegion) => {
                assert!(region == ROM && prot.contains(Prot::WRITE));
            }
            Err(Error::OutsideRegion { .. }) => assert!(offset + pages > REGION_PAGES),
            Err(Error::Table { source: TableError::Exists { at }, .. }) => {
                assert_eq!(Some(at), taken.map(|page| Self::iova(page * PAGE)));
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Checks the outcome of an unmapping, and updates the expected state.
    fn unmapped(&mut self, page: u64, pages: u64, outcome: &Result<(), Error>) {
        let range = page..page + pages;
        let is_whole = range.clone().all(|page| self.oracle.mapped.contains_key(&page));
        match outcome {
            Ok(()) => {
                assert!(is_whole);
                for page in range {
                    self.oracle.mapped.remove(&page);
                    self.oracle.dirty.remove(&page);
                    self.oracle.touched.remove(&page);
                }
            }
            Err(Error::Table { source: TableError::Hole { .. }, .. }) => assert!(!is_whole),
            // The page table decides whether pages are in a block.
            Err(Error::Table { source: TableError::PartialBlock { .. }, .. }) => {
                assert!(!(pages | page).is_multiple_of(BLOCK));
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn read(&mut self, session: usize, at: u64, len: usize, how: u8) {
        let (session, iova) = (&self.sessions[session], Self::iova(at));
        let mut into = vec![0xee; len];
        let outcome = match how {
            0 => session.read(iova, &mut into),
            1 => {
                let (low, high) = into.split_at_mut(len / 3);
                let mut slices = [IoSliceMut::new(low), IoSliceMut::new(high)];
                let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
                session.read_iter(iova, &mut cursor, len).map(|done| assert_eq!(done, len))
            }
            _ if len >= 8 => {
                into.truncate(8);
                session.read_obj::<u64>(iova).map(|word| into.copy_from_slice(&word.to_ne_bytes()))
            }
            _ => session.read(iova, &mut into),
        };
        let (expected, fault) = self.oracle.read(at, into.len());
        assert_eq!(outcome, fault);
        if how < 2 || fault.is_ok() {
            assert_eq!(into[..expected.len()], expected);
        }
        assert!(how >= 2 || into[expected.len()..].iter().all(|byte| *byte == 0xee));
    }

    fn write(&mut self, session: usize, at: u64, len: usize, how: u8, byte: u8) {
        let (session, iova) = (&self.sessions[session], Self::iova(at));
        let mut from: Vec<u8> = (0..len).map(|at| byte.wrapping_add(at as u8)).collect();
        let outcome = match how {
            0 => session.write(iova, &from),
            1 => {
                let slices = [IoSlice::new(&from[..len / 2]), IoSlice::new(&from[len / 2..])];
                let mut cursor = Cursor::<Source>::own_vec(&slices);
                session.write_iter(iova, &mut cursor, len).map(|done| assert_eq!(done, len))
            }
            2 => {
                from.fill(byte);
                session.fill(iova, byte, len)
            }
            _ => {
                from.resize(12, byte);
                session.write_obj::<[u8; 12]>(iova, from[..].try_into().unwrap())
            }
        };
        let expected = self.oracle.write(at, &from);
        assert_eq!(outcome, expected);
        self.note_write(at, from.len(), expected.map_or_else(|fault| fault.done, |()| from.len()));
    }

    fn word(&mut self, session: usize, at: u64, or: u32) {
        let session = &self.sessions[session];
        let outcome = session.fetch_or(Self::iova(at), or);
        let fault = |reason| Err(Oracle::fault(at, 0, reason));
        if !at.is_multiple_of(4) {
            assert_eq!(outcome, fault(Reason::Misaligned));
            return;
        }
        if let Err(expected) = self.oracle.whole(at, 4, Prot::READ_WRITE) {
            assert_eq!(outcome, fault(expected.reason));
            self.note_write(at, 4, 0);
            return;
        }
        let before = self.oracle.read(at, 4).0;
        let before = u32::from_ne_bytes(before.try_into().unwrap());
        assert_eq!(outcome, Ok(before));
        self.oracle.write(at, &(before | or).to_ne_bytes()).unwrap();
        assert_eq!(session.compare_exchange(Self::iova(at), before | or, 7), Ok(Ok(before | or)));
        assert_eq!(session.compare_exchange(Self::iova(at), 8u32, 9), Ok(Err(7)));
        self.oracle.write(at, &7u32.to_ne_bytes()).unwrap();
        self.note_write(at, 4, 4);
    }

    fn pin(&mut self, session: usize, at: u64, len: usize, byte: u8) {
        let (session, iova) = (&self.sessions[session], Self::iova(at));
        let expected = self.oracle.whole(at, len, Prot::READ_WRITE);
        let before = self.oracle.read(at, len).0;
        let outcome = session.pin(iova, len, ReadWrite, |view| {
            let mut bytes = vec![0; len];
            view.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, before);
            // Pins can be nested, and accesses work within them.
            let nested = session.pin(iova, len / 2, ReadOnly, |inner| inner.slices().count());
            assert!(nested.unwrap() <= view.slices().count());
            view.write(0, &vec![byte; len]).unwrap();
            assert_eq!(view.slices().map(|slice| slice.len()).sum::<usize>(), len);
            session.read(iova, &mut bytes).unwrap();
            assert_eq!(bytes, vec![byte; len]);
            let refused = self.space.unmap(Self::iova(0), PAGE);
            assert!(matches!(refused, Err(Error::PinnedByCaller { .. })), "{refused:?}");
        });
        assert_eq!(outcome, expected);
        self.note_write(at, len, if expected.is_ok() { len } else { 0 });
        if expected.is_ok() {
            self.oracle.write(at, &vec![byte; len]).unwrap();
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Map { page, region, offset, pages, prot } => {
                self.map(page, region, offset, pages, prot);
            }
            Op::Unmap { page, pages } => {
                let (iova, mut told) = (Self::iova(page * PAGE), Vec::new());
                let outcome = if self.has_dirty_bits {
                    self.space.unmap_dirty(iova, pages * PAGE, |run| told.push(run))
                } else {
                    self.space.unmap(iova, pages * PAGE)
                };
                if outcome.is_ok() && self.has_dirty_bits {
                    self.check_dirty(page..page + pages, &told);
                }
                self.unmapped(page, pages, &outcome);
            }
            Op::UnmapMany { pages } => {
                let space = self.space.clone();
                let mut batch = space.batch();
                for page in pages {
                    let outcome = batch.unmap(Self::iova(page * PAGE), PAGE);
                    self.unmapped(page, 1, &outcome);
                }
                batch.finish().unwrap();
            }
            Op::Read { session, at, len, how } => self.read(session, at, len, how),
            Op::Write { session, at, len, how, byte } => self.write(session, at, len, how, byte),
            Op::Word { session, at, or } => self.word(session, at, or),
            Op::Pin { session, at, len, byte } => self.pin(session, at, len, byte),
            Op::ReadDirty { page, pages, clear } => self.read_dirty(page, pages, clear),
            Op::Park { session } => self.sessions[session].park(),
            Op::Renew { session } => {
                self.sessions.remove(session);
                self.sessions.insert(session, self.space.session());
            }
        }
    }

    /// Compares the memory itself, and checks which regions can be detached.
    fn finish(mut self) {
        for (own, region) in [0, 1, ROM].into_iter().enumerate() {
            let len = self.own[own].layout.size();
            // SAFETY: the length is that of the allocation.
            let view = unsafe { VolatileSlice::from_raw_parts(self.own[own].start, len) };
            let mut bytes = vec![0; len];
            view.read(0, &mut bytes).unwrap();
            assert!(bytes == self.oracle.content[region], "region {region}");
        }
        assert!(*self.asked.0.lock().unwrap() == self.oracle.content[REMOTE]);
        for (index, region) in self.regions.iter().enumerate() {
            let pages = self.oracle.mapped.values().filter(|mapped| mapped.0 == index).count();
            match self.space.detach(region) {
                Ok(()) => assert_eq!(pages, 0),
                Err(Error::StillMapped { mapped_bytes }) => {
                    assert_eq!(mapped_bytes, pages as u64 * PAGE);
                }
                Err(other) => panic!("{other}"),
            }
        }
        self.sessions.clear();
        drop(self.space);
        drop(self.regions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 192 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_space_behaves_like_a_map_of_pages(
        has_dirty_bits: bool,
        ops in prop::collection::vec(some_op(), 1..if cfg!(miri) { 20 } else { 120 }),
    ) {
        let mut world = World::new(has_dirty_bits);
        for op in ops {
            world.apply(op);
        }
        world.finish();
    }
}

#[test]
fn accesses_outside_of_the_address_space_fault() {
    let world = World::new(false);
    let session = &world.sessions[0];
    let last = Iova::new(u64::MAX);
    let mut two = [0; 2];
    let fault = session.read(last, &mut two).unwrap_err();
    assert_eq!(fault, Fault::new(last, 0, Reason::Overflow));
    assert_eq!(session.write(last, &[1]).unwrap_err().reason, Reason::Unmapped);
    assert_eq!(session.read(Iova::new(1 << 48), &mut two).unwrap_err().reason, Reason::Unmapped);
    assert_eq!(session.pin(last, 2, ReadOnly, |_| ()).unwrap_err().reason, Reason::Overflow);
    assert_eq!(session.fill(last, 0, usize::MAX).unwrap_err().reason, Reason::Overflow);
    assert_eq!(session.read(last, &mut []), Ok(()));
    let region = &world.regions[0];
    let mapped = world.space.map(Iova::new(u64::MAX - 0xfff), region, 0, PAGE, Prot::READ);
    assert!(matches!(mapped, Err(Error::Table { .. })), "{mapped:?}");
    let mapped = world.space.map(Iova::new(0), region, u64::MAX - 0xfff, PAGE, Prot::READ);
    assert!(matches!(mapped, Err(Error::OutsideRegion { .. })), "{mapped:?}");
    assert!(world.space.unmap(Iova::new(u64::MAX - 0xfff), 2 * PAGE).is_err());
}
