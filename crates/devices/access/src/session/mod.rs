//! A thread's handle on a space ([`Session`]).
//!
//! ```text
//!   read(iova) ── enter slot ── flush word new? ── first probe ── copy ── leave slot
//!                                    │ yes            │ miss
//!                                    ▼                ▼
//!                              ┌──── slow: empty the TLB, unpark ◄── (also: fences, pins)
//!                              ▼
//!                        other probes ── walk ── part by part: copy, log
//!                                                      │ remote
//!                                                      ▼
//!                                lease, leave slot (pins become leases), call, enter slot
//! ```
#![expect(unsafe_code, reason = "copies through translated addresses while the slot is entered")]

mod atomics;
mod cursors;
mod pin;
mod place;
mod private;
mod remote;
mod transfer;
mod translate;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;

use longshore_mem::Iova;
use longshore_mem::isa::IsaToken;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::fault::{Fault, Reason};
use crate::space::{Space, thread_token};
use crate::tlb::{Entry, READ, Tlb, WRITE_FAST};
use crate::words;
use longshore_sync::grace::{SessionState, Slot};

pub use atomics::Word;
pub use pin::{
    Lease, ReadOnly, ReadWrite, Readable, View, ViewAccess, ViewSlice, Writable, WriteOnly,
};
pub(crate) use place::Place;
pub(crate) use private::Private;

/// A thread's handle on a space: reads and writes by IOVA.
///
/// It stays on its thread. It has a slot of its own in the space, and a TLB. If the TLB has the
/// translation, an access takes no lock, executes no fence and no atomic read-modify-write, and writes
/// to no cache line of another thread.
///
/// A global allocator that itself uses this crate may read, write and pin memory of this process by any
/// session, also while that session allocates. It may make and drop leases, and access remote regions,
/// unless its thread is mapping, unmapping, reading dirty bits or logs, or dropping a lease: these
/// allocate while they hold locks.
///
/// ```compile_fail,E0277
/// # use longshore_access::Space;
/// let space = Space::new().unwrap();
/// let session = space.session();
/// std::thread::spawn(move || drop(session)); // it is not `Send`
/// ```
///
/// ```compile_fail,E0277
/// # use longshore_access::Space;
/// let space = Space::new().unwrap();
/// let session = space.session();
/// std::thread::scope(|scope| {
///     scope.spawn(|| session.park()); // nor `Sync`
/// });
/// ```
pub struct Session {
    slot: NonNull<Slot<Private>>,
    space: Space,
}

impl Space {
    /// Makes a session of the calling thread. It is parked until its first access.
    pub fn session(&self) -> Session {
        Session::new(self)
    }
}

impl Session {
    fn new(space: &Space) -> Self {
        let grace = &space.inner.grace;
        let make = || Private {
            seen: SessionState::new(grace.barrier()),
            token: IsaToken::active(),
            tlb: Tlb::new(),
            arena: RefCell::default(),
            leased: RefCell::default(),
            untold: Cell::new(0),
        };
        Self { slot: grace.claim(thread_token(), make), space: space.clone() }
    }

    /// Returns the space.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Reads `into.len()` bytes from `iova`.
    ///
    /// # Errors
    /// [`Fault`]. The first `done` bytes of `into` are filled then.
    #[inline]
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the slice is private memory.
        unsafe { self.read_raw::<false>(iova, into.as_mut_ptr(), into.len()) }
    }

    /// Writes all of `from` to `iova`.
    ///
    /// # Errors
    /// [`Fault`]. The first `done` bytes are written then, and no others.
    #[inline]
    pub fn write(&self, iova: Iova, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the slice is private memory.
        unsafe { self.write_raw::<false>(iova, from.as_ptr(), from.len()) }
    }

    /// Reads a value: an integer, an array, or a structure that derives `zerocopy`'s traits. A value of
    /// 1, 2, 4 or 8 bytes at a multiple of its size is read by one instruction.
    ///
    /// The byte order is the device's: VirtIO and NVMe are little-endian, so `u64::from_le` converts
    /// their numbers.
    ///
    /// ```
    /// use longshore_access::{Fault, Session};
    /// use longshore_mem::Iova;
    /// use zerocopy::{FromBytes, Immutable, IntoBytes};
    ///
    /// /// A descriptor of a split virtqueue.
    /// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
    /// #[repr(C)]
    /// struct Descriptor {
    ///     address: u64,
    ///     len: u32,
    ///     flags: u16,
    ///     next: u16,
    /// }
    ///
    /// fn descriptor(session: &Session, table: Iova, index: u16) -> Result<Descriptor, Fault> {
    ///     session.read_obj(Iova::new(table.raw() + 16 * u64::from(index)))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Fault`].
    // A call would cost as much as the access.
    #[inline(always)]
    pub fn read_obj<T: FromBytes + IntoBytes>(&self, iova: Iova) -> Result<T, Fault> {
        match size_of::<T>() {
            1 => self.read_word::<1, T>(iova),
            2 => self.read_word::<2, T>(iova),
            4 => self.read_word::<4, T>(iova),
            8 => self.read_word::<8, T>(iova),
            len => {
                let mut value = T::new_zeroed();
                // SAFETY: the value is private memory, and every bit pattern is valid for it.
                unsafe { self.read_raw::<true>(iova, (&raw mut value).cast(), len) }?;
                Ok(value)
            }
        }
    }

    /// Writes the bytes of a value. A value of 1, 2, 4 or 8 bytes at a multiple of its size is written
    /// by one instruction.
    ///
    /// # Errors
    /// [`Fault`].
    // A call would cost as much as the access.
    #[inline(always)]
    pub fn write_obj<T: IntoBytes + Immutable + Copy>(
        &self,
        iova: Iova,
        value: T,
    ) -> Result<(), Fault> {
        match size_of::<T>() {
            1 => self.write_word::<1, T>(iova, &value),
            2 => self.write_word::<2, T>(iova, &value),
            4 => self.write_word::<4, T>(iova, &value),
            8 => self.write_word::<8, T>(iova, &value),
            // SAFETY: the value is private memory and has no padding.
            len => unsafe { self.write_raw::<true>(iova, (&raw const value).cast(), len) },
        }
    }

    /// Makes the session quiescent until its next access, so that unmapping meanwhile needs no barrier.
    /// Call this before the thread waits. It empties the TLB. Within a pin it does nothing.
    pub fn park(&self) {
        let private = self.private();
        if !private.seen.is_pinned() {
            private.tlb.clear();
            private.seen.quiesce(self.slot());
        }
    }

    /// Reads by the first probe of the TLB, or else by [`read_slow`](Self::read_slow). `KNOWN` means
    /// that `len` is a constant of the caller.
    ///
    /// # Safety
    /// `to` must point to `len` bytes of private memory.
    #[inline(always)]
    unsafe fn read_raw<const KNOWN: bool>(
        &self,
        iova: Iova,
        to: *mut u8,
        len: usize,
    ) -> Result<(), Fault> {
        let slot = self.slot();
        slot.enter();
        if let Some(from) = self.hit(iova, len, READ) {
            let token = self.private().token;
            // SAFETY: translated while the slot is entered; `to` is the caller's.
            let done = unsafe { words::copy::<KNOWN>(token, from, to, len) };
            slot.leave();
            if done {
                return Ok(());
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.read_slow(iova, to, len) }
    }

    /// # Safety
    /// `from` must point to `len` bytes of private memory.
    #[inline(always)]
    unsafe fn write_raw<const KNOWN: bool>(
        &self,
        iova: Iova,
        from: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        let slot = self.slot();
        slot.enter();
        if let Some(to) = self.hit_known(iova, len, WRITE_FAST) {
            // SAFETY: translated while the slot is entered; `from` is the caller's.
            let done = unsafe { words::copy::<KNOWN>(self.private().token, from, to, len) };
            slot.leave();
            if done {
                return Ok(());
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.write_second(iova, from, len) }
    }

    #[inline(always)]
    fn read_word<const N: usize, T: FromBytes + IntoBytes>(&self, iova: Iova) -> Result<T, Fault> {
        let slot = self.slot();
        slot.enter();
        if let Some(from) = self.hit(iova, N, READ) {
            // SAFETY: translated while the slot is entered.
            let word = unsafe { words::load::<N>(from) };
            slot.leave();
            if let Some(word) = word {
                let mut value = T::new_zeroed();
                // SAFETY: `T` has `N` bytes, and every bit pattern is valid.
                unsafe { words::put::<N>((&raw mut value).cast(), word) };
                return Ok(value);
            }
        }
        let mut value = T::new_zeroed();
        // SAFETY: the value is private memory of `N` bytes.
        unsafe { self.read_slow(iova, (&raw mut value).cast(), N) }?;
        Ok(value)
    }

    #[inline(always)]
    fn write_word<const N: usize, T: IntoBytes + Immutable + Copy>(
        &self,
        iova: Iova,
        value: &T,
    ) -> Result<(), Fault> {
        let from = (&raw const *value).cast::<u8>();
        let slot = self.slot();
        slot.enter();
        if let Some(to) = self.hit_known(iova, N, WRITE_FAST) {
            // SAFETY: `T` has `N` bytes, none of them padding.
            let word = unsafe { words::get::<N>(from) };
            // SAFETY: translated while the slot is entered.
            let done = unsafe { words::store::<N>(to, word) };
            slot.leave();
            if done {
                return Ok(());
            }
        }
        // SAFETY: the value is private memory of `N` bytes.
        unsafe { self.write_second(iova, from, N) }
    }

    /// Returns the address of `len` bytes from `iova` if one extent contains them all, its flag `flag`
    /// is set, and no flush is pending. The slot must be entered.
    #[inline(always)]
    fn hit(&self, iova: Iova, len: usize, flag: u64) -> Option<*mut u8> {
        let private = self.private();
        if !private.seen.is_current(self.slot()) {
            return None;
        }
        let known = private.tlb.hit(iova.raw(), len, flag);
        if known.is_some() { known } else { self.hit_or_walk(iova.raw(), len, flag) }
    }

    /// Does the same as [`hit`](Self::hit), but searches only extents that the inlined probes find.
    #[inline(always)]
    fn hit_known(&self, iova: Iova, len: usize, flag: u64) -> Option<*mut u8> {
        let private = self.private();
        let is_current = private.seen.is_current(self.slot());
        if is_current { private.tlb.hit(iova.raw(), len, flag) } else { None }
    }

    /// Logs a write of `len` bytes from `iova`, in the extent `entry`, after the slot was entered.
    #[inline]
    pub(crate) fn after_write(&self, entry: &Entry, iova: u64, len: usize) {
        if !entry.permits(WRITE_FAST) {
            // SAFETY: the slot was entered before the write, and is not left yet.
            unsafe { self.space.inner.log_write(iova, len, entry.bus_of(iova)) };
        }
    }

    /// Returns the instruction set for long copies.
    pub(crate) fn token(&self) -> IsaToken {
        self.private().token
    }

    #[inline(always)]
    fn slot(&self) -> &Slot<Private> {
        // SAFETY: a slot lives as long as the space, which the session keeps alive.
        unsafe { self.slot.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn private(&self) -> &Private {
        // SAFETY: this is the session that claimed the slot, and it cannot leave its thread.
        unsafe { self.slot().private() }
    }

    /// Enters the slot by the slow path: executes a fence if the barrier needs one, unparks the session,
    /// and empties the TLB if a flush is pending.
    #[inline]
    pub(crate) fn enter(&self) -> Entered<'_> {
        let private = self.private();
        private.seen.enter(self.slot(), || private.tlb.clear());
        Entered { session: self, scope: None }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let private = self.private();
        private.tlb.clear();
        private.seen.release(self.slot());
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("space", &self.space).finish_non_exhaustive()
    }
}

/// A guard of an entered slot: translations may be used while it lives.
pub(crate) struct Entered<'s> {
    session: &'s Session,
    scope: Option<Scope>,
}

/// A scope in which the caller's code may run. Accesses in it take the slow path, and do not leave the
/// slot while translations from it are in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A pin. Its extents are in [`Private::arena`], and can become leases.
    Pin,
    /// A scope whose translations are not recorded.
    Untold,
}

impl<'s> Entered<'s> {
    /// Opens a scope of kind [`Scope::Untold`] within the slot.
    pub(crate) fn nest(self) -> Self {
        self.nest_as(Scope::Untold)
    }

    pub(crate) fn nest_as(mut self, scope: Scope) -> Self {
        self.open(scope);
        self.scope = Some(scope);
        self
    }

    /// Leaves the slot entered without a guard; [`nested`](Self::nested) makes a new one.
    #[cfg(feature = "vm-memory")]
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }

    /// Makes a guard again for a session on which [`nest`](Self::nest) and then [`forget`](Self::forget)
    /// were called.
    #[cfg(feature = "vm-memory")]
    pub(crate) fn nested(session: &'s Session) -> Self {
        Self { session, scope: Some(Scope::Untold) }
    }

    fn open(&self, scope: Scope) {
        let private = self.session.private();
        private.seen.open();
        if scope == Scope::Untold {
            private.untold.set(private.untold.get() + 1);
        }
    }

    fn close(&self, scope: Scope) {
        let private = self.session.private();
        if scope == Scope::Untold {
            private.untold.set(private.untold.get() - 1);
        }
        private.seen.close(self.session.slot());
    }

    #[inline]
    fn leave(&self) {
        if let Some(scope) = self.scope {
            self.close(scope);
        }
        self.session.private().seen.leave(self.session.slot());
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns the last address of the range of `len` bytes from `iova`, which must not be empty.
pub(crate) fn last_of(iova: Iova, len: usize) -> Result<u64, Fault> {
    let last = iova.raw().checked_add(len as u64 - 1);
    last.ok_or(Fault::at(iova, 0, Reason::Overflow))
}
