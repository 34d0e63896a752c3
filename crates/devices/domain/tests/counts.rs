//! A warm handle and a warm pool do not allocate, lock, or make a system call.
#![allow(unsafe_code, reason = "counts calls of the allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use longshore_domain::{Direction, DmaElement, DmaPoolOptions, Domain, backend::Soft};
use longshore_heap::Heap;
use rustix::thread::{SecureComputingMode, set_secure_computing_mode};

struct Counting;

thread_local!(static ASKED: Cell<u64> = const { Cell::new(0) });

// SAFETY: the calls are passed to the system's allocator.
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
fn a_warm_handle_neither_allocates_nor_locks() {
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

#[test]
fn a_warm_pool_neither_allocates_nor_maps() {
    let soft = Soft::new().unwrap();
    let space = soft.space().clone();
    let domain = Domain::builder(soft).free_after(None).build();
    let pool = domain.dma_pool(4096, 4096, DmaPoolOptions::new()).unwrap();
    let once = || {
        let elements = [(); 8].map(|()| pool.take().unwrap());
        let slices = elements.map(DmaElement::freeze);
        drop(slices.each_ref().map(|slice| slice.slice(5..10).unwrap()));
        drop(slices);
        drop(pool.take_unzeroed().unwrap());
    };
    once();
    let before = (ASKED.get(), space.counters());
    (0..100).for_each(|_| once());
    assert_eq!((ASKED.get(), space.counters()), before);
    // More elements than a thread caches: locks are taken now and then, but nothing is allocated.
    let mut many: [_; 200] = [const { None }; 200];
    let mut burst = || {
        many.iter_mut().for_each(|place| *place = Some(pool.take_unzeroed().unwrap()));
        many.iter_mut().for_each(|place| *place = None);
    };
    burst();
    let before = (ASKED.get(), space.counters());
    (0..10).for_each(|_| burst());
    assert_eq!((ASKED.get(), space.counters()), before);
    assert_eq!(pool.usage().chunks, 1);
}

/// A thread takes and drops elements after it has entered strict seccomp mode, in which the kernel kills
/// it at a system call. This runs in a child process, whose other thread reports the result.
#[test]
fn a_warm_pool_makes_no_system_call() {
    const PART: &str = "LONGSHORE_WARM_POOL_CHILD";
    const NAME: &str = "a_warm_pool_makes_no_system_call";
    if std::env::var_os(PART).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--test-threads=1"])
            .env(PART, "")
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(CAME_THROUGH), "{child:?}");
        return;
    }
    static TURNS: AtomicU32 = AtomicU32::new(0);
    const MOST: u32 = 1000;
    const CAME_THROUGH: i32 = 77;
    std::thread::spawn(|| {
        let domain = Domain::builder(Soft::new().unwrap()).free_after(None).build();
        let pool = domain.dma_pool(4096, 4096, DmaPoolOptions::new()).unwrap();
        let once = || drop([(); 8].map(|()| pool.take().unwrap().freeze().clone()));
        once();
        set_secure_computing_mode(SecureComputingMode::Strict).unwrap();
        for _ in 0..MOST {
            once();
            TURNS.fetch_add(1, Ordering::Relaxed);
        }
        // From here on, any other system call would kill this thread.
        loop {
            std::hint::spin_loop();
        }
    });
    let is_through = |_: &u32| {
        std::thread::sleep(Duration::from_millis(1));
        TURNS.load(Ordering::Relaxed) == MOST
    };
    std::process::exit(if (0..20_000).any(|round| is_through(&round)) { CAME_THROUGH } else { 1 });
}
