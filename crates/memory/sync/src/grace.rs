//! Sessions' slots, and the grace period that an unmapping waits.
//!
//! ```text
//!   session                                  the unmapping thread
//!   ───────                                  ────────────────────
//!   busy = 1                                 clear the entries
//!   (order for the compiler)                 fence; nobody active: done
//!   flush == seen?  no: empty the TLB        each active slot: flush = epoch
//!   translate, access                        membarrier
//!   busy = 0                                 each such slot: wait for busy == 0 or acked ≥ epoch
//! ```
//!
//! Why that is enough. `membarrier` puts a full barrier into each session, somewhere. Where it falls
//! after the session's `busy = 1`, the other side sees that and waits. Where it falls before, so does
//! it before the comparison: the session sees the new flush word, empties its TLB, and finds the
//! entries cleared when it walks.
//!
//! A session that is hardly ever idle is not waited for in vain: when it next enters it sees the new
//! flush word, and writes it to `acked`, once what it did before is done.
//!
//! A *parked* session has an empty TLB, and executes a fence before it walks again. Either the
//! unmapping side sees it active after its own fence, or the session's walk sees the entries
//! cleared. So parked sessions cost no barrier.
//!
//! Where there is no `membarrier`, sessions execute a fence each time they enter.
//!
//! A slot that stays busy for long is waited for all the same, but whoever waits is called now and
//! then meanwhile ([`Grace::wait_asking`]), to end what keeps the slot busy.
#![expect(unsafe_code, reason = "slots are linked by pointers and outlive the sessions in them")]

use std::cell::Cell;
use std::ptr::NonNull;

use crate::back_off::BackOff;
use crate::barrier::{Barrier, light_barrier};
use crate::primitives::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

const FREE: u32 = 0;
const PARKED: u32 = 1;
const ACTIVE: u32 = 2;

/// One session's place, padded so that nobody else's stores touch its lines.
#[repr(C, align(128))]
pub struct Slot<P> {
    /// Nonzero while the session may use translations.
    busy: AtomicU32,
    state: AtomicU32,
    /// The last epoch whose translations the session must forget. Written by others.
    flush: AtomicU64,
    /// The last epoch that the session has seen with nothing older in use.
    acked: AtomicU64,
    /// Which thread the session belongs to.
    owner: AtomicUsize,
    next: AtomicPtr<Slot<P>>,
    private: Private<P>,
}

/// What only the session itself looks at, on lines of its own.
#[repr(C, align(128))]
struct Private<P>(P);

// SAFETY: what is private is accessed by the session that claimed the slot only, which is what
// `Slot::private` asks for; the rest are atomics.
unsafe impl<P: Send> Sync for Slot<P> {}

/// All slots of one space.
pub struct Grace<P> {
    head: AtomicPtr<Slot<P>>,
    epoch: AtomicU64,
    barrier: Barrier,
    /// Off only in tests that show what the waiting is for.
    waits: bool,
    barriers: AtomicU64,
    waited: AtomicU64,
}

// SAFETY: the slots are shared as `Slot` says; they belong to this list.
unsafe impl<P: Send> Send for Grace<P> {}
// SAFETY: as above.
unsafe impl<P: Send> Sync for Grace<P> {}

/// No flush word is this.
const NEVER: u64 = u64::MAX;

/// What a session knows of its slot: the flush word for which its TLB is right, and how many scopes
/// keep the slot busy.
///
/// The short way in is [`Slot::enter`] and [`is_current`](Self::is_current), and the TLB may be used
/// where that says so. It says so only outside of any scope, and never where the session has to
/// execute a fence: those go the long way, [`enter`](Self::enter).
#[derive(Debug)]
pub struct Seen {
    /// The flush word for which the short way may be taken.
    short: Cell<u64>,
    /// The flush word for which the TLB is right.
    last: Cell<u64>,
    pins: Cell<u32>,
    /// Whether a new flush word was seen within a scope, which could not be said then.
    owes: Cell<bool>,
    fences: bool,
}

impl Seen {
    /// Of a session with an empty TLB.
    pub fn new(barrier: Barrier) -> Self {
        Self {
            short: Cell::new(NEVER),
            last: Cell::new(NEVER),
            pins: Cell::new(0),
            owes: Cell::new(false),
            fences: barrier == Barrier::Fence,
        }
    }

    /// Whether the TLB may be used at once. The slot must be entered.
    #[inline(always)]
    pub fn is_current<P>(&self, slot: &Slot<P>) -> bool {
        slot.flush.load(Ordering::Relaxed) == self.short.get()
    }

    /// Enters the slot the long way; `empty` empties the TLB if need be. The TLB may be used then.
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
            // What was cleared before the word was written is seen by the walks that follow.
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

    /// Ends an access that went the long way.
    #[inline]
    pub fn leave<P>(&self, slot: &Slot<P>) {
        slot.busy.store(self.pins.get(), Ordering::Release);
    }

    /// Opens a scope, with the slot entered: until it is closed the slot stays busy.
    pub fn open(&self) {
        self.pins.set(self.pins.get() + 1);
        self.short.set(NEVER);
    }

    /// Closes a scope; the slot is not left by that. Nothing translated in it may be used any more.
    pub fn close<P>(&self, slot: &Slot<P>) {
        self.pins.set(self.pins.get() - 1);
        self.settle(slot);
        self.allow_short();
    }

    /// Leaves the slot although scopes are open: what they use must be kept in another way. How many
    /// there are, for [`resume`](Self::resume).
    pub fn suspend<P>(&self, slot: &Slot<P>) -> u32 {
        let pins = self.pins.replace(0);
        self.settle(slot);
        self.allow_short();
        slot.busy.store(0, Ordering::Release);
        pins
    }

    /// Goes on with the scopes that [`suspend`](Self::suspend) left, with the slot entered again.
    pub fn resume(&self, pins: u32) {
        self.pins.set(pins);
        if pins != 0 {
            self.short.set(NEVER);
        }
    }

    /// Says what was seen within scopes, once they are closed. Else a session that is hardly ever
    /// idle would be waited for in vain.
    fn settle<P>(&self, slot: &Slot<P>) {
        if self.pins.get() == 0 && self.owes.replace(false) {
            slot.acked.store(self.last.get(), Ordering::Release);
        }
    }

    /// How many scopes are open.
    pub fn pins(&self) -> u32 {
        self.pins.get()
    }

    /// Whether a scope is open.
    pub fn is_pinned(&self) -> bool {
        self.pins.get() != 0
    }

    /// Takes no part in grace periods until the slot is next entered. The TLB must be empty, and no
    /// access going on.
    pub fn park<P>(&self, slot: &Slot<P>) {
        self.forget();
        slot.state.store(PARKED, Ordering::Release);
    }

    /// Gives the slot back, for another session. As [`park`](Self::park).
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
    /// Begins an access. What the session does next must be to ask whether its TLB is current.
    #[inline(always)]
    pub fn enter(&self) {
        self.busy.store(1, Ordering::Relaxed);
        light_barrier();
    }

    /// Ends an access that went the short way.
    #[inline(always)]
    pub fn leave(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// What is private to the session.
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

impl<P> Grace<P> {
    /// Without slots.
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

    /// How sessions are made to see.
    pub fn barrier(&self) -> Barrier {
        self.barrier
    }

    /// Grace periods that needed a barrier, and slots that were waited for.
    pub fn counts(&self) -> (u64, u64) {
        (self.barriers.load(Ordering::Relaxed), self.waited.load(Ordering::Relaxed))
    }

    /// A slot for a session of the thread `owner`, parked: one that was given back, or a new one.
    /// It lives as long as this.
    pub fn claim(&self, owner: usize, make: impl FnOnce() -> P) -> NonNull<Slot<P>> {
        for slot in self.slots() {
            let claimed =
                slot.state.compare_exchange(FREE, PARKED, Ordering::Acquire, Ordering::Relaxed);
            if claimed.is_ok() {
                slot.owner.store(owner, Ordering::Relaxed);
                return NonNull::from(slot);
            }
        }
        let made = Box::into_raw(Box::new(Slot {
            busy: AtomicU32::new(0),
            state: AtomicU32::new(PARKED),
            flush: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            owner: AtomicUsize::new(owner),
            next: AtomicPtr::new(std::ptr::null_mut()),
            private: Private(make()),
        }));
        // SAFETY: just made, and not freed before this is dropped.
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

    /// Whether a session of the thread `owner` is in the middle of something, which that thread
    /// could not wait for.
    pub fn is_busy_in(&self, owner: usize) -> bool {
        let is_own = |slot: &Slot<P>| slot.owner.load(Ordering::Relaxed) == owner;
        self.slots().any(|slot| is_own(slot) && slot.busy.load(Ordering::Relaxed) != 0)
    }

    /// As [`wait_asking`](Self::wait_asking), of sessions that end what they do by themselves.
    pub fn wait(&self) {
        self.wait_asking(|_| {});
    }

    /// Returns when no session can use what was cleared before this was called: none has it in its
    /// TLB, and none is in the middle of an access by it. While a slot stays busy `ask` is called now
    /// and then with the thread it belongs to, to end what that thread is busy with.
    pub fn wait_asking(&self, mut ask: impl FnMut(usize)) {
        fence(Ordering::SeqCst);
        let is_active = |slot: &&Slot<P>| slot.state.load(Ordering::Acquire) == ACTIVE;
        if !self.slots().any(|slot| is_active(&slot)) {
            return;
        }
        // A session that has seen this epoch has seen what was cleared before each earlier one.
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        for slot in self.slots().filter(is_active) {
            slot.flush.fetch_max(epoch, Ordering::Release);
        }
        self.barrier.execute();
        self.barriers.fetch_add(1, Ordering::Relaxed);
        if !self.waits {
            return;
        }
        // One that became active meanwhile sees what was cleared.
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
            // SAFETY: null, or a slot that was leaked into the list and lives until drop.
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

impl<P> Drop for Grace<P> {
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
