//! The atomics, barriers and locks, so that a model checker can stand in for them.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(any(loom, feature = "vfio-user"))]
pub(crate) use std::sync::PoisonError;
#[cfg(all(feature = "vfio-user", not(loom)))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// What a session has between its store and its load where `membarrier` does the rest: nothing but
/// an order the compiler keeps.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn light_barrier() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// To loom `membarrier` is a full fence on both sides.
#[cfg(loom)]
pub(crate) fn light_barrier() {
    fence(Ordering::SeqCst);
}

/// Rounds of a few cycles, as an access takes.
#[cfg(not(loom))]
const SPINS: u32 = 128;
/// Rounds in which another thread may have the processor, as one that was preempted in the middle of
/// its access.
#[cfg(not(loom))]
const YIELDS: u32 = 256;

/// Whether whoever waits should ask for an end in this round: once what takes longer than an access
/// does, and then each time it has slept.
#[cfg(not(loom))]
pub(crate) fn asks(round: u32) -> bool {
    round == SPINS || round >= SPINS + YIELDS
}

#[cfg(loom)]
pub(crate) fn asks(_round: u32) -> bool {
    true
}

/// Waits a little: longer the more rounds there were.
#[cfg(not(loom))]
pub(crate) fn back_off(round: u32) {
    if round < SPINS {
        std::hint::spin_loop();
    } else if round < SPINS + YIELDS {
        std::thread::yield_now();
    } else {
        // Somebody has pinned it for long.
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

#[cfg(loom)]
pub(crate) fn back_off(_round: u32) {
    loom::thread::yield_now();
}
