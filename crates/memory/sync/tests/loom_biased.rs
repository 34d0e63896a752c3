//! All interleavings of an owner and of those who claim what it owns.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p longshore-sync --test loom_biased`
#![cfg(loom)]
#![expect(unsafe_code, reason = "is the owner")]

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
            // SAFETY: this thread alone.
            unsafe { value.own(both) }.unwrap();
        }
        let count = claimers.len() as i32;
        claimers.into_iter().for_each(|claimer| claimer.join().unwrap());
        // What was done under a claim is seen by the owner.
        // SAFETY: this thread alone.
        assert_eq!(unsafe { value.own(|value| value.0) }, Some(turns + count));
    });
}

#[test]
fn an_owner_and_one_that_claims() {
    one_owner(Barrier::Expedited, 2, 1);
    one_owner(Barrier::Fence, 2, 1);
}

#[test]
fn an_owner_and_two_that_claim() {
    one_owner(Barrier::Expedited, 1, 2);
}

/// Without barriers both are inside at once, and loom sees it.
#[test]
#[should_panic]
fn without_barriers_both_are_inside() {
    one_owner(Barrier::None, 1, 1);
}

/// A chunk of two slots, the shelf that has those that are free, and a door's magazine, as
/// `longshore-domain` uses them: the magazine under the bias, the shelf under its lock.
struct Pool {
    free: Mutex<Vec<usize>>,
    /// Bytes. Loom sees two who use one at once.
    slots: [UnsafeCell<u32>; 2],
    kept: OwnerBiased<Vec<usize>>,
}

// SAFETY: whoever has the number of a slot has its bytes, which is what is tested.
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

    /// A transfer by the door: it takes a slot, which it may have to fetch, and gives it back.
    ///
    /// # Safety
    /// By one thread only.
    unsafe fn transfer(&self) {
        let take = |kept: &mut Vec<usize>| {
            if kept.is_empty() {
                kept.append(&mut self.free.lock().unwrap());
            }
            kept.pop()
        };
        // SAFETY: the caller's promise.
        let Some(slot) = (unsafe { self.kept.own(take) }.unwrap()) else { return };
        // The door is left meanwhile.
        self.fill(slot);
        // SAFETY: the caller's promise.
        unsafe { self.kept.own(|kept| kept.push(slot)) }.unwrap();
    }

    /// What a door keeps is given back.
    fn clear(&self, kept: &mut Vec<usize>) {
        self.free.lock().unwrap().append(kept);
    }

    /// Has the magazine given back, and frees the chunk if all of it is free: nobody uses it then.
    fn shrink(&self) -> bool {
        self.kept.claim(|kept| self.clear(kept));
        let free = std::mem::take(&mut *self.free.lock().unwrap());
        let is_idle = free.len() == self.slots.len();
        if is_idle {
            free.iter().for_each(|slot| self.fill(*slot));
        }
        // Not idle; or another chunk, as the next transfer makes it.
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
            // SAFETY: this thread alone.
            unsafe { pool.transfer() };
        }
        // The door is dropped.
        // SAFETY: this thread alone.
        unsafe { pool.kept.own(|kept| pool.clear(kept)) }.unwrap();
        shrinkers.into_iter().for_each(|shrinker| {
            shrinker.join().unwrap();
        });
        let mut free = pool.free.lock().unwrap().clone();
        free.sort_unstable();
        assert_eq!(free, [0, 1], "a slot is lost, or there twice");
        assert!(pool.shrink());
    });
}

#[test]
fn magazines_are_given_back_by_a_claim() {
    magazines(Barrier::Expedited, 1, 1);
    magazines(Barrier::Fence, 1, 1);
    magazines(Barrier::Expedited, 2, 1);
}

#[test]
#[should_panic]
fn without_barriers_a_slot_has_two_owners() {
    magazines(Barrier::None, 1, 1);
}
