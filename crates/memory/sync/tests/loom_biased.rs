//! All interleavings of an owner and of threads that claim its value.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p longshore-sync --test loom_biased`
#![cfg(loom)]
#![expect(unsafe_code, reason = "acts as the owner")]

use longshore_sync::{Barrier, OwnerBiased};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

fn one_owner(barrier: Barrier, turns: i32, claimers: usize) {
    loom::model(move || {
        let value = Arc::new(OwnerBiased::new((0, 0), barrier));
        let both = |value: &mut (i32, i32)| {
            assert_eq!(value.0, value.1);
            value.0 += 1;
            value.1 += 1;
        };
        let claimers: Vec<_> = (0..claimers)
            .map(|_| {
                let value = Arc::clone(&value);
                thread::spawn(move || value.claim(both))
            })
            .collect();
        for _ in 0..turns {
            // SAFETY: only this thread is the owner.
            unsafe { value.own(both) }.unwrap();
        }
        let count = claimers.len() as i32;
        claimers.into_iter().for_each(|claimer| claimer.join().unwrap());
        // The owner sees the writes of a claim.
        // SAFETY: only this thread is the owner.
        assert_eq!(unsafe { value.own(|value| value.0) }, Some(turns + count));
    });
}

#[test]
fn an_owner_and_one_claiming_thread() {
    one_owner(Barrier::Expedited, 2, 1);
    one_owner(Barrier::Fence, 2, 1);
}

#[test]
fn an_owner_and_two_claiming_threads() {
    one_owner(Barrier::Expedited, 1, 2);
}

/// Without barriers, two threads use the value at the same time, and loom detects it.
#[test]
#[should_panic]
fn without_barriers_two_threads_use_the_value() {
    one_owner(Barrier::None, 1, 1);
}

/// A chunk of two slots, the list of free slots, and the magazine of a handle, as
/// `longshore-domain` uses them: the magazine is owner-biased, and the list has a lock.
struct Pool {
    free: Mutex<Vec<usize>>,
    /// The bytes of the slots. Loom detects two threads that use one slot at the same time.
    slots: [UnsafeCell<u32>; 2],
    kept: OwnerBiased<Vec<usize>>,
}

// SAFETY: the thread that has the number of a slot has its bytes; the tests check this.
unsafe impl Sync for Pool {}
// SAFETY: as above.
unsafe impl Send for Pool {}

impl Pool {
    fn new(barrier: Barrier) -> Self {
        let slots = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Self { free: Mutex::new(vec![0, 1]), slots, kept: OwnerBiased::new(Vec::new(), barrier) }
    }

    fn fill(&self, slot: usize) {
        // SAFETY: the caller has the slot.
        self.slots[slot].with_mut(|bytes| unsafe { *bytes += 1 });
    }

    /// A transfer by the handle: it takes a slot, from the list if the magazine is empty, and gives
    /// it back.
    ///
    /// # Safety
    /// Only one thread may call this.
    unsafe fn transfer(&self) {
        let take = |kept: &mut Vec<usize>| {
            if kept.is_empty() {
                kept.append(&mut self.free.lock().unwrap());
            }
            kept.pop()
        };
        // SAFETY: the caller's promise.
        let Some(slot) = (unsafe { self.kept.own(take) }.unwrap()) else { return };
        // The value is not in use during this call.
        self.fill(slot);
        // SAFETY: the caller's promise.
        unsafe { self.kept.own(|kept| kept.push(slot)) }.unwrap();
    }

    /// Gives back the slots of a magazine.
    fn clear(&self, kept: &mut Vec<usize>) {
        self.free.lock().unwrap().append(kept);
    }

    /// Empties the magazine, and frees the chunk if all of it is free, so that no thread uses it.
    fn shrink(&self) -> bool {
        self.kept.claim(|kept| self.clear(kept));
        let free = std::mem::take(&mut *self.free.lock().unwrap());
        let is_idle = free.len() == self.slots.len();
        if is_idle {
            free.iter().for_each(|slot| self.fill(*slot));
        }
        // Either the chunk is in use, or these are the slots of a new chunk, which the next
        // transfer would make.
        self.free.lock().unwrap().extend(free);
        is_idle
    }
}

fn magazines(barrier: Barrier, turns: usize, claimers: usize) {
    loom::model(move || {
        let pool = Arc::new(Pool::new(barrier));
        let shrinkers: Vec<_> = (0..claimers)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.shrink())
            })
            .collect();
        for _ in 0..turns {
            // SAFETY: only this thread is the owner.
            unsafe { pool.transfer() };
        }
        // The handle is dropped.
        // SAFETY: only this thread is the owner.
        unsafe { pool.kept.own(|kept| pool.clear(kept)) }.unwrap();
        shrinkers.into_iter().for_each(|shrinker| {
            shrinker.join().unwrap();
        });
        let mut free = pool.free.lock().unwrap().clone();
        free.sort_unstable();
        assert_eq!(free, [0, 1], "each slot is free exactly once");
        assert!(pool.shrink());
    });
}

#[test]
fn a_claim_gives_the_slots_of_a_magazine_back() {
    magazines(Barrier::Expedited, 1, 1);
    magazines(Barrier::Fence, 1, 1);
    magazines(Barrier::Expedited, 2, 1);
}

#[test]
#[should_panic]
fn without_barriers_a_slot_has_two_owners() {
    magazines(Barrier::None, 1, 1);
}
