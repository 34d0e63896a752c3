//! The accounts of closes that have not ended, which limit the descriptors that are received from each
//! user.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;

use crate::disposal::{Copies, Disposals};
use crate::file_queues::FileQueues;
use crate::user::User;

/// The maximum number of threads that may be blocked in closes for one user.
pub(super) const THREADS_PER_USER_MAX: usize = 4;
/// The number of blocked threads of all users from which each user may have at most one.
const THREADS_SHARED_MAX: usize = 64;
/// The maximum number of blocked threads of all users. Those above [`THREADS_SHARED_MAX`] are for users
/// that have no other.
const THREADS_MAX: usize = 256;
/// The maximum number of descriptors of one user that are held because closing threads are blocked, and
/// the maximum number of its files that the kernel serves itself.
pub(super) const HELD_PER_USER_MAX: usize = 256;

/// The closes that have not ended, by user.
#[derive(Debug)]
pub(super) struct Accounts {
    /// The number of threads that close files and may be blocked, for users that have any.
    pub(super) threads: BTreeMap<User, usize>,
    /// The number of threads that receive from each user, for users that have any.
    receiving: BTreeMap<User, usize>,
    /// The descriptors of other kinds than regular files that are being closed.
    pub(super) disposals: BTreeMap<User, Disposals>,
    /// The regular files that the kernel serves itself, in memory.
    memory: FileQueues,
    /// Those on block devices.
    disk: FileQueues,
}

/// A kind of regular files that the kernel serves itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Memory,
    /// On block devices, which may not be local: a close may wait for another process.
    Disk,
}

impl Accounts {
    pub(super) const fn new() -> Self {
        Self {
            threads: BTreeMap::new(),
            receiving: BTreeMap::new(),
            disposals: BTreeMap::new(),
            memory: FileQueues::new(),
            disk: FileQueues::new(),
        }
    }

    /// Returns the files of a kind. A close that hangs delays only other files of the same kind and user.
    pub(super) fn files(&mut self, kind: Kind) -> &mut FileQueues {
        match kind {
            Kind::Memory => &mut self.memory,
            Kind::Disk => &mut self.disk,
        }
    }

    /// Returns the number of regular files of a user, of both kinds, that may still be open.
    pub(super) fn files_held(&self, user: User) -> usize {
        self.memory.held(user) + self.disk.held(user)
    }

    pub(super) fn has_files(&self, user: User) -> bool {
        self.memory.has_any(user) || self.disk.has_any(user)
    }

    pub(super) fn may_receive(&mut self, user: User) -> bool {
        // Threads of a user beyond its limit do not count, so that they take nothing from others.
        let threads = |count: &usize| (*count).min(THREADS_PER_USER_MAX);
        let max = match self.threads.values().map(threads).sum() {
            0..THREADS_SHARED_MAX => THREADS_PER_USER_MAX,
            THREADS_SHARED_MAX..THREADS_MAX => 1,
            _ => 0,
        };
        if self.threads.get(&user).copied().unwrap_or(0) >= max
            || self.files_held(user) >= HELD_PER_USER_MAX
        {
            return false;
        }
        let Some(disposals) = self.disposals.get_mut(&user) else { return true };
        if disposals.held() >= HELD_PER_USER_MAX {
            // Some of the threads may have ended.
            disposals.proceed();
        }
        disposals.held() < HELD_PER_USER_MAX
    }

    pub(super) fn is_busy(&mut self, user: User) -> bool {
        self.threads.contains_key(&user)
            || self.receiving.contains_key(&user)
            || self.disposals.get_mut(&user).is_some_and(|disposals| !disposals.have_ended())
    }

    pub(super) fn receiving_began(&mut self, user: User) {
        *self.receiving.entry(user).or_default() += 1;
    }

    pub(super) fn receiving_ended(&mut self, user: User) {
        count_down(&mut self.receiving, user);
    }

    pub(super) fn thread_began(&mut self, user: User) {
        *self.threads.entry(user).or_default() += 1;
    }

    pub(super) fn thread_ended(&mut self, user: User) {
        count_down(&mut self.threads, user);
    }

    /// Disposes of as many descriptors of a user as possible, and continues with held ones of all users.
    pub(super) fn dispose(&mut self, user: User, descriptors: &mut Vec<OwnedFd>) -> Copies {
        let mut copies = Copies::default();
        if !descriptors.is_empty() {
            copies = self.disposals.entry(user).or_default().dispose(descriptors);
        }
        self.disposals.retain(|_, disposals| {
            disposals.proceed();
            !disposals.have_ended()
        });
        copies
    }
}

/// Counts one less for a user.
fn count_down(counts: &mut BTreeMap<User, usize>, user: User) {
    if let Entry::Occupied(mut count) = counts.entry(user) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(not(miri))]
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Adds blocked threads of this user until its limit is reached, and returns their number.
    fn hang_all(accounts: &mut Accounts, user: User) -> usize {
        let mut count = 0;
        while accounts.may_receive(user) {
            accounts.thread_began(user);
            count += 1;
        }
        count
    }

    #[test]
    fn blocked_threads_are_counted_by_user() {
        let mut accounts = Accounts::new();
        let (hostile, other) = (User::from_uid(1), User::from_uid(2));
        assert_eq!(hang_all(&mut accounts, hostile), THREADS_PER_USER_MAX);
        assert!(accounts.may_receive(other));
        assert_eq!(hang_all(&mut accounts, other), THREADS_PER_USER_MAX);
        accounts.thread_ended(hostile);
        assert!(accounts.may_receive(hostile) && !accounts.may_receive(other));
        (1..THREADS_PER_USER_MAX).for_each(|_| accounts.thread_ended(hostile));
        (0..THREADS_PER_USER_MAX).for_each(|_| accounts.thread_ended(other));
        assert!(accounts.threads.is_empty());
    }

    #[test]
    fn each_user_may_have_one_thread_after_the_shared_ones_are_used_up() {
        let mut accounts = Accounts::new();
        let mut users = (0..).map(User::from_uid);
        let mut waiting = 0;
        while waiting < THREADS_SHARED_MAX {
            waiting += hang_all(&mut accounts, users.next().unwrap());
        }
        while waiting < THREADS_MAX {
            assert_eq!(hang_all(&mut accounts, users.next().unwrap()), 1);
            waiting += 1;
        }
        let late = users.next().unwrap();
        assert!(!accounts.may_receive(late));
        accounts.thread_ended(User::from_uid(0));
        assert!(accounts.may_receive(late) && !accounts.may_receive(User::from_uid(0)));
    }

    #[test]
    fn threads_beyond_the_limit_of_a_user_take_nothing_from_others() {
        let mut accounts = Accounts::new();
        (0..2 * THREADS_MAX).for_each(|_| accounts.thread_began(User::from_uid(1)));
        assert!(!accounts.may_receive(User::from_uid(1)));
        assert_eq!(hang_all(&mut accounts, User::from_uid(2)), THREADS_PER_USER_MAX);
    }

    #[test]
    #[cfg(not(miri))]
    fn sockets_that_cannot_be_closed_are_counted_by_user() {
        let sockets = |count| (0..count).map(|_| UnixStream::pair().unwrap().0.into()).collect();
        let mut accounts = Accounts::new();
        let (hostile, other) = (User::from_uid(1), User::from_uid(2));
        accounts.disposals.insert(hostile, Disposals::endless());
        drop(accounts.dispose(hostile, &mut sockets(HELD_PER_USER_MAX - 1)));
        assert!(accounts.may_receive(hostile));
        drop(accounts.dispose(hostile, &mut sockets(2)));
        assert!(!accounts.may_receive(hostile) && accounts.may_receive(other));
        drop(accounts.dispose(other, &mut sockets(1)));
        assert!(accounts.may_receive(other));
        assert_eq!(accounts.disposals[&hostile].held(), HELD_PER_USER_MAX + 1);
    }
}
