//! Calls to memory that is asked for.
//!
//! The slot is left meanwhile, so that nobody who unmaps something else waits for the other side's
//! answer. Pins around the call become leases for that, until they end. Only where something uses
//! translations that are on no list does the slot stay busy: then whoever waits for it has the call
//! cancelled.
#![expect(unsafe_code, reason = "asks where the memory of a pin lies")]

use std::sync::Arc;

use longshore_mem::GuestPhys;

use super::private::{Extent, push};
use super::{Entered, Scope, Session};
use crate::fault::Reason;
use crate::lease::{Leased, Leases, Revoke, Written};
use crate::region::{RemoteFault, RemoteMemory};
use crate::space::thread_token;

/// How a call is noted in dirty logs.
#[derive(Clone, Copy)]
pub(super) enum Noted {
    /// It reads.
    Not,
    /// It writes what has this address in a machine's memory.
    As(Option<GuestPhys>),
}

impl Entered<'_> {
    /// Calls a remote region with the slot left, as a lease of `len` bytes from `iova` which an
    /// unmapping thread cancels. The bytes written are noted before it is off the list.
    ///
    /// `memory` is dropped with the slot left too. It may be the last reference, and then its owner's
    /// code runs, which may access memory by this very session and so leave the slot.
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
        // The program's allocator is called before the call is on the list, and can use this session.
        self.open(Scope::Untold);
        let written = Arc::default();
        let id = inner.leases.register(Leased { first: iova, last, owner, revoke, written });
        self.close(Scope::Untold);
        let note = |done| {
            if let Noted::As(guest_phys) = noted {
                inner.log_write_outside(iova, done, guest_phys);
            }
        };
        // Where the call panics nobody knows how much it wrote.
        let listed = Listed { leases: &inner.leases, id, note: Some(|| note(len)) };
        self.outside(|| {
            if inner.grace.is_busy_in(owner) {
                inner.leases.keeps_busy(id);
            }
            let outcome = call(&*memory);
            note(match &outcome {
                // It was given up, and the other side may do the rest of it still.
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

    /// Runs `work` with the slot left, unless something around it uses what nobody knows.
    fn outside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        /// Goes back in, also when `work` panics.
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
            // The program's allocator is called, and can use this session.
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

/// A call on the list, which it is taken off also when the call panics.
struct Listed<'l, N: FnOnce()> {
    leases: &'l Leases,
    id: u64,
    /// Called before, if it is still there.
    note: Option<N>,
}

impl<N: FnOnce()> Listed<'_, N> {
    /// Whether it was revoked.
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
    /// Puts what is pinned on the list of leases, as far as it is not.
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

    /// Whether what is pinned from the extent with number `from` on has leases, because the slot was
    /// left meanwhile.
    pub(crate) fn has_leased_pins(&self, from: usize) -> bool {
        self.private().leased.borrow().len() > from
    }

    /// Gives back the leases of what is pinned from the extent with number `from` on.
    pub(crate) fn end_leased_pins(&self, from: usize) {
        let leased = &self.private().leased;
        while self.has_leased_pins(from) {
            // Not borrowed while memory is freed.
            let last = leased.borrow_mut().pop();
            if let Some(id) = last {
                self.space.inner.leases.unregister(id);
            }
        }
    }

    /// What is written through an extent, which the slot or a lease keeps.
    pub(crate) fn written(&self, extent: &Extent) -> Written {
        let bus = extent.entry.bus_of(extent.iova);
        // SAFETY: it was translated and the slot is not left since, or it is leased.
        let guest_phys = unsafe { self.space.inner.guest_phys(bus) };
        Written { iova: extent.iova, len: extent.len, guest_phys }
    }
}
