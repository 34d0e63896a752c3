//! Grace periods: an unmapping thread waits until no session uses an old translation.
//!
//! ```text
//!   session                                  the unmapping thread
//!   ───────                                  ────────────────────
//!   busy = 1                                 clear the entries
//!   (order for the compiler)                 fence; none active: done
//!   flush == seen?  no: empty the TLB        each active slot: flush = epoch
//!   translate, access                        membarrier
//!   busy = 0                                 each such slot: wait for busy == 0 or acked ≥ epoch
//! ```
//!
//! This is enough because `membarrier` executes a full barrier on each session's thread. If the barrier
//! comes after the session's `busy = 1`, the unmapping thread sees that and waits. If it comes before,
//! it also comes before the comparison: the session sees the new flush word, empties its TLB, and finds
//! the entries cleared when it walks.
//!
//! The wait also ends if a session is hardly ever idle: when the session next enters, it sees the new
//! flush word, and stores it in `acked` as soon as its earlier accesses are done.
//!
//! A *quiescent* session has an empty TLB, and executes a fence before it walks again. Either the
//! unmapping thread sees it active after its own fence, or the session's walk sees the entries
//! cleared. So quiescent sessions cost no barrier.
//!
//! Without `membarrier`, sessions execute a fence each time they enter.
//!
//! While a slot stays busy for a long time, [`GracePeriods::wait_with`] repeatedly calls its
//! argument, which can end the call that keeps the slot busy.
#![expect(unsafe_code, reason = "slots are linked by pointers and outlive the sessions in them")]

use std::cell::Cell;
use std::ptr::NonNull;

use crate::back_off::BackOff;
use crate::barrier::{Barrier, light_barrier};
use crate::primitives::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

const FREE: u32 = 0;
const QUIESCENT: u32 = 1;
const ACTIVE: u32 = 2;

/// The slot of one session, padded so that stores to its neighbors do not touch its cache lines.
#[repr(C, align(128))]
pub struct Slot<P> {
    /// Nonzero while the session may use translations.
    busy: AtomicU32,
    state: AtomicU32,
    /// The last epoch whose translations the session must drop. Unmapping threads write it.
    flush: AtomicU64,
    /// The last epoch that the session has acknowledged: it uses no older translation.
    acked: AtomicU64,
    /// The thread that the session belongs to.
    owner: AtomicUsize,
    next: AtomicPtr<Slot<P>>,
    private: Private<P>,
}

/// The value that only the session accesses, on cache lines of its own.
#[repr(C, align(128))]
struct Private<P>(P);

// SAFETY: only the session that claimed the slot accesses the private value, as `Slot::private`
// requires; the other fields are atomics.
unsafe impl<P: Send> Sync for Slot<P> {}

/// The slots of one address space, and the grace periods of its unmapping threads.
pub struct GracePeriods<P> {
    head: AtomicPtr<Slot<P>>,
    epoch: AtomicU64,
    barrier: Barrier,
    /// `false` only in tests that show what breaks without the wait.
    waits: bool,
    barriers: AtomicU64,
    waited: AtomicU64,
}

// SAFETY: the list owns its slots, which may be shared as for `Slot`.
unsafe impl<P: Send> Send for GracePeriods<P> {}
// SAFETY: as above.
unsafe impl<P: Send> Sync for GracePeriods<P> {}

/// A value that no flush word has.
const NEVER: u64 = u64::MAX;

/// The state that a session keeps of its own slot: the flush word for which its TLB is valid, and the
/// number of open scopes, which keep the slot busy.
///
/// The fast path is [`Slot::enter`], and then the TLB may be used if [`is_current`](Self::is_current)
/// returns `true`. It returns `false` within a scope, and always if the session has to execute a
/// fence. The slow path is [`enter`](Self::enter).
#[derive(Debug)]
pub struct SessionState {
    /// The flush word for which the fast path may be taken.
    short: Cell<u64>,
    /// The flush word for which the TLB is valid.
    last: Cell<u64>,
    pins: Cell<u32>,
    /// `true` if the session saw a new flush word within a scope, where it could not acknowledge
    /// it.
    owes: Cell<bool>,
    fences: bool,
}

impl SessionState {
    /// Returns the state of a session with an empty TLB.
    pub fn new(barrier: Barrier) -> Self {
        Self {
            short: Cell::new(NEVER),
            last: Cell::new(NEVER),
            pins: Cell::new(0),
            owes: Cell::new(false),
            fences: barrier == Barrier::Fence,
        }
    }

    /// Returns `true` if the TLB may be used at once. The slot must be entered.
    #[inline(always)]
    pub fn is_current<P>(&self, slot: &Slot<P>) -> bool {
        slot.flush.load(Ordering::Relaxed) == self.short.get()
    }

    /// Enters the slot on the slow path, and calls `empty` if the TLB must be emptied. The TLB may be
    /// used afterwards.
    #[inline]
    pub fn enter<P>(&self, slot: &Slot<P>, empty: impl FnOnce()) {
        slot.enter();
        if self.fences {
            fence(Ordering::SeqCst);
        }
        if slot.state.load(Ordering::Relaxed) != ACTIVE {
            slot.state.store(ACTIVE, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        let word = slot.flush.load(Ordering::Relaxed);
        if word != self.last.get() {
            // The walks that follow see all entries that were cleared before the word was written.
            fence(Ordering::Acquire);
            empty();
            self.last.set(word);
            if self.pins.get() == 0 {
                slot.acked.store(word, Ordering::Release);
            } else {
                self.owes.set(true);
            }
        }
        self.allow_short();
    }

    /// Ends an access that took the slow path.
    #[inline]
    pub fn leave<P>(&self, slot: &Slot<P>) {
        slot.busy.store(self.pins.get(), Ordering::Release);
    }

    /// Opens a scope. The slot must be entered, and stays busy until the scope is closed.
    pub fn open(&self) {
        self.pins.set(self.pins.get() + 1);
        self.short.set(NEVER);
    }

    /// Closes a scope, without leaving the slot. No translation of the scope may be used afterwards.
    pub fn close<P>(&self, slot: &Slot<P>) {
        self.pins.set(self.pins.get() - 1);
        self.settle(slot);
        self.allow_short();
    }

    /// Leaves the slot although scopes are open, and returns their number for
    /// [`resume`](Self::resume). Until then, the caller must keep their memory alive by other
    /// means.
    pub fn suspend<P>(&self, slot: &Slot<P>) -> u32 {
        let pins = self.pins.replace(0);
        self.settle(slot);
        self.allow_short();
        slot.busy.store(0, Ordering::Release);
        pins
    }

    /// Resumes the scopes that [`suspend`](Self::suspend) left. The slot must be entered again.
    pub fn resume(&self, pins: u32) {
        self.pins.set(pins);
        if pins != 0 {
            self.short.set(NEVER);
        }
    }

    /// Acknowledges the flush words that were seen within scopes, once all scopes are closed.
    /// Otherwise, unmapping threads would keep waiting for a session that is hardly ever idle.
    fn settle<P>(&self, slot: &Slot<P>) {
        if self.pins.get() == 0 && self.owes.replace(false) {
            slot.acked.store(self.last.get(), Ordering::Release);
        }
    }

    /// Returns the number of open scopes.
    pub fn pins(&self) -> u32 {
        self.pins.get()
    }

    /// Returns `true` if a scope is open.
    pub fn is_pinned(&self) -> bool {
        self.pins.get() != 0
    }

    /// Makes the session quiescent: grace periods do not wait for it until it enters its slot again.
    /// The TLB must be empty, and no access in progress.
    pub fn quiesce<P>(&self, slot: &Slot<P>) {
        self.forget();
        slot.state.store(QUIESCENT, Ordering::Release);
    }

    /// Gives the slot back for another session. The conditions are those of
    /// [`quiesce`](Self::quiesce).
    pub fn release<P>(&self, slot: &Slot<P>) {
        self.forget();
        slot.owner.store(0, Ordering::Relaxed);
        slot.state.store(FREE, Ordering::Release);
    }

    fn forget(&self) {
        self.short.set(NEVER);
        self.last.set(NEVER);
    }

    fn allow_short(&self) {
        if self.pins.get() == 0 && !self.fences {
            self.short.set(self.last.get());
        }
    }
}

impl<P> Slot<P> {
    /// Begins an access. The session must then check that its TLB is current.
    #[inline(always)]
    pub fn enter(&self) {
        self.busy.store(1, Ordering::Relaxed);
        light_barrier();
    }

    /// Ends an access that took the fast path.
    #[inline(always)]
    pub fn leave(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// Returns the value that is private to the session.
    ///
    /// # Safety
    /// The caller must be the session that claimed the slot, on its thread.
    #[inline(always)]
    pub unsafe fn private(&self) -> &P {
        &self.private.0
    }

    fn has_left(&self, epoch: u64) -> bool {
        self.busy.load(Ordering::Acquire) == 0 || self.acked.load(Ordering::Acquire) >= epoch
    }
}

impl<P> GracePeriods<P> {
    /// Returns grace periods without slots. `waits` is `false` only in tests that show what breaks
    /// without the wait.
    pub fn new(barrier: Barrier, waits: bool) -> Self {
        Self {
            head: AtomicPtr::new(std::ptr::null_mut()),
            epoch: AtomicU64::new(0),
            barrier,
            waits,
            barriers: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        }
    }

    /// Returns the barrier that orders sessions and unmapping threads.
    pub fn barrier(&self) -> Barrier {
        self.barrier
    }

    /// Returns the number of grace periods that needed a barrier.
    pub fn barriers(&self) -> u64 {
        self.barriers.load(Ordering::Relaxed)
    }

    /// Returns the number of waits for a slot.
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    /// Returns a slot for a session of the thread `owner`, which is quiescent: a released one, or a new
    /// one with the private value that `make` returns. It lives as long as `self`.
    pub fn claim(&self, owner: usize, make: impl FnOnce() -> P) -> NonNull<Slot<P>> {
        for slot in self.slots() {
            let claimed =
                slot.state.compare_exchange(FREE, QUIESCENT, Ordering::Acquire, Ordering::Relaxed);
            if claimed.is_ok() {
                slot.owner.store(owner, Ordering::Relaxed);
                return NonNull::from(slot);
            }
        }
        let made = Box::into_raw(Box::new(Slot {
            busy: AtomicU32::new(0),
            state: AtomicU32::new(QUIESCENT),
            flush: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            owner: AtomicUsize::new(owner),
            next: AtomicPtr::new(std::ptr::null_mut()),
            private: Private(make()),
        }));
        // SAFETY: just made, and not freed before `self` is dropped.
        let slot = unsafe { &*made };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            slot.next.store(head, Ordering::Relaxed);
            let pushed =
                self.head.compare_exchange(head, made, Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => return NonNull::from(slot),
                Err(now) => head = now,
            }
        }
    }

    /// Returns `true` if a session of the thread `owner` is in an access or a scope. That thread
    /// cannot wait for itself without a deadlock.
    pub fn is_busy_in(&self, owner: usize) -> bool {
        let is_own = |slot: &Slot<P>| slot.owner.load(Ordering::Relaxed) == owner;
        self.slots().any(|slot| is_own(slot) && slot.busy.load(Ordering::Relaxed) != 0)
    }

    /// Waits as [`wait_with`](Self::wait_with) does, for sessions that need no notification.
    pub fn wait(&self) {
        self.wait_with(|_| {});
    }

    /// Waits until no session can use an entry that was cleared before the call: no TLB has it, and
    /// no access that used it is in progress. While a slot stays busy, this repeatedly calls `ask`
    /// with the thread that the slot belongs to, so that the caller can ask that thread to end its
    /// access.
    pub fn wait_with(&self, mut ask: impl FnMut(usize)) {
        fence(Ordering::SeqCst);
        let is_active = |slot: &&Slot<P>| slot.state.load(Ordering::Acquire) == ACTIVE;
        if !self.slots().any(|slot| is_active(&slot)) {
            return;
        }
        // A session that has seen this epoch has seen all entries that were cleared before each
        // earlier one.
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        for slot in self.slots().filter(is_active) {
            slot.flush.fetch_max(epoch, Ordering::Release);
        }
        self.barrier.execute();
        self.barriers.fetch_add(1, Ordering::Relaxed);
        if !self.waits {
            return;
        }
        // A session that became active in the meantime sees the cleared entries.
        let is_told = |slot: &&Slot<P>| slot.flush.load(Ordering::Relaxed) >= epoch;
        for slot in self.slots().filter(is_told) {
            let ask_owner = || ask(slot.owner.load(Ordering::Relaxed));
            if !BackOff::Sleep.wait(|| slot.has_left(epoch), ask_owner) {
                self.waited.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Slot<P>> {
        let at = |link: &AtomicPtr<Slot<P>>| {
            // SAFETY: null, or a slot that was leaked into the list and lives until it is dropped.
            unsafe { link.load(Ordering::Acquire).as_ref() }
        };
        let mut next = at(&self.head);
        std::iter::from_fn(move || {
            let slot = next?;
            next = at(&slot.next);
            Some(slot)
        })
    }
}

impl<P> Drop for GracePeriods<P> {
    fn drop(&mut self) {
        let mut next = self.head.load(Ordering::Relaxed);
        while !next.is_null() {
            // SAFETY: leaked into the list by `claim`; no session is left, because each keeps the
            // space alive.
            let slot = unsafe { Box::from_raw(next) };
            next = slot.next.load(Ordering::Relaxed);
        }
    }
}
