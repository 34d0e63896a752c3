//! Every interleaving of sessions and of an unmapping thread, with the atomics of loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p longshore-sync --release --test loom_grace`.
//!
//! Here, `membarrier` is a full fence on both sides. The memory is a cell that loom tracks: freeing
//! it is a write to the cell, which must come after every read.
#![cfg(loom)]
#![expect(unsafe_code, reason = "reads cells that loom tracks")]

use std::cell::Cell;
use std::ptr::NonNull;

use longshore_sync::Barrier;
use longshore_sync::grace::{GracePeriods, SessionState, Slot};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// One mapped page, and the memory behind it.
struct World {
    grace: GracePeriods<()>,
    is_mapped: AtomicBool,
    /// `true` if a pin has a lease.
    is_leased: AtomicBool,
    memory: UnsafeCell<u32>,
}

// SAFETY: the tests are about the order of accesses to the cell, and loom checks it.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(barrier: Barrier, waits: bool) -> Arc<Self> {
        Arc::new(Self {
            grace: GracePeriods::new(barrier, waits),
            is_mapped: AtomicBool::new(true),
            is_leased: AtomicBool::new(false),
            memory: UnsafeCell::new(7),
        })
    }

    /// Clears the entry, waits, and frees the memory.
    fn unmap(&self) {
        self.is_mapped.store(false, Ordering::Relaxed);
        self.grace.wait();
        self.free();
    }

    fn free(&self) {
        // SAFETY: no thread uses it any more; loom fails the test otherwise.
        self.memory.with_mut(|memory| unsafe { *memory = 0 });
    }
}

/// A session with a TLB of one entry, which accesses memory as a real session does.
struct Session<'w> {
    world: &'w World,
    slot: NonNull<Slot<()>>,
    seen: SessionState,
    tlb: Cell<bool>,
}

impl<'w> Session<'w> {
    fn new(world: &'w World, owner: usize) -> Self {
        let seen = SessionState::new(world.grace.barrier());
        Self { world, slot: world.grace.claim(owner, || ()), seen, tlb: Cell::new(false) }
    }

    fn slot(&self) -> &Slot<()> {
        // SAFETY: a slot lives as long as the world.
        unsafe { self.slot.as_ref() }
    }

    /// Reads the page if it is mapped. Returns `true` if it was.
    fn read(&self) -> bool {
        self.slot().enter();
        if self.seen.is_current(self.slot()) && (self.tlb.get() || self.walk()) {
            self.look();
            self.slot().leave();
            return true;
        }
        self.seen.enter(self.slot(), || self.tlb.set(false));
        let found = self.tlb.get() || self.walk();
        if found {
            self.look();
        }
        self.seen.leave(self.slot());
        found
    }

    /// Reads twice by one translation, with another access in between.
    fn pin(&self) {
        self.seen.enter(self.slot(), || self.tlb.set(false));
        self.seen.open();
        if self.tlb.get() || self.walk() {
            self.look();
            self.read();
            self.look();
        }
        self.seen.close(self.slot());
        self.seen.leave(self.slot());
    }

    /// Reads twice by one translation, and leaves the slot in between.
    fn pin_around_a_call(&self) {
        self.seen.enter(self.slot(), || self.tlb.set(false));
        self.seen.open();
        if self.tlb.get() || self.walk() {
            self.look();
            self.world.is_leased.store(true, Ordering::Relaxed);
            let pins = self.seen.suspend(self.slot());
            self.seen.enter(self.slot(), || self.tlb.set(false));
            self.seen.resume(pins);
            self.look();
            self.world.is_leased.store(false, Ordering::Release);
        }
        self.seen.close(self.slot());
        self.seen.leave(self.slot());
    }

    fn walk(&self) -> bool {
        self.tlb.set(self.world.is_mapped.load(Ordering::Acquire));
        self.tlb.get()
    }

    fn look(&self) {
        // SAFETY: it was translated, so it is not freed; loom fails the test otherwise.
        let value = self.world.memory.with(|memory| unsafe { *memory });
        assert_eq!(value, 7, "freed memory was read");
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.tlb.set(false);
        self.seen.release(self.slot());
    }
}

/// Runs all interleavings with at most `preemptions` preemptions.
fn model(preemptions: usize, work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(work);
}

fn unmapped_while(barrier: Barrier, session: fn(&Session<'_>)) {
    model(3, move || {
        let world = World::new(barrier, true);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || session(&Session::new(&other, 1)));
        world.unmap();
        thread.join().unwrap();
    });
}

#[test]
fn an_unmapped_page_is_not_read() {
    unmapped_while(Barrier::Expedited, |session| {
        session.read();
        session.read();
    });
}

#[test]
fn an_unmapped_page_is_not_read_if_sessions_execute_the_fence() {
    unmapped_while(Barrier::Fence, |session| {
        session.read();
        session.read();
    });
}

#[test]
fn an_unmapped_page_is_not_read_by_a_session_that_was_quiescent() {
    unmapped_while(Barrier::Expedited, |session| {
        session.read();
        session.tlb.set(false);
        session.seen.quiesce(session.slot());
        session.read();
    });
}

#[test]
fn an_unmapped_page_is_not_read_from_a_slot_that_is_used_again() {
    unmapped_while(Barrier::Expedited, |session| {
        session.read();
        Session::new(session.world, 2).read();
    });
    model(2, || {
        let world = World::new(Barrier::Expedited, true);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            Session::new(&other, 1).read();
            Session::new(&other, 1).read();
        });
        world.unmap();
        thread.join().unwrap();
    });
}

#[test]
fn an_unmapped_page_is_not_read_within_a_pin() {
    unmapped_while(Barrier::Expedited, |session| {
        session.pin();
        session.read();
    });
}

/// A pin around a call to a remote region, with an unmapping thread that may check leases.
fn pinned_around_a_call(looks_at_leases: bool) {
    model(3, move || {
        let world = World::new(Barrier::Expedited, true);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let session = Session::new(&other, 1);
            session.pin_around_a_call();
            session.read();
        });
        world.is_mapped.store(false, Ordering::Relaxed);
        world.grace.wait();
        while looks_at_leases && world.is_leased.load(Ordering::Acquire) {
            thread::yield_now();
        }
        world.free();
        thread.join().unwrap();
    });
}

#[test]
fn an_unmapped_page_is_not_read_within_a_pin_that_became_a_lease() {
    pinned_around_a_call(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_lease_loom_finds_a_read_of_freed_memory() {
    pinned_around_a_call(false);
}

#[test]
fn two_threads_may_wait_at_once() {
    model(2, || {
        let world = World::new(Barrier::Expedited, true);
        let (reader, other) = (Arc::clone(&world), Arc::clone(&world));
        let session = thread::spawn(move || {
            let session = Session::new(&reader, 1);
            session.read();
            session.read();
        });
        let second = thread::spawn(move || other.grace.wait());
        world.unmap();
        second.join().unwrap();
        session.join().unwrap();
    });
}

/// A session that reads twice, with an unmapping thread that lacks the wait or the barrier.
fn model_with_a_defect(waits: bool, barrier: Barrier) {
    model(3, move || {
        let world = World::new(barrier, waits);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let session = Session::new(&other, 1);
            session.read();
            session.read();
        });
        world.unmap();
        thread.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_wait_loom_finds_a_read_of_freed_memory() {
    model_with_a_defect(false, Barrier::Expedited);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_barrier_loom_finds_a_read_of_freed_memory() {
    model_with_a_defect(true, Barrier::None);
}
