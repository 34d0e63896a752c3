//! Unmapping races with reads, writes, pins and leases. No access may reach memory after its unmapping
//! has returned. Without grace periods, the same test finds such accesses.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "maps memory by its address, and fills it")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longshore_access::{
    Barrier, OnUnmap, ReadOnly, ReadWrite, Session, Space, SpaceConfig, WriteOnly,
};
use longshore_mem::VolatileSliceMut;
use longshore_mem::{BusAddr, Iova};
use longshore_pagetable::Prot;

const PAGE: usize = 4096;
/// The number of pages that are mapped and unmapped together.
const EXTENT: usize = 16;
const EXTENTS: usize = 8;
const EXTENT_BYTES: usize = EXTENT * PAGE;
/// The content of memory while it is not mapped.
const POISON: u8 = 0xdb;
/// The content of memory while it is mapped.
const FINE: u8 = 0x11;

struct Arena {
    start: NonNull<u8>,
}

// SAFETY: the memory is accessed by volatile copies only.
unsafe impl Sync for Arena {}

impl Arena {
    fn new() -> Self {
        let bytes = vec![FINE; (EXTENTS + 1) * EXTENT_BYTES].leak();
        let skip = bytes.as_ptr().align_offset(PAGE);
        Self { start: NonNull::from(&mut bytes[skip..]).cast() }
    }

    fn view(&self, extent: usize) -> VolatileSliceMut<'_> {
        // SAFETY: the extent is within the memory, which was leaked.
        let start = unsafe { self.start.add(extent * EXTENT_BYTES) };
        // SAFETY: the memory is accessed by volatile copies only, also by the sessions.
        unsafe { VolatileSliceMut::from_raw_parts(start, EXTENT_BYTES) }
    }

    fn fill(&self, extent: usize, byte: u8) {
        self.view(extent).write(0, &[byte; EXTENT_BYTES]).unwrap();
    }

    /// Returns the number of bytes that are not poison.
    fn written(&self, extent: usize) -> u64 {
        let mut bytes = vec![0; EXTENT_BYTES];
        self.view(extent).as_readable().read(0, &mut bytes).unwrap();
        bytes.iter().filter(|byte| **byte != POISON).count() as u64
    }
}

#[derive(Default)]
struct Counts {
    accesses: AtomicU64,
    strays: AtomicU64,
    unmaps: AtomicU64,
    faults: AtomicU64,
    stop: AtomicBool,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Accesses random ranges until `stop` is set.
fn access(session: &Session, counts: &Counts, mut state: u64) {
    let mut buffer = vec![0; EXTENT_BYTES];
    while !counts.stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let choice = random(&mut state);
            let extent = (choice >> 8) as usize % EXTENTS;
            let len = [8, 64, 700, PAGE, EXTENT_BYTES / 2][(choice >> 16) as usize % 5];
            let offset = (choice >> 32) as usize % (EXTENT_BYTES - len + 1);
            let iova = Iova::new((extent * EXTENT_BYTES + offset) as u64);
            let into = &mut buffer[..len];
            let outcome = match choice % 8 {
                0..3 => session.read(iova, into).map(|()| into.contains(&POISON)),
                3..6 => {
                    into.fill(FINE);
                    session.write(iova, into).map(|()| false)
                }
                6 => session.pin(iova, len, ReadWrite, |view| {
                    view.read(0, into).unwrap();
                    let is_stray = into.contains(&POISON);
                    view.write(0, &vec![FINE; len]).unwrap();
                    is_stray
                }),
                _ if choice & 8 == 0 => {
                    session.lease(iova, len, WriteOnly, OnUnmap::Wait).map(|lease| {
                        into.fill(FINE);
                        lease.view().write(0, into).unwrap();
                        false
                    })
                }
                _ => session.lease(iova, len, ReadOnly, OnUnmap::Wait).map(|lease| {
                    lease.view().read(0, into).unwrap();
                    into.contains(&POISON)
                }),
            };
            match outcome {
                Ok(is_stray) => counts.strays.fetch_add(u64::from(is_stray), Ordering::Relaxed),
                Err(_) => counts.faults.fetch_add(1, Ordering::Relaxed),
            };
            if choice & 0xff00_0000 == 0 {
                session.park();
            }
        }
        counts.accesses.fetch_add(64, Ordering::Relaxed);
    }
}

/// Unmaps, poisons and maps random extents until `is_enough` returns `true`.
fn unmap(space: &Space, arena: &Arena, counts: &Counts, is_enough: impl Fn(&Counts) -> bool) {
    let bus = arena.start.expose_provenance().get() as u64;
    let at = |extent: usize| (extent * EXTENT_BYTES) as u64;
    let map = |extent: usize| {
        let (iova, bus) = (Iova::new(at(extent)), BusAddr::new(bus + at(extent)));
        // SAFETY: the memory was leaked, and is accessed by volatile copies only.
        unsafe { space.map_raw(iova, bus, EXTENT_BYTES as u64, Prot::READ_WRITE) }.unwrap();
    };
    (0..EXTENTS).for_each(map);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    while !is_enough(counts) {
        let extent = random(&mut state) as usize % EXTENTS;
        // SAFETY: this thread has mapped it with `map_raw`.
        unsafe { space.unmap_raw(Iova::new(at(extent)), EXTENT_BYTES as u64) }.unwrap();
        arena.fill(extent, POISON);
        // Wait for a stray write, which may come at any time.
        for _ in 0..random(&mut state) % 2000 {
            std::hint::spin_loop();
        }
        counts.strays.fetch_add(arena.written(extent), Ordering::Relaxed);
        arena.fill(extent, FINE);
        map(extent);
        counts.unmaps.fetch_add(1, Ordering::Relaxed);
    }
    counts.stop.store(true, Ordering::Relaxed);
}

fn race(space: &Space, is_enough: impl Fn(&Counts) -> bool) -> Counts {
    let (arena, counts) = (Arena::new(), Counts::default());
    std::thread::scope(|scope| {
        for thread in 1..=3u64 {
            let (space, counts) = (space, &counts);
            scope.spawn(move || access(&space.session(), counts, thread * 0x1234_5678_9abc_def1));
        }
        unmap(space, &arena, &counts, is_enough);
    });
    let Counts { accesses, strays, unmaps, faults, .. } = &counts;
    println!(
        "{accesses:?} accesses, {faults:?} of them faulted; {unmaps:?} unmappings; \
         {strays:?} strays; {:?}",
        space.counters(),
    );
    counts
}

fn no_strays(barrier: Option<Barrier>, accesses: u64, unmaps: u64) {
    let space = Space::with_config(SpaceConfig::new().with_barrier(barrier)).unwrap();
    let counts = race(&space, |counts| {
        counts.accesses.load(Ordering::Relaxed) >= accesses
            && counts.unmaps.load(Ordering::Relaxed) >= unmaps
    });
    assert_eq!(counts.strays.load(Ordering::Relaxed), 0);
    // Accesses and unmappings did race.
    assert!(counts.faults.load(Ordering::Relaxed) > 0);
    assert!(space.counters().waited > 0);
}

#[test]
fn no_memory_is_accessed_after_its_unmapping_returned() {
    no_strays(None, 100_000, 500);
}

#[test]
fn no_memory_is_accessed_after_its_unmapping_returned_with_fences() {
    no_strays(Some(Barrier::Fence), 100_000, 500);
}

#[test]
#[ignore = "ten million accesses take up to 20 seconds"]
fn no_memory_is_accessed_after_its_unmapping_returned_in_ten_million_accesses() {
    no_strays(None, 10_000_000, 2_000);
}

/// The control: without grace periods, the test finds stray accesses.
#[test]
fn without_grace_periods_stray_accesses_are_found() {
    // SAFETY: the memory was leaked.
    let space = unsafe { Space::without_grace_periods(SpaceConfig::new()) }.unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let counts =
        race(&space, |counts| counts.strays.load(Ordering::Relaxed) > 0 || Instant::now() > end);
    assert!(counts.strays.load(Ordering::Relaxed) > 0);
}
