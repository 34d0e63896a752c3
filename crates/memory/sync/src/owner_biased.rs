//! A value that one thread uses all the time, without a lock, and other threads rarely.
//!
//! ```text
//!   owner                              another thread
//!   ─────                              ──────────────
//!   busy = 1                           lock
//!   (order for the compiler)           claimed = 1
//!   claimed?  no: use it               membarrier
//!             yes: busy = 0, lock,     wait for busy == 0
//!                  use it, unlock      use it
//!   busy = 0                           claimed = 0, unlock
//! ```
//!
//! Either the barrier comes after the owner's `busy = 1`: then the other thread sees it and waits.
//! Or it comes before: then the owner loads `claimed` after the other thread's store of 1, and
//! waits. This is Dekker's algorithm with the owner's fence moved to the other side, as in biased
//! locks (Dice, Huang and Yang, "Asymmetric Dekker Synchronization", Sun Microsystems, 2001).
#![expect(unsafe_code, reason = "lends a value by a protocol that the compiler cannot check")]

use std::fmt;

use crate::back_off::BackOff;
use crate::barrier::Barrier;
use crate::primitives::{AtomicU32, Mutex, MutexGuard, Ordering, PoisonError, UnsafeCell};

/// A value that one thread, its owner, uses without a lock, and that other threads can claim.
///
/// The owner's accesses cost neither a lock nor a fence if the [`Barrier`] is
/// [`Expedited`](Barrier::Expedited). A claim costs a lock and the barrier. The value is padded, so
/// that stores to its neighbors do not touch the owner's cache lines.
#[repr(align(128))]
pub struct OwnerBiased<T> {
    /// 1 while the owner uses the value.
    busy: AtomicU32,
    /// 1 while another thread waits for the value, or uses it.
    claimed: AtomicU32,
    barrier: Barrier,
    /// Held by any other thread that uses the value, and by the owner, too, while the value is
    /// claimed.
    lock: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: by the protocol above, only one thread uses the value at a time.
unsafe impl<T: Send> Sync for OwnerBiased<T> {}

/// Ends the owner's use of the value when it is dropped, also by a panic.
struct Leave<'b>(&'b AtomicU32);

impl Drop for Leave<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl<T> OwnerBiased<T> {
    /// Returns the value with the barrier that orders its owner and the other threads.
    pub fn new(value: T, barrier: Barrier) -> Self {
        Self {
            busy: AtomicU32::new(0),
            claimed: AtomicU32::new(0),
            barrier,
            lock: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `then` with the value, as its owner. Returns `None`, and drops `then`, if a call of
    /// this method is already running: `then` may allocate, and the program's allocator may call
    /// this method again.
    ///
    /// # Safety
    /// Only one thread, the owner, may call this or [`own_with`](Self::own_with).
    #[inline(always)]
    pub unsafe fn own<R>(&self, then: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        unsafe { self.own_with((), |value, ()| then(value)) }.ok()
    }

    /// Calls `then` with the value and `with`, as the owner of the value. If a call of this method
    /// is already running, drops `then`, as [`own`](Self::own) does.
    ///
    /// `with` is passed by value, so that it can stay in registers: a captured reference would need
    /// an address.
    ///
    /// # Errors
    /// `with`, if a call of this method is already running.
    ///
    /// # Safety
    /// As for [`own`](Self::own).
    #[inline(always)]
    pub unsafe fn own_with<A, R>(
        &self,
        with: A,
        then: impl FnOnce(&mut T, A) -> R,
    ) -> Result<R, A> {
        // Only the owner stores to `busy`, so this is its own last value.
        if self.busy.load(Ordering::Relaxed) != 0 {
            return Err(with);
        }
        let leave = self.enter();
        self.barrier.light();
        if self.claimed.load(Ordering::Acquire) == 0 {
            // SAFETY: this is the owner, not in a nested call, and a thread that claims the value
            // waits for it.
            return Ok(self.value.with_mut(|value| then(unsafe { &mut *value }, with)));
        }
        drop(leave);
        Ok(self.own_locked(with, then))
    }

    #[cold]
    fn own_locked<A, R>(&self, with: A, then: impl FnOnce(&mut T, A) -> R) -> R {
        let _locked = self.lock();
        // A thread that claims the value takes the lock before it reads `busy`.
        let _leave = self.enter();
        // SAFETY: any other thread that uses the value holds the lock, and this is not a nested
        // call.
        self.value.with_mut(|value| then(unsafe { &mut *value }, with))
    }

    #[inline(always)]
    fn enter(&self) -> Leave<'_> {
        self.busy.store(1, Ordering::Relaxed);
        Leave(&self.busy)
    }

    /// Calls `then` with the value, from a thread that is not the owner. This waits for the owner;
    /// if the owner needs the value in the meantime, it waits for this call.
    pub fn claim<R>(&self, then: impl FnOnce(&mut T) -> R) -> R {
        /// Ends the claim, also if `then` panics.
        struct Release<'b>(&'b AtomicU32);
        impl Drop for Release<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Release);
            }
        }
        let _locked = self.lock();
        self.claimed.store(1, Ordering::Relaxed);
        let _release = Release(&self.claimed);
        self.barrier.execute();
        // The owner uses the value only for a short time.
        BackOff::Yield.wait(|| self.busy.load(Ordering::Acquire) == 0, || {});
        // SAFETY: the owner does not use the value, and waits for the lock if it needs it again.
        self.value.with_mut(|value| then(unsafe { &mut *value }))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The callers decide if a value is still consistent after a panic.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for OwnerBiased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerBiased").field("barrier", &self.barrier).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// Two counters that are equal while no thread uses them.
    #[test]
    fn one_thread_at_a_time_uses_the_value() {
        let (turns, claims) = if cfg!(miri) { (50, 10) } else { (2_000_000, 300) };
        for barrier in [Barrier::best(), Barrier::Fence] {
            let value = OwnerBiased::new((0u64, 0u64), barrier);
            let stop = AtomicBool::new(false);
            let (mut owned, mut claimed) = (0, 0);
            thread::scope(|scope| {
                let claiming = scope.spawn(|| {
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) || count < claims {
                        value.claim(|value| {
                            assert_eq!(value.0, value.1);
                            value.0 += 1;
                            thread::yield_now();
                            value.1 += 1;
                        });
                        count += 1;
                        if count >= claims {
                            break;
                        }
                    }
                    count
                });
                for _ in 0..turns {
                    // SAFETY: only this thread is the owner.
                    let entered = unsafe {
                        value.own(|value| {
                            assert_eq!(value.0, value.1);
                            value.0 += 1;
                            std::hint::black_box(&value);
                            value.1 += 1;
                        })
                    };
                    assert!(entered.is_some());
                    owned += 1;
                }
                stop.store(true, Ordering::Relaxed);
                claimed = claiming.join().unwrap();
            });
            assert_eq!(value.claim(|value| value.0), owned + claimed);
        }
    }

    #[test]
    fn a_value_can_be_used_after_a_panic() {
        let value = OwnerBiased::new(1, Barrier::best());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: only this thread is the owner.
            unsafe { value.own(|_| panic!("inside")) };
        }));
        assert!(panicked.is_err());
        assert_eq!(value.claim(|value| *value), 1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            value.claim(|_| panic!("inside"));
        }));
        assert!(panicked.is_err());
        // SAFETY: only this thread is the owner.
        assert_eq!(unsafe { value.own(|value| *value) }, Some(1));
    }

    #[test]
    fn a_nested_call_of_the_owner_returns_none() {
        let value = OwnerBiased::new(1, Barrier::best());
        let add = |value: &mut i32| *value += 1;
        let twice = || {
            // SAFETY: only this thread is the owner.
            let second = || unsafe { value.own(add) };
            let first = |value: &mut i32| {
                add(value);
                let second = second();
                (*value, second)
            };
            // SAFETY: only this thread is the owner.
            unsafe { value.own(first) }
        };
        assert_eq!(twice(), Some((2, None)));
        // The same with the lock, as if another thread claimed the value repeatedly.
        value.claimed.store(1, Ordering::Relaxed);
        assert_eq!(twice(), Some((3, None)));
        value.claimed.store(0, Ordering::Relaxed);
        assert_eq!(twice(), Some((4, None)));
    }
}
