//! A thread's handle on a space.
//!
//! ```text
//!   read(iova) ── enter slot ── flush word new? ── first probe ── copy ── leave slot
//!                                    │ yes            │ miss
//!                                    ▼                ▼
//!                              ┌──── slow: empty the TLB, unpark ◄── (also: fences, pins)
//!                              ▼
//!                        other probes ── walk ── piece by piece: copy, log
//!                                                      │ remote
//!                                                      ▼
//!                                lease, leave slot (pins become leases), ask, enter slot
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
/// It stays on its thread, and has a slot of its own in the space, and a TLB. Where the TLB has the
/// translation an access takes no lock and executes no fence and no atomic operation, and no other
/// thread's memory is written.
///
/// The program's global allocator may read, write and pin memory of this process by any session, also
/// while that session allocates. It may make and drop leases, and access remote regions, unless its
/// thread is mapping, unmapping, reading which pages were written, or dropping a lease: these
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
    /// A session of the calling thread. It is parked until its first access.
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

    /// The space.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Reads `into.len()` bytes from `iova`.
    ///
    /// # Errors
    /// [`Fault`]; `into` has its first `done` bytes then.
    #[inline]
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: our own bytes.
        unsafe { self.read_raw::<false>(iova, into.as_mut_ptr(), into.len()) }
    }

    /// Writes all of `from` to `iova`.
    ///
    /// # Errors
    /// [`Fault`]; the first `done` bytes are written then, and no others.
    #[inline]
    pub fn write(&self, iova: Iova, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: our own bytes.
        unsafe { self.write_raw::<false>(iova, from.as_ptr(), from.len()) }
    }

    /// Reads a value whose bytes are as in memory: an integer, an array, or a structure for which
    /// `zerocopy`'s traits are derived. A value of 1, 2, 4 or 8 bytes at a multiple of its size is read
    /// by one instruction.
    ///
    /// The bytes are in the device's order: VirtIO and NVMe are little-endian, so `u64::from_le`
    /// converts their numbers.
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
                // SAFETY: our own value, of which any bytes are one.
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
            // SAFETY: our own value, which has no padding.
            len => unsafe { self.write_raw::<true>(iova, (&raw const value).cast(), len) },
        }
    }

    /// Takes no part in grace periods until the next access, so that unmapping meanwhile costs no
    /// barrier. For a thread that is about to wait. The TLB is emptied. Within a pin nothing happens.
    pub fn park(&self) {
        let private = self.private();
        if !private.seen.is_pinned() {
            private.tlb.clear();
            private.seen.quiesce(self.slot());
        }
    }

    /// `KNOWN`: `len` is known when this is compiled.
    ///
    /// # Safety
    /// `to` must be our own, of `len` bytes.
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
    /// `from` must be our own, of `len` bytes.
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
                // SAFETY: `T` has `N` bytes, and any are a value.
                unsafe { words::put::<N>((&raw mut value).cast(), word) };
                return Ok(value);
            }
        }
        let mut value = T::new_zeroed();
        // SAFETY: our own value, of `N` bytes.
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
        // SAFETY: our own value, of `N` bytes.
        unsafe { self.write_second(iova, from, N) }
    }

    /// Where `len` bytes from `iova` are, if one extent has them all and its flag `flag` is set, and
    /// if nothing was unmapped since. The slot must be entered.
    #[inline(always)]
    fn hit(&self, iova: Iova, len: usize, flag: u64) -> Option<*mut u8> {
        let private = self.private();
        if !private.seen.is_current(self.slot()) {
            return None;
        }
        let known = private.tlb.hit(iova.raw(), len, flag);
        if known.is_some() { known } else { self.hit_or_walk(iova.raw(), len, flag) }
    }

    /// The same, of those extents that are found without a call.
    #[inline(always)]
    fn hit_known(&self, iova: Iova, len: usize, flag: u64) -> Option<*mut u8> {
        let private = self.private();
        let is_current = private.seen.is_current(self.slot());
        if is_current { private.tlb.hit(iova.raw(), len, flag) } else { None }
    }

    /// Notes that `len` bytes from `iova`, in the extent `entry`, were written since the slot was
    /// entered.
    #[inline]
    pub(crate) fn after_write(&self, entry: &Entry, iova: u64, len: usize) {
        if !entry.permits(WRITE_FAST) {
            // SAFETY: the slot was entered before the write, and is not left yet.
            unsafe { self.space.inner.log_write(iova, len, entry.bus_of(iova)) };
        }
    }

    /// With which instructions long copies are done.
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

    /// Enters the slot the long way: with a fence where that is the session's part, unparked, and
    /// with a TLB that is right for the flush word.
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

/// The slot, entered: translations may be used while it lives.
pub(crate) struct Entered<'s> {
    session: &'s Session,
    scope: Option<Scope>,
}

/// A scope in which the caller's code may run. Its accesses go the long way, and do not leave the
/// slot where somebody uses what was translated in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A pin: what it uses is in [`Private::arena`], and can be leased instead.
    Pin,
    /// Any other.
    Untold,
}

impl<'s> Entered<'s> {
    /// The same, with the caller's code running within.
    pub(crate) fn nest(self) -> Self {
        self.nest_as(Scope::Untold)
    }

    pub(crate) fn nest_as(mut self, scope: Scope) -> Self {
        self.open(scope);
        self.scope = Some(scope);
        self
    }

    /// Keeps the slot entered until [`nested`](Self::nested) of the session is dropped.
    #[cfg(feature = "vm-memory")]
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }

    /// The same again of a session that a [`forget`](Self::forget) after [`nest`](Self::nest) has left
    /// entered.
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

/// Where the range of `len` bytes from `iova` ends, inclusive; it is not empty.
pub(crate) fn last_of(iova: Iova, len: usize) -> Result<u64, Fault> {
    let last = iova.raw().checked_add(len as u64 - 1);
    last.ok_or(Fault::at(iova, 0, Reason::Overflow))
}
