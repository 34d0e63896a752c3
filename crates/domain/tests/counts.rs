//! What a warm door does not do: allocate, lock, call the system.
#![allow(unsafe_code, reason = "counts what the allocator is asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use longshore_domain::{Direction, Domain, backend::Soft};
use longshore_heap::Heap;

struct Counting;

thread_local!(static ASKED: Cell<u64> = const { Cell::new(0) });

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_door_neither_allocates_nor_locks() {
    let soft = Soft::new().unwrap();
    let space = soft.space().clone();
    let parked = space.session();
    parked.park();
    let domain = Domain::builder(soft).build();
    let local = domain.local();
    let mut batch = local.batch();
    let mut buffers: Vec<_> = (0..8).map(|_| Some(Heap::Memfd.allocate(4096).unwrap())).collect();
    let mut once = || {
        for buffer in &mut buffers {
            let mapping = local.map(buffer.take().unwrap(), Direction::Bidirectional).unwrap();
            *buffer = Some(mapping.unmap().unwrap());
        }
        for buffer in &mut buffers {
            let mapping = local.map(buffer.take().unwrap(), Direction::ToDevice).unwrap();
            mapping.unmap_deferred(&mut batch).unwrap();
        }
        let mut places = buffers.iter_mut();
        batch.flush(|buffer| *places.next().unwrap() = Some(buffer)).unwrap();
    };
    once();
    let before = (ASKED.get(), space.counters());
    (0..100).for_each(|_| once());
    assert_eq!((ASKED.get(), space.counters()), before);
    drop(batch);
    drop(local);
    assert_eq!(domain.counters().unmaps, 101 * 16);
}
