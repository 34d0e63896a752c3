//! Calls to remote regions.
//!
//! A session leaves its slot during a call, so that threads that unmap other memory do not wait for the
//! other side's answer. For this, pins around the call become leases until they end. The slot stays busy
//! only if a scope around the call uses translations that are not recorded; then a thread that waits for
//! the slot cancels the call.
#![expect(unsafe_code, reason = "looks up the region of pinned memory")]

use std::sync::Arc;

use longshore_mem::GuestPhys;

use super::private::{Extent, push};
use super::{Entered, Scope, Session};
use crate::fault::Reason;
use crate::lease::{Leased, Leases, Revoke, Written};
use crate::region::{RemoteFault, RemoteMemory};
use crate::space::thread_token;

/// The mark that a call leaves in dirty logs.
#[derive(Clone, Copy)]
pub(super) enum Noted {
    /// None: the call reads.
    Not,
    /// The call writes memory with this guest-physical address.
    As(Option<GuestPhys>),
}

impl Entered<'_> {
    /// Leaves the slot and calls a remote region. During the call, the list of leases has an entry for
    /// `len` bytes from `iova`, so that an unmapping thread cancels the call. Written bytes are logged
    /// before that entry is removed.
    ///
    /// `memory` is dropped before the slot is entered again. It may be the last reference, and then its
    /// owner's code runs, which may access memory by this very session and so leave the slot.
    pub(super) fn ask<R>(
        &mut self,
        iova: u64,
        offset: u64,
        len: usize,
        memory: Arc<dyn RemoteMemory>,
        noted: Noted,
        call: impl FnOnce(&dyn RemoteMemory) -> Result<R, RemoteFault>,
    ) -> Result<R, RemoteFault> {
        let inner = &self.session.space.inner;
        let last = iova + (len as u64 - 1);
        let revoke = Revoke::Cancel(Arc::clone(&memory), offset..offset + len as u64);
        let owner = thread_token();
        // This allocates before the call is on the list, and the program's allocator can use this
        // session.
        self.open(Scope::Untold);
        let written = Arc::default();
        let id = inner.leases.register(Leased { first: iova, last, owner, revoke, written });
        self.close(Scope::Untold);
        let note = |done| {
            if let Noted::As(guest_phys) = noted {
                inner.log_write_outside(iova, done, guest_phys);
            }
        };
        // If the call panics, all bytes are logged, because the number of written bytes is unknown.
        let listed = Listed { leases: &inner.leases, id, note: Some(|| note(len)) };
        self.outside(|| {
            if inner.grace.is_busy_in(owner) {
                inner.leases.keeps_busy(id);
            }
            let outcome = call(&*memory);
            note(match &outcome {
                // The call was abandoned, and the other side may still write the rest.
                Err(RemoteFault { reason: Reason::Revoked | Reason::TimedOut, .. }) | Ok(_) => len,
                Err(stop) => stop.done.min(len),
            });
            let was_revoked = listed.end();
            drop(memory);
            outcome.map_err(|stop| {
                let reason = if was_revoked { Reason::Revoked } else { stop.reason };
                RemoteFault { done: stop.done.min(len), reason }
            })
        })
    }

    /// Leaves the slot, runs `work`, and enters it again. The slot stays busy if a scope around this
    /// uses translations that are not recorded.
    fn outside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        /// Enters the slot again, also if `work` panics.
        struct Return<'e, 's>(&'e Entered<'s>, u32);
        impl Drop for Return<'_, '_> {
            fn drop(&mut self) {
                let session = self.0.session;
                std::mem::forget(session.enter());
                session.private().seen.resume(self.1);
                if let Some(scope) = self.0.scope {
                    self.0.open(scope);
                }
            }
        }
        self.leave();
        let (session, private) = (self.session, self.session.private());
        let pins = if private.seen.is_pinned() && private.untold.get() == 0 {
            // This allocates, and the program's allocator can use this session.
            self.open(Scope::Untold);
            session.lease_pins();
            self.close(Scope::Untold);
            private.seen.suspend(session.slot())
        } else {
            private.seen.pins()
        };
        let _return = Return(self, pins);
        work()
    }
}

/// A call on the list of leases. Dropping it removes it, also if the call panics.
struct Listed<'l, N: FnOnce()> {
    leases: &'l Leases,
    id: u64,
    /// Called before the removal, if it is `Some`.
    note: Option<N>,
}

impl<N: FnOnce()> Listed<'_, N> {
    /// Removes the call from the list, and returns `true` if it was revoked.
    fn end(mut self) -> bool {
        self.note = None;
        let was_revoked = self.leases.unregister(self.id);
        std::mem::forget(self);
        was_revoked
    }
}

impl<N: FnOnce()> Drop for Listed<'_, N> {
    fn drop(&mut self) {
        if let Some(note) = self.note.take() {
            note();
        }
        self.leases.unregister(self.id);
    }
}

impl Session {
    /// Adds all pinned extents to the list of leases that are not on it yet.
    fn lease_pins(&self) {
        let private = self.private();
        let next = || {
            let leased = private.leased.borrow().len();
            private.arena.borrow().get(leased).copied()
        };
        while let Some(extent) = next() {
            let (first, last) = (extent.iova, extent.iova + (extent.len as u64 - 1));
            let (owner, revoke) = (thread_token(), Revoke::Pin);
            let mut written = Arc::default();
            if extent.is_written {
                written = Arc::new([self.written(&extent)]) as Arc<[Written]>;
            }
            let lease = Leased { first, last, owner, revoke, written };
            push(&private.leased, self.space.inner.leases.register(lease));
        }
    }

    /// Returns `true` if pinned extents from number `from` on have leases, because the slot was left
    /// meanwhile.
    pub(crate) fn has_leased_pins(&self, from: usize) -> bool {
        self.private().leased.borrow().len() > from
    }

    /// Ends the leases of pinned extents from number `from` on.
    pub(crate) fn end_leased_pins(&self, from: usize) {
        let leased = &self.private().leased;
        while self.has_leased_pins(from) {
            // `leased` must not be borrowed while memory is freed.
            let last = leased.borrow_mut().pop();
            if let Some(id) = last {
                self.space.inner.leases.unregister(id);
            }
        }
    }

    /// Returns the memory that is written through an extent. The slot must be entered since its
    /// translation, or the extent leased.
    pub(crate) fn written(&self, extent: &Extent) -> Written {
        let bus = extent.entry.bus_of(extent.iova);
        // SAFETY: the slot was not left since the translation, or the extent is leased.
        let guest_phys = unsafe { self.space.inner.guest_phys(bus) };
        Written { iova: extent.iova, len: extent.len, guest_phys }
    }
}
