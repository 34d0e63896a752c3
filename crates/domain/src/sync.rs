//! The atomics and locks, so that a model checker can stand in for them.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering, fence},
    sync::{Mutex, MutexGuard},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, Ordering, fence},
    sync::{Mutex, MutexGuard},
};

/// As loom's, which sees who accesses it.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, then: impl FnOnce(*mut T) -> R) -> R {
        then(self.0.get())
    }
}

/// What the owner has between its store and its load where `membarrier` does the rest: nothing but an
/// order the compiler keeps.
#[cfg(not(loom))]
#[inline(always)]
fn light_barrier() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// To loom `membarrier` is a full fence on both sides.
#[cfg(loom)]
fn light_barrier() {
    fence(Ordering::SeqCst);
}

/// Waits a little: longer the more rounds there were.
#[cfg(not(loom))]
pub(crate) fn back_off(round: u32) {
    const SPINS: u32 = 128;
    if round < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(loom)]
pub(crate) fn back_off(_round: u32) {
    loom::thread::yield_now();
}

/// How an owner is made to see that somebody else wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom tests"))]
pub enum Barrier {
    /// `membarrier(2)`: the owner pays nothing.
    Expedited,
    /// A full fence each time the owner goes in.
    Fence,
    /// None, to show what they are for.
    #[cfg(loom)]
    None,
}

impl Barrier {
    /// The best that this machine has.
    #[cfg(not(loom))]
    pub(crate) fn best() -> Self {
        static BEST: std::sync::OnceLock<Barrier> = std::sync::OnceLock::new();
        // Miri makes no system calls.
        let best = || match cfg!(miri) || longshore_sys::membarrier::register().is_err() {
            true => Self::Fence,
            false => Self::Expedited,
        };
        *BEST.get_or_init(best)
    }

    /// Has every other thread execute a full barrier, and this one.
    pub(crate) fn execute(self) {
        match self {
            #[cfg(not(loom))]
            Self::Expedited => longshore_sys::membarrier::all_threads()
                .expect("a registered process may call membarrier"),
            #[cfg(loom)]
            Self::Expedited => fence(Ordering::SeqCst),
            Self::Fence => fence(Ordering::SeqCst),
            #[cfg(loom)]
            Self::None => {}
        }
    }

    /// What the owner executes between its store and its load.
    #[inline(always)]
    pub(crate) fn owner(self) {
        match self {
            Self::Expedited => light_barrier(),
            Self::Fence => fence(Ordering::SeqCst),
            #[cfg(loom)]
            Self::None => {}
        }
    }
}
