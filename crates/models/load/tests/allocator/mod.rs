//! An allocator that counts the memory of each thread.

#![allow(unsafe_code, reason = "implements `GlobalAlloc`")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn add(bytes: i64) {
    // The counters of a thread that is ending may be gone.
    let _ = LIVE_BYTES.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both allocations may exist while the content is copied.
        add(size as i64);
        // SAFETY: as the caller promises.
        let moved = unsafe { System.realloc(at, layout, size) };
        add(-(layout.size() as i64));
        moved
    }
}

/// Returns the result of `run`, and the peak of the memory that it allocated, in bytes.
pub(crate) fn peak_bytes<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    let made = run();
    (made, (PEAK_BYTES.get() - before) as u64)
}
