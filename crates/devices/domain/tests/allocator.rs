//! A program's allocator that uses a handle of the domain, while that handle allocates.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "implements an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, DmaPool, DmaPoolOptions, Domain, Local};
use longshore_heap::{Buffer, Heap};

thread_local! {
    /// The function that the allocator calls, except within itself.
    static ALSO: Cell<Option<fn()>> = const { Cell::new(None) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
    static LOCAL: Cell<Option<&'static Local<'static>>> = const { Cell::new(None) };
    static POOL: Cell<Option<&'static DmaPool>> = const { Cell::new(None) };
}

struct Hooked;

#[global_allocator]
static ALLOCATOR: Hooked = Hooked;

fn hook() {
    if let Ok(Some(also)) = ALSO.try_with(Cell::take) {
        CALLS.set(CALLS.get() + 1);
        also();
        ALSO.set(Some(also));
    }
}

// SAFETY: the calls are passed to the system's allocator.
unsafe impl GlobalAlloc for Hooked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hook();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        hook();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        hook();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, len) }
    }
}

/// Runs `work` with an allocator that calls `also`, and asserts that it was called.
fn with_hook<R>(also: fn(), work: impl FnOnce() -> R) -> R {
    CALLS.set(0);
    ALSO.set(Some(also));
    let result = work();
    ALSO.set(None);
    assert_ne!(CALLS.get(), 0, "nothing is allocated");
    result
}

/// Runs a test that may deadlock.
fn in_time(test: fn()) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock"),
        _ => thread.join().unwrap(),
    }
}

/// Leaks a value, because the allocator may use it at any time.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn domain() -> &'static Domain {
    let builder = Domain::builder(Soft::new().unwrap()).bounce(Bounce::Always).free_after(None);
    leak(builder.build())
}

/// A length of which a handle caches one slot. It allocates when the first one is given back.
const LEN_BYTES: u64 = 64 << 10;

fn buffer() -> Buffer {
    Heap::Memfd.allocate(LEN_BYTES).unwrap()
}

#[test]
fn a_handle_that_allocates_is_not_used_twice_at_once() {
    in_time(|| {
        let domain = domain();
        let local = leak(domain.local());
        let map =
            |local: &'static Local<'static>| local.map(buffer(), Direction::ToDevice).unwrap();
        LOCAL.set(Some(local));
        let mapping = map(local);
        let also = || {
            let local = LOCAL.get().unwrap();
            drop(local.map(buffer(), Direction::ToDevice).unwrap());
        };
        with_hook(also, || drop(mapping));
        // No slot was handed out twice.
        let mappings = [(); 4].map(|()| map(local));
        let mut starts = mappings.each_ref().map(|mapping| mapping.iova().raw());
        starts.sort_unstable();
        assert!(starts.is_sorted_by(|a, b| a + LEN_BYTES <= *b), "{starts:x?}");
        drop(mappings);
        domain.shrink(Duration::ZERO).unwrap();
        assert_eq!(domain.counters().pool_bytes, 0);
        assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
    });
}

#[test]
fn a_pool_that_takes_elements_back_does_not_deadlock() {
    in_time(|| {
        let pool = leak(domain().dma_pool(4096, 4096, DmaPoolOptions::new()).unwrap());
        POOL.set(Some(pool));
        drop([(); 8].map(|()| pool.take().unwrap()));
        with_hook(|| drop(POOL.get().unwrap().take().unwrap()), || pool.shrink()).unwrap();
        // No element was handed out twice.
        let elements = [(); 64].map(|()| pool.take().unwrap());
        let mut starts = elements.each_ref().map(|element| element.iova().raw());
        starts.sort_unstable();
        assert!(starts.is_sorted_by(|a, b| a < b), "{starts:x?}");
    });
}

#[test]
fn a_pool_that_grows_does_not_deadlock() {
    in_time(|| {
        // A chunk for each element, so that the list of chunks grows, too.
        let pool = leak(domain().dma_pool(1 << 20, 64, DmaPoolOptions::new()).unwrap());
        POOL.set(Some(pool));
        let take = || drop(POOL.get().unwrap().take().unwrap());
        let mut elements = Vec::with_capacity(40);
        with_hook(take, || (0..40).for_each(|_| elements.push(pool.take().unwrap())));
        let mut starts: Vec<_> = elements.iter().map(|element| element.iova().raw()).collect();
        starts.sort_unstable();
        assert!(starts.is_sorted_by(|a, b| a + (1 << 20) <= *b), "{starts:x?}");
        with_hook(take, || drop(elements));
        let usage = pool.usage();
        assert_eq!((usage.in_use, usage.free + usage.cached), (0, usage.elements));
    });
}

#[test]
fn bounce_buffers_that_grow_do_not_deadlock() {
    in_time(|| {
        let local = leak(domain().local());
        LOCAL.set(Some(local));
        let also = || {
            let local = LOCAL.get().unwrap();
            drop(local.map(buffer(), Direction::ToDevice).unwrap());
        };
        let mut buffers: Vec<_> = (0..200).map(|_| Some(buffer())).collect();
        let mut mappings = Vec::with_capacity(buffers.len());
        with_hook(also, || {
            for buffer in &mut buffers {
                mappings.push(local.map(buffer.take().unwrap(), Direction::ToDevice).unwrap());
            }
        });
        let mut starts: Vec<_> = mappings.iter().map(|mapping| mapping.iova().raw()).collect();
        starts.sort_unstable();
        assert!(starts.is_sorted_by(|a, b| a + LEN_BYTES <= *b), "{starts:x?}");
    });
}
