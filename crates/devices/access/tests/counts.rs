//! Counts the allocations, locks and barriers of operations with a warm TLB.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "counts allocations, and maps memory by its address")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use longshore_access::{Barrier, Counters, ReadWrite, Space, SpaceConfig};
use longshore_mem::{BusAddr, Iova};
use longshore_pagetable::Prot;

struct Counting;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

// SAFETY: it counts and calls the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PAGE: u64 = 4096;

struct World {
    space: Space,
    memory: Memory,
}

/// Pages that are freed after the space.
struct Memory(*mut u8);

impl Memory {
    const LAYOUT: Layout = match Layout::from_size_align(9 * PAGE as usize, PAGE as usize) {
        Ok(layout) => layout,
        Err(_) => panic!(),
    };

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        Self(unsafe { std::alloc::alloc_zeroed(Self::LAYOUT) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { std::alloc::dealloc(self.0, Self::LAYOUT) };
    }
}

impl World {
    fn new(config: SpaceConfig) -> Self {
        Self { space: Space::with_config(config).unwrap(), memory: Memory::new() }
    }

    fn map(&self, page: u64) {
        let bus = self.memory.0.expose_provenance() as u64;
        let (iova, bus) = (Iova::new(page * PAGE), BusAddr::new(bus + page * PAGE));
        // SAFETY: the memory lives longer than the space and its sessions.
        unsafe { self.space.map_raw(iova, bus, PAGE, Prot::READ_WRITE) }.unwrap();
    }

    fn unmap(&self, page: u64) {
        // SAFETY: this thread has mapped it with `map_raw`.
        unsafe { self.space.unmap_raw(Iova::new(page * PAGE), PAGE) }.unwrap();
    }
}

/// Returns the cost of `work`: the number of allocations, and the counters of the space.
fn cost(space: &Space, work: impl FnOnce()) -> (u64, Counters) {
    let (before, allocations) = (space.counters(), ALLOCATIONS.get());
    work();
    let (after, allocations) = (space.counters(), ALLOCATIONS.get() - allocations);
    let mut counters = after;
    counters.barriers -= before.barriers;
    counters.waited -= before.waited;
    counters.locks -= before.locks;
    (allocations, counters)
}

fn barriers(barriers: u64) -> (u64, Counters) {
    let mut counters = Counters::default();
    counters.barriers = barriers;
    (0, counters)
}

#[test]
fn warm_operations_allocate_nothing_and_take_no_lock() {
    for barrier in [None, Some(Barrier::Fence)] {
        let world = World::new(SpaceConfig::new().with_barrier(barrier));
        let (space, rounds) = (&world.space, if cfg!(miri) { 3 } else { 100 });
        let round = || {
            for page in 0..8 {
                world.map(page);
            }
            for page in 0..8 {
                world.unmap(page);
            }
        };
        round();
        assert_eq!(cost(space, || (0..rounds).for_each(|_| round())), barriers(0), "no session");
        let session = space.session();
        assert_eq!(cost(space, || (0..rounds).for_each(|_| round())), barriers(0), "not yet used");

        // Accesses cross from one page into the next. Miri is slow, so they are short there.
        const LEN: usize = if cfg!(miri) { 32 } else { 3000 };
        let mut bytes = [0; LEN];
        let mut access = || {
            for page in 0..7 {
                let iova = Iova::new((page + 1) * PAGE - 16);
                session.write(iova, &bytes).unwrap();
                session.read(iova, &mut bytes).unwrap();
                session.write_obj(iova, page).unwrap();
                assert_eq!(session.read_obj(iova), Ok(page));
                assert_eq!(session.fetch_or(iova, 8u64), Ok(page));
                session.fill(iova, 1, LEN).unwrap();
                session.pin(iova, LEN, ReadWrite, |view| view.write(9, &[7; 9])).unwrap().unwrap();
            }
        };
        (0..8).for_each(|page| world.map(page));
        access();
        assert_eq!(cost(space, || (0..rounds).for_each(|_| access())), barriers(0), "accesses");
        // The session is not parked now.
        assert_eq!(cost(space, || (0..8).for_each(|page| world.unmap(page))), barriers(8));
        (0..8).for_each(|page| world.map(page));
        access();
        session.park();
        assert_eq!(cost(space, || (0..8).for_each(|page| world.unmap(page))), barriers(0));

        let mut batch = space.batch();
        for _ in 0..2 {
            (0..8).for_each(|page| world.map(page));
            access();
            let many = cost(space, || {
                // In descending order, so that adjacent ranges are not merged.
                for page in (0..8).rev() {
                    // SAFETY: mapped above, in this thread.
                    unsafe { batch.unmap_raw(Iova::new(page * PAGE), PAGE) }.unwrap();
                }
                batch.finish().unwrap();
            });
            assert_eq!(many.1.barriers, 1, "one for the batch");
            assert_eq!(many.1.locks, 0);
        }
        (0..8).for_each(|page| world.map(page));
        access();
        let warm = cost(space, || {
            // SAFETY: mapped above, in this thread.
            unsafe { batch.unmap_raw(Iova::new(0), 8 * PAGE) }.unwrap();
            batch.finish().unwrap();
        });
        assert_eq!(warm, barriers(1));
    }
}

#[test]
fn a_slot_is_used_again() {
    let world = World::new(SpaceConfig::new());
    drop((world.space.session(), world.space.session()));
    let again = cost(&world.space, || {
        for _ in 0..10 {
            drop((world.space.session(), world.space.session()));
        }
    });
    assert_eq!(again, barriers(0));
    // A session does not inherit the TLB of the previous user of its slot.
    world.map(0);
    let session = world.space.session();
    session.write_obj(Iova::new(0), 5u64).unwrap();
    drop(session);
    world.unmap(0);
    assert!(world.space.session().read_obj::<u64>(Iova::new(0)).is_err());
}
