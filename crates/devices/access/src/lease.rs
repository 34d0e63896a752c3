//! Leases: access that goes on while its session's slot is left.
//!
//! Leases are on a list that the unmapping thread reads after the grace period. A lease that was made
//! with the old translation is on the list by then, because it was put there before the slot was left.
//!
//! | what is on the list | until | when it is unmapped |
//! | --- | --- | --- |
//! | a lease of the user's | it is dropped | it is notified once, if so chosen |
//! | a call to a remote region | it returns | it is cancelled, again and again until it does |
//! | a pin whose session has left its slot for a call to a remote region | the pin ends | that call is cancelled |
//!
//! # No deadlock
//!
//! A thread that unmaps, or waits for a grace period for another reason, never waits for a lease or a
//! call that it could have ended: it notifies leases and cancels calls already while it waits for a
//! busy slot. It also cancels calls that are not in its way themselves, but keep their thread from
//! ending the access that is. A call that begins only after it was to be cancelled is cancelled in
//! the next round.
//!
//! # Writes
//!
//! While a lease lives nobody knows what is written through it, so each harvest of a dirty log and
//! each reading of dirty bits counts all of it as written ([`Leases::written`]).

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longshore_mem::{AddrRange, GuestPhys, Iova};

use crate::page_runs::PageRuns;
use crate::region::RemoteMemory;

/// What happens to a lease when its memory is unmapped. Either way the unmapping returns when the
/// lease is dropped.
#[derive(Clone)]
#[non_exhaustive]
pub enum OnUnmap {
    /// It is waited for.
    Wait,
    /// This is called once, from the thread that unmaps, and should have the lease dropped soon; it
    /// may do that itself. It should not panic: what is being unmapped would count as mapped for
    /// ever.
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
    /// A pin. It ends when its thread is through, which is in a call to a remote region.
    Pin,
}

/// Leased memory that is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) iova: u64,
    pub(crate) len: usize,
    pub(crate) guest_phys: Option<GuestPhys>,
}

impl Written {
    /// Returns the first and the last address; `None` if it has no bytes.
    pub(crate) fn addresses(&self) -> Option<(u64, u64)> {
        // All of it is mapped, so it does not end beyond the address space.
        Some((self.iova, self.iova + (self.len as u64).checked_sub(1)?))
    }
}

/// The ranges that a thread unmaps.
pub(crate) trait Ranges {
    /// Whether any of them has an address from `first` to `last`.
    fn meet(&self, first: u64, last: u64) -> bool;
}

/// First and last addresses.
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

/// What a lease is of.
pub(crate) struct Leased {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The thread that makes it.
    pub(crate) owner: usize,
    pub(crate) revoke: Revoke,
    /// Empty where it is only read, and of a call, which notes its write itself.
    pub(crate) written: Arc<[Written]>,
}

struct Held {
    id: u64,
    leased: Leased,
    is_revoked: bool,
    /// Of a call: whether its thread has a slot that stays busy until it returns.
    keeps_busy: bool,
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
    /// Unmappings that want to know what was written through leases that ended meanwhile.
    watchers: usize,
    /// Bounded, because a batch that is leaked with `mem::forget` keeps watching.
    ended: PageRuns,
}

/// Something that is called to have a lease end, without the list locked.
enum Call {
    Notify(Arc<dyn Fn() + Send + Sync>),
    Cancel(Arc<dyn RemoteMemory>, Range<u64>),
}

/// How long a call that was cancelled is left alone before it is cancelled again: it may have begun
/// only after it was.
const AGAIN_MIN: Duration = Duration::from_micros(100);
const AGAIN_MAX: Duration = Duration::from_millis(10);

impl Leases {
    /// Puts a lease on the list. The session must be in its slot, with the translation.
    pub(crate) fn register(&self, leased: Leased) -> u64 {
        let mut list = self.lock_with_room();
        let id = list.next_id;
        list.next_id += 1;
        list.held.push(Held { id, leased, is_revoked: false, keeps_busy: false });
        self.live.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Takes a lease off the list. Whether it was revoked.
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

    /// Notes of a call that its thread has a slot which stays busy until it returns.
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

    /// Whether the thread `owner` would wait for itself if `first..=last` were unmapped.
    pub(crate) fn is_held_by(&self, owner: usize, first: u64, last: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        let waits = |held: &Held| !matches!(held.leased.revoke, Revoke::Chosen(OnUnmap::Notify(_)));
        let is_own = |held: &Held| held.leased.owner == owner && held.meets(&[(first, last)]);
        self.lock().held.iter().any(|held| is_own(held) && waits(held))
    }

    /// What is written through leases that are live.
    pub(crate) fn written(&self) -> Vec<Arc<[Written]>> {
        if self.is_empty() {
            return Vec::new();
        }
        let list = self.lock();
        let written = list.held.iter().map(|held| &held.leased.written);
        written.filter(|written| !written.is_empty()).cloned().collect()
    }

    /// Has leases that end be noted, until [`unwatch`](Self::unwatch).
    pub(crate) fn watch(&self) {
        self.lock().watchers += 1;
    }

    /// Returns the pages that were written through leases that ended since [`watch`](Self::watch), or
    /// before that. They may be more than were written, if they are in many places.
    pub(crate) fn unwatch(&self) -> PageRuns {
        let mut list = self.lock();
        list.watchers -= 1;
        if list.watchers == 0 { std::mem::take(&mut list.ended) } else { list.ended.clone() }
    }

    /// Has all leases that meet one of `ranges` end, and calls that keep busy a slot of the thread
    /// `waited_for`. Does not wait.
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

    /// Revokes all leases that meet one of `ranges`, and returns when they are gone. Called after a
    /// grace period; those that are made later are of what is mapped later.
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
            // Whatever is not a call, or waits for one, was told once and for all.
            list = if waited_for.all(|held| matches!(held.leased.revoke, Revoke::Chosen(_))) {
                self.dropped.wait(list).unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.dropped.wait_timeout(list, again);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
            again = (2 * again).min(AGAIN_MAX);
        }
    }

    /// Locks the list when it has room for one more. Memory is allocated and freed without the lock,
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

impl List {
    /// Marks as revoked what [`Leases::ask`] says of what was made before `bound`, and returns what
    /// must be called for it.
    fn revoke(&mut self, ranges: &dyn Ranges, bound: u64, waited_for: Option<usize>) -> Vec<Call> {
        let is_pin = |held: &&Held| matches!(held.leased.revoke, Revoke::Pin);
        let pins = self.held.iter().filter(is_pin).filter(|held| held.meets(ranges));
        // Threads that cannot end a pin before their call returns.
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

    /// As a batch that is leaked with `mem::forget` does.
    #[test]
    fn an_unmapping_that_never_ends_keeps_a_bounded_list_of_what_was_written() {
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
        // A later unmapping still learns of each page.
        leases.watch();
        let pages = leases.unwatch();
        let has = |page: u64| pages.iter().any(|(first, last)| (first..=last).contains(&page));
        assert!((0..10_000).all(|at| has(2 * at * PAGE_BYTES)));
    }
}
