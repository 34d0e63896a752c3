//! Leases: access that goes on while its session's slot is left.
//!
//! A lease is on a list that whoever unmaps looks at, after the grace period: one that was made with
//! the old translation is on the list by then, because it was put there before the slot was left.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::region::RemoteMemory;

/// What happens to a lease when its memory is unmapped. Either way the unmapping returns when the
/// lease is dropped.
#[derive(Clone)]
pub enum OnUnmap {
    /// It is waited for.
    Wait,
    /// This is called once, from the thread that unmaps, and should have the lease dropped soon; it
    /// may do that itself.
    Notify(Arc<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for OnUnmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "Wait",
            Self::Notify(_) => "Notify",
        })
    }
}

/// What is done to have a lease end.
pub(crate) enum Revoke {
    Chosen(OnUnmap),
    /// A call to a remote region, which can be cancelled in this range of it.
    Cancel(Arc<dyn RemoteMemory>, Range<u64>),
}

struct Held {
    id: u64,
    first: u64,
    last: u64,
    /// The thread that made it.
    owner: usize,
    revoke: Revoke,
    is_revoked: bool,
}

/// All leases of a space.
#[derive(Default)]
pub(crate) struct Leases {
    list: Mutex<List>,
    dropped: Condvar,
    /// As many as the list has, for those who have nothing to wait for.
    live: AtomicUsize,
    locks: AtomicU64,
}

#[derive(Default)]
struct List {
    held: Vec<Held>,
    next_id: u64,
}

impl Leases {
    /// Puts a lease of `first..=last` on the list. The session must be in its slot, with the
    /// translation.
    pub(crate) fn register(&self, first: u64, last: u64, owner: usize, revoke: Revoke) -> u64 {
        let mut list = self.lock();
        let id = list.next_id;
        list.next_id += 1;
        list.held.push(Held { id, first, last, owner, revoke, is_revoked: false });
        self.live.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Takes a lease off the list. Whether it was revoked.
    pub(crate) fn unregister(&self, id: u64) -> bool {
        let mut list = self.lock();
        let Some(at) = list.held.iter().position(|held| held.id == id) else { return false };
        let held = list.held.swap_remove(at);
        self.live.fetch_sub(1, Ordering::Relaxed);
        drop(list);
        self.dropped.notify_all();
        held.is_revoked
    }

    pub(crate) fn is_revoked(&self, id: u64) -> bool {
        self.lock().held.iter().any(|held| held.id == id && held.is_revoked)
    }

    /// Whether the thread `owner` would wait for itself if `first..=last` were unmapped.
    pub(crate) fn is_held_by(&self, owner: usize, first: u64, last: u64) -> bool {
        if self.live.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let waits = |held: &Held| !matches!(held.revoke, Revoke::Chosen(OnUnmap::Notify(_)));
        let list = self.lock();
        list.held.iter().any(|held| held.owner == owner && held.meets(first, last) && waits(held))
    }

    /// Revokes all leases that meet one of `ranges`, and returns when they are gone. Called after a
    /// grace period; those that are made later are of what is mapped later.
    pub(crate) fn revoke(&self, ranges: &[(u64, u64)]) {
        if self.live.load(Ordering::Relaxed) == 0 {
            return;
        }
        let meets = |held: &Held| ranges.iter().any(|&(first, last)| held.meets(first, last));
        let mut list = self.lock();
        let bound = list.next_id;
        let mut calls = VecDeque::new();
        for held in &mut list.held {
            if meets(held) && !std::mem::replace(&mut held.is_revoked, true) {
                match &held.revoke {
                    Revoke::Chosen(OnUnmap::Wait) => {}
                    Revoke::Chosen(notify) => calls.push_back(Revoke::Chosen(notify.clone())),
                    Revoke::Cancel(remote, range) => {
                        calls.push_back(Revoke::Cancel(Arc::clone(remote), range.clone()));
                    }
                }
            }
        }
        drop(list);
        for call in calls {
            match call {
                Revoke::Chosen(OnUnmap::Notify(notify)) => notify(),
                Revoke::Cancel(remote, range) => remote.cancel(range),
                Revoke::Chosen(OnUnmap::Wait) => {}
            }
        }
        let mut list = self.lock();
        while list.held.iter().any(|held| held.id < bound && meets(held)) {
            list = self.dropped.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How often the list was locked.
    pub(crate) fn locks(&self) -> u64 {
        self.locks.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.locks.fetch_add(1, Ordering::Relaxed);
        // What is done under the lock does not panic halfway.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn meets(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leases({})", self.live.load(Ordering::Relaxed))
    }
}
