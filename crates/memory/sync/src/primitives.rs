//! Atomics, cells and locks that a model checker can replace: those of the standard library, or
//! those of loom with `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
};
pub use std::sync::PoisonError;
#[cfg(not(loom))]
pub use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// A cell whose accesses loom can track.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Makes a cell that holds a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `then` with a pointer to the value, which `then` may write to if no other code
    /// accesses it.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, then: impl FnOnce(*mut T) -> R) -> R {
        then(self.0.get())
    }
}
