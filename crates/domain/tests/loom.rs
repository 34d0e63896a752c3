//! All interleavings of an owner and of those who claim what it owns.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p longshore-domain --test loom`
#![cfg(loom)]
#![allow(unsafe_code, reason = "is the owner")]

use longshore_domain::biased::Biased;
use longshore_domain::sync::Barrier;
use loom::sync::Arc;
use loom::thread;

fn one_owner(barrier: Barrier, turns: i32, claimers: usize) {
    loom::model(move || {
        let value = Arc::new(Biased::new((0, 0), barrier));
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
            unsafe { value.own(both) };
        }
        let count = claimers.len() as i32;
        claimers.into_iter().for_each(|claimer| claimer.join().unwrap());
        // What was done under a claim is seen by the owner.
        // SAFETY: this thread alone.
        assert_eq!(unsafe { value.own(|value| value.0) }, turns + count);
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
