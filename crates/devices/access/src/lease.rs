//! Leases: memory that stays accessible after its session has left the slot.
//!
//! All leases are on a list, which the unmapping thread reads after the grace period. A lease with the
//! old translation is on the list by then, because it was added before its session left the slot.
//!
//! | entry | removed when | if its memory is unmapped |
//! | --- | --- | --- |
//! | a lease of the user | it is dropped | it is notified once, with [`OnUnmap::Notify`] |
//! | a call to a remote region | it returns | it is cancelled repeatedly until it returns |
//! | a pin whose session has left its slot for a call to a remote region | the pin ends | that call is cancelled |
//!
//! # No deadlock
//!
//! A thread that unmaps, or waits for a grace period for another reason, never waits for a lease or call
//! that it could end: it notifies leases and cancels calls already while it waits for a busy slot. It
//! also cancels calls to other memory if their thread must return from them to end the access that
//! blocks the unmapping. A call that begins only after a round of cancellation is cancelled in the next
//! round.
//!
//! # Writes
//!
//! Writes through a lease are not observed. So while a writable lease lives, each collection of a dirty log
//! and each read of the dirty bits reports all of its pages ([`Leases::written`]).

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longshore_mem::{AddrRange, GuestPhys, Iova};

use crate::page_runs::PageRuns;
use crate::region::RemoteMemory;

/// The reaction of a lease to the unmapping of its memory. In each case the unmapping waits until the
/// lease is dropped.
#[derive(Clone)]
#[non_exhaustive]
pub enum OnUnmap {
    /// The unmapping only waits.
    Wait,
    /// The unmapping thread calls this once. The function should make sure that the lease is dropped
    /// soon, and may drop it itself. It should not panic, because the memory would then count as mapped
    /// for ever.
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

/// The way to end a lease.
pub(crate) enum Revoke {
    Chosen(OnUnmap),
    /// A call to a remote region, which can be cancelled in this range of it.
    Cancel(Arc<dyn RemoteMemory>, Range<u64>),
    /// A pin. Its thread is in a call to a remote region, and ends it afterwards.
    Pin,
}

/// Leased memory that may be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) iova: u64,
    pub(crate) len: usize,
    pub(crate) guest_phys: Option<GuestPhys>,
}

impl Written {
    /// Returns the first and the last address; `None` if it has no bytes.
    pub(crate) fn addresses(&self) -> Option<(u64, u64)> {
        // Mapped memory does not end beyond the address space.
        Some((self.iova, self.iova + (self.len as u64).checked_sub(1)?))
    }
}

/// The ranges that a thread unmaps.
pub(crate) trait Ranges {
    /// Returns `true` if any of them has an address from `first` to `last`.
    fn meet(&self, first: u64, last: u64) -> bool;
}

/// Each range is given by its first and its last address.
impl<const N: usize> Ranges for [(u64, u64); N] {
    fn meet(&self, first: u64, last: u64) -> bool {
        (&self[..]).meet(first, last)
    }
}

impl Ranges for &[(u64, u64)] {
    fn meet(&self, first: u64, last: u64) -> bool {
        self.iter().any(|range| range.0 <= last && first <= range.1)
    }
}

impl Ranges for &[AddrRange<Iova>] {
    fn meet(&self, first: u64, last: u64) -> bool {
        let ends_behind =
            |range: &AddrRange<Iova>| range.last().is_some_and(|end| first <= end.raw());
        self.iter().any(|range| range.start().raw() <= last && ends_behind(range))
    }
}

/// The description of a lease.
pub(crate) struct Leased {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The thread that made it.
    pub(crate) owner: usize,
    pub(crate) revoke: Revoke,
    /// Empty for a read-only lease, and for a call, which logs its write itself.
    pub(crate) written: Arc<[Written]>,
}

struct Held {
    id: u64,
    leased: Leased,
    is_revoked: bool,
    /// `true` for a call whose thread has a slot that stays busy until the call returns.
    keeps_busy: bool,
}

/// All leases of a space.
#[derive(Default)]
pub(crate) struct Leases {
    list: Mutex<List>,
    dropped: Condvar,
    /// The length of the list, for a fast path without the lock.
    live: AtomicUsize,
    locks: AtomicU64,
}

#[derive(Default)]
struct List {
    held: Vec<Held>,
    next_id: u64,
    /// The number of unmappings that need the written pages of leases that end meanwhile.
    watchers: usize,
    /// The written pages of leases that have ended. Bounded, because a batch that is leaked with
    /// `mem::forget` watches for ever.
    ended: PageRuns,
}

/// A function to call to end a lease. It is called without the lock on the list.
enum Call {
    Notify(Arc<dyn Fn() + Send + Sync>),
    Cancel(Arc<dyn RemoteMemory>, Range<u64>),
}

/// The times to wait before a call is cancelled again, because it may have begun only after the
/// cancellation.
const AGAIN_MIN: Duration = Duration::from_micros(100);
const AGAIN_MAX: Duration = Duration::from_millis(10);

impl Leases {
    /// Adds a lease to the list. The session must not have left its slot since the translation.
    pub(crate) fn register(&self, leased: Leased) -> u64 {
        let mut list = self.lock_with_room();
        let id = list.next_id;
        list.next_id += 1;
        list.held.push(Held { id, leased, is_revoked: false, keeps_busy: false });
        self.live.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Removes a lease from the list. Returns `true` if it was revoked.
    pub(crate) fn unregister(&self, id: u64) -> bool {
        let mut list = self.lock();
        let Some(at) = list.held.iter().position(|held| held.id == id) else { return false };
        let held = list.held.swap_remove(at);
        if list.watchers != 0 {
            for (first, last) in held.leased.written.iter().filter_map(Written::addresses) {
                list.ended.add(first, last);
            }
        }
        self.live.fetch_sub(1, Ordering::Relaxed);
        drop(list);
        self.dropped.notify_all();
        held.is_revoked
    }

    /// Records that the thread of a call has a slot that stays busy until the call returns.
    pub(crate) fn keeps_busy(&self, id: u64) {
        let mut list = self.lock();
        if let Some(held) = list.held.iter_mut().find(|held| held.id == id) {
            held.keeps_busy = true;
        }
    }

    pub(crate) fn is_revoked(&self, id: u64) -> bool {
        self.lock().held.iter().any(|held| held.id == id && held.is_revoked)
    }

    /// Returns `true` if there is no lease.
    pub(crate) fn is_empty(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0
    }

    /// Returns `true` if the thread `owner` would wait for itself by unmapping `first..=last`.
    pub(crate) fn is_held_by(&self, owner: usize, first: u64, last: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        let waits = |held: &Held| !matches!(held.leased.revoke, Revoke::Chosen(OnUnmap::Notify(_)));
        let is_own = |held: &Held| held.leased.owner == owner && held.meets(&[(first, last)]);
        self.lock().held.iter().any(|held| is_own(held) && waits(held))
    }

    /// Returns the memory that may be written through live leases.
    pub(crate) fn written(&self) -> Vec<Arc<[Written]>> {
        if self.is_empty() {
            return Vec::new();
        }
        let list = self.lock();
        let written = list.held.iter().map(|held| &held.leased.written);
        written.filter(|written| !written.is_empty()).cloned().collect()
    }

    /// Starts to record the written pages of leases that end, until [`unwatch`](Self::unwatch).
    pub(crate) fn watch(&self) {
        self.lock().watchers += 1;
    }

    /// Returns the pages that may have been written through leases that ended since
    /// [`watch`](Self::watch). It may return additional pages: of leases that ended earlier, and between
    /// the runs if there are many.
    pub(crate) fn unwatch(&self) -> PageRuns {
        let mut list = self.lock();
        list.watchers -= 1;
        if list.watchers == 0 { std::mem::take(&mut list.ended) } else { list.ended.clone() }
    }

    /// Asks all leases that overlap one of `ranges` to end, and calls that keep a slot of the thread
    /// `waited_for` busy. Does not wait.
    pub(crate) fn ask(&self, ranges: &dyn Ranges, waited_for: Option<usize>) {
        if self.is_empty() {
            return;
        }
        self.lock_and_ask(ranges, u64::MAX, waited_for);
    }

    fn lock_and_ask(&self, ranges: &dyn Ranges, bound: u64, waited_for: Option<usize>) {
        let calls = self.lock().revoke(ranges, bound, waited_for);
        for call in calls {
            match call {
                Call::Notify(notify) => notify(),
                Call::Cancel(remote, range) => remote.cancel(range),
            }
        }
    }

    /// Revokes all leases that overlap one of `ranges`, and waits until they are gone. The caller has
    /// waited for a grace period, so leases that are made later have newer translations.
    pub(crate) fn revoke(&self, ranges: &dyn Ranges) {
        if self.is_empty() {
            return;
        }
        let mut list = self.lock();
        let bound = list.next_id;
        let mut again = AGAIN_MIN;
        loop {
            let is_waited_for = |held: &&Held| held.id < bound && held.meets(ranges);
            if !list.held.iter().any(|held| is_waited_for(&held)) {
                return;
            }
            drop(list);
            self.lock_and_ask(ranges, bound, None);
            list = self.lock();
            let mut waited_for = list.held.iter().filter(is_waited_for).peekable();
            if waited_for.peek().is_none() {
                return;
            }
            // Leases of the user are notified only once. Calls are cancelled again.
            list = if waited_for.all(|held| matches!(held.leased.revoke, Revoke::Chosen(_))) {
                self.dropped.wait(list).unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.dropped.wait_timeout(list, again);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
            again = (2 * again).min(AGAIN_MAX);
        }
    }

    /// Locks the list, with room for one more entry. Memory is allocated and freed without the lock,
    /// because the program's allocator can make a lease.
    fn lock_with_room(&self) -> MutexGuard<'_, List> {
        loop {
            let list = self.lock();
            let capacity = list.held.capacity();
            if list.held.len() < capacity {
                return list;
            }
            drop(list);
            let mut larger = Vec::with_capacity((2 * capacity).max(4));
            let mut list = self.lock();
            if list.held.capacity() == capacity {
                larger.append(&mut list.held);
                std::mem::swap(&mut list.held, &mut larger);
            }
            drop(list);
        }
    }

    /// Returns how often the list was locked.
    pub(crate) fn locks(&self) -> u64 {
        self.locks.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.locks.fetch_add(1, Ordering::Relaxed);
        // No code that holds the lock can panic halfway through a change.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// Marks as revoked the leases that [`Leases::ask`] describes, of those with an id below `bound`,
    /// and returns the functions to call for them.
    fn revoke(&mut self, ranges: &dyn Ranges, bound: u64, waited_for: Option<usize>) -> Vec<Call> {
        let is_pin = |held: &&Held| matches!(held.leased.revoke, Revoke::Pin);
        let pins = self.held.iter().filter(is_pin).filter(|held| held.meets(ranges));
        // The threads that cannot end a pin before their call returns.
        let pinning: Vec<usize> = pins.map(|held| held.leased.owner).collect();
        let mut calls = Vec::new();
        for held in &mut self.held {
            let (leased, meets) = (&held.leased, held.id < bound && held.meets(ranges));
            match &leased.revoke {
                Revoke::Chosen(OnUnmap::Notify(notify)) if meets && !held.is_revoked => {
                    calls.push(Call::Notify(Arc::clone(notify)));
                }
                Revoke::Chosen(_) | Revoke::Pin if meets => {}
                Revoke::Cancel(remote, range)
                    if meets
                        || pinning.contains(&leased.owner)
                        || (held.keeps_busy && Some(leased.owner) == waited_for) =>
                {
                    calls.push(Call::Cancel(Arc::clone(remote), range.clone()));
                }
                _ => continue,
            }
            held.is_revoked = true;
        }
        calls
    }
}

impl Held {
    fn meets(&self, ranges: &dyn Ranges) -> bool {
        ranges.meet(self.leased.first, self.leased.last)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leases({})", self.live.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::PAGE_BYTES;

    /// A batch that is leaked with `mem::forget` never ends.
    #[test]
    fn an_unmapping_that_never_ends_keeps_a_bounded_list_of_written_pages() {
        let leases = Leases::default();
        leases.watch();
        for at in 0..10_000 {
            let (iova, len) = (2 * at * PAGE_BYTES, PAGE_BYTES as usize);
            let written = Arc::new([Written { iova, len, guest_phys: None }]);
            let revoke = Revoke::Chosen(OnUnmap::Wait);
            let leased = Leased { first: iova, last: iova, owner: 1, revoke, written };
            leases.unregister(leases.register(leased));
        }
        let kept = leases.lock().ended.clone();
        assert!(kept.iter().count() <= 1024, "{}", kept.iter().count());
        // A later unmapping still gets each page.
        leases.watch();
        let pages = leases.unwatch();
        let has = |page: u64| pages.iter().any(|(first, last)| (first..=last).contains(&page));
        assert!((0..10_000).all(|at| has(2 * at * PAGE_BYTES)));
    }
}
