//! Closing connections, and descriptors that clients sent.
//!
//! Closing a descriptor can block for as long as the client likes: in its file system (FUSE), or in a
//! TCP socket of its own with `SO_LINGER` and a peer that does not read. Closing a connection also
//! closes the descriptors that are queued on it. So the serving thread closes no descriptor of a client.
//!
//! Sockets, connections among them, go to threads that exit, in which sockets do not linger
//! ([`longshore_sys::disposal`]). Connections without descriptors in their queues are closed by one such
//! thread for all users. Only a file of FUSE in the queue of a socket can delay another one, so each user
//! has a few of these threads. If all of them are delayed, one more holds all sockets that end later.
//!
//! Regular files are closed by a few threads for each user, which may block. These also close sockets if
//! the kernel refuses [`longshore_sys::disposal`]. The server receives nothing from a user with too many
//! files that wait.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::disposal::{self, Copies, Disposals};
use longshore_sys::{answering, packet_socket, thread_time};

use super::budget::TimeBudget;
use super::users::{Of, User};

/// The most descriptors of one user that may wait to be closed. The server receives nothing from a user
/// with more.
const WAITING_MAX: usize = 300;
/// The most of one user that may wait while those of all users are at their limit.
const WAITING_MIN: usize = 4;
/// One user may have one part in this many of the descriptors of all users.
const USERS: usize = 8;
/// The most threads that close descriptors of one user at once.
const THREADS_PER_USER_MAX: usize = 16;
/// The time after which another thread is started if a user's threads have closed nothing. If they are
/// merely slow, for example because they walk record locks, more of them would only wait for each other,
/// on all processors.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// The most threads that close descriptors of all users at once, before each user has at most one.
const THREADS_MAX: usize = 512;
/// The processor time from which a call with a connection counts as slow. It takes a hundredth of that
/// if the client does not slow it down.
const SLOW: Duration = Duration::from_millis(1);
/// The stack of a thread that closes, in bytes: it calls little more than `close(2)`.
const STACK_BYTES: usize = 64 << 10;

/// The descriptors that are being closed, by user.
#[derive(Debug)]
pub(super) struct Closers {
    waiting: Arc<Mutex<Waiting>>,
    /// The most descriptors of all users that may wait to be closed.
    max: usize,
    /// The most descriptors of one user that may wait.
    max_per_user: usize,
    /// The most threads of one user.
    threads_per_user: usize,
    /// `false` if the kernel refuses to dispose of sockets, so that threads may block on them.
    disposes: bool,
    /// The time of the serving thread that each user has.
    pub(super) budget: TimeBudget,
}

#[derive(Debug, Default)]
struct Waiting {
    users: BTreeMap<User, OfUser>,
    threads: usize,
    /// Connections whose queues are empty.
    drained: Vec<OwnedFd>,
}

/// The sockets and descriptors that are to be closed for one user.
#[derive(Debug, Default)]
struct OfUser {
    /// For the threads that may block.
    queue: VecDeque<Item>,
    /// The number of descriptors in the queue and the threads that the user sent.
    descriptors: usize,
    /// The number of connections in them.
    connections: usize,
    /// The number of descriptors in them of memory that the user was sent.
    memory: usize,
    threads: usize,
    /// The last time at which a thread was started, or closed something.
    last_progress: Option<Instant>,
    /// Sockets that were sent, and connections, which the kernel has no room to dispose of yet.
    sockets: Vec<OwnedFd>,
    /// Those that are being disposed of.
    disposals: Disposals,
}

#[derive(Debug)]
struct Item {
    file: OwnedFd,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A descriptor that the user sent.
    Sent,
    /// A connection that is shut down, with the messages that were not received.
    Connection,
    /// Memory that the user was sent.
    Memory,
}

/// The descriptors that a client sent and the server did not receive. One of them can be the client's
/// own end, which would stay open as long as the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// They must still be closed.
    Full,
    /// There are none.
    Empty,
    /// A thread receives and closes them, so that no other thread may receive anything.
    BeingEmptied,
}

/// The speed of a call with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Usual,
    /// The client slows the call down.
    Slow,
}

impl Closers {
    /// Makes closers for at most `max` descriptors, beyond which users may have few each.
    pub(super) fn new(max: usize) -> Self {
        Self {
            waiting: Arc::default(),
            max,
            max_per_user: (max / USERS).clamp(WAITING_MIN, WAITING_MAX),
            threads_per_user: THREADS_PER_USER_MAX,
            disposes: disposal::prepare().unwrap_or(false),
            budget: TimeBudget::default(),
        }
    }

    /// Returns `true` if this user may send descriptors. The server checks this before it receives a
    /// message, because received descriptors must be closed. Files on a disk are closed in a moment: a
    /// user that may not send waits.
    pub(super) fn may_send(&self, user: User) -> bool {
        let waiting = lock(&self.waiting);
        let Some(of_user) = waiting.users.get(&user) else { return true };
        let all: usize = waiting.users.values().map(OfUser::count).sum();
        let max = if all < self.max { self.max_per_user } else { WAITING_MIN };
        of_user.count() + of_user.disposals.held() < max
    }

    /// Returns the number of files of these users that wait to be closed.
    pub(super) fn files(&self, of: Of) -> usize {
        let waiting = lock(&self.waiting);
        let users = waiting.users.iter().filter(|(user, _)| of.contains(**user));
        users.map(|(_, of_user)| of_user.descriptors).sum()
    }

    /// Returns `true` if connections may be accepted: each of them may have to be closed here. Waiting
    /// files do not matter, because each user has few of them.
    pub(super) fn may_accept(&self) -> bool {
        let waiting = lock(&self.waiting);
        let of_users = waiting.users.values();
        of_users.map(|of_user| of_user.connections + of_user.sockets.len()).sum::<usize>()
            < self.max
    }

    /// Closes descriptors that this user sent, without waiting for it.
    pub(super) fn close(&self, user: User, descriptors: Vec<OwnedFd>) {
        if descriptors.is_empty() {
            return;
        }
        // Disposing of a file also closes its descriptor on this thread, which walks the record locks.
        let is_socket = |file: &OwnedFd| {
            self.disposes && answering::is_disposable(file) && !answering::has_record_locks(file)
        };
        self.budget.spend(user, || {
            let (mut sockets, files): (Vec<_>, Vec<_>) =
                descriptors.into_iter().partition(is_socket);
            let mut waiting = lock(&self.waiting);
            let of_user = waiting.users.entry(user).or_default();
            of_user.sockets.append(&mut sockets);
            let copies = of_user.disposals.dispose(&mut of_user.sockets);
            of_user.add(Kind::Sent, files);
            self.start(&mut waiting, user);
            drop(waiting);
            drop(copies);
        });
    }

    /// Closes a descriptor of memory that a client of this user was sent. Every client that has the memory can
    /// set record locks on it, all of which `close(2)` walks.
    pub(super) fn close_memory(&self, user: User, memory: OwnedFd) {
        let mut waiting = lock(&self.waiting);
        waiting.users.entry(user).or_default().add(Kind::Memory, vec![memory]);
        self.start(&mut waiting, user);
    }

    /// Shuts a connection of this user down and closes it with everything that is queued on it, without
    /// waiting. If the user has used up its time, another thread does all of that.
    pub(super) fn end(&self, user: User, connection: OwnedFd) {
        self.budget.spend(user, || self.end_now(user, connection));
    }

    fn end_now(&self, user: User, connection: OwnedFd) {
        if self.disposes && self.budget.is_used_up(user, Instant::now()) {
            return self.dispose(user, connection);
        }
        if self.shut_down(&connection) == Pace::Slow && self.disposes {
            return self.dispose(user, connection);
        }
        let is_drained = packet_socket::drain(&connection);
        let mut waiting = lock(&self.waiting);
        if is_drained {
            return waiting.drained.push(connection);
        }
        let of_user = waiting.users.entry(user).or_default();
        if self.disposes {
            of_user.sockets.push(connection);
            let copies = of_user.disposals.dispose(&mut of_user.sockets);
            drop(waiting);
            drop(copies);
        } else {
            of_user.add(Kind::Connection, vec![connection]);
            self.start(&mut waiting, user);
        }
    }

    /// Shuts a connection down. If that is slow, so is every other call with it.
    pub(super) fn shut_down(&self, connection: &OwnedFd) -> Pace {
        let begin = thread_time();
        packet_socket::shut_down(connection);
        if thread_time().saturating_sub(begin) > SLOW { Pace::Slow } else { Pace::Usual }
    }

    /// Closes the descriptors that are queued on a connection of this user that was shut down, without
    /// waiting for it. The connection remains open.
    pub(super) fn empty(&self, user: User, connection: &OwnedFd) -> Queue {
        let is_used_up = self.disposes && self.budget.is_used_up(user, Instant::now());
        if is_used_up {
            return Queue::Full;
        }
        let is_drained = self.budget.spend(user, || packet_socket::drain(connection));
        if is_drained || !self.disposes {
            return Queue::Empty;
        }
        match lock(&self.waiting).users.entry(user).or_default().disposals.empty(connection) {
            true => Queue::BeingEmptied,
            false => Queue::Full,
        }
    }

    /// Closes a connection of this user without any other call.
    pub(super) fn dispose(&self, user: User, connection: OwnedFd) {
        let mut waiting = lock(&self.waiting);
        let of_user = waiting.users.entry(user).or_default();
        of_user.sockets.push(connection);
        let copies = of_user.disposals.dispose(&mut of_user.sockets);
        drop(waiting);
        drop(copies);
    }

    /// Tries again to close what could not be closed before. Returns `true` if nothing is left to be
    /// tried again.
    pub(super) fn retry(&self) -> bool {
        // Dropped after the lock.
        let mut copies = Copies::default();
        let mut waiting = lock(&self.waiting);
        disposal::dispose(&mut waiting.drained);
        // Closing these does not block.
        waiting.drained.clear();
        for of_user in waiting.users.values_mut() {
            copies.append(of_user.disposals.dispose(&mut of_user.sockets));
        }
        waiting.users.retain(|_, of_user| !of_user.is_empty());
        let users: Vec<User> = waiting.users.keys().copied().collect();
        users.into_iter().for_each(|user| self.start(&mut waiting, user));
        let has_all = |of_user: &OfUser| of_user.sockets.is_empty() && of_user.queue.is_empty();
        waiting.users.values().all(has_all)
    }

    /// Starts a thread for this user, if it needs another and may have it.
    fn start(&self, waiting: &mut Waiting, user: User) {
        let Some(of_user) = waiting.users.get_mut(&user) else { return };
        let max = if waiting.threads < THREADS_MAX { self.threads_per_user } else { 1 };
        let hangs = |last: Instant| last.elapsed() > HANGS_AFTER;
        let needs_another = of_user.threads == 0 || of_user.last_progress.is_none_or(hangs);
        if of_user.queue.is_empty()
            || !needs_another
            || of_user.threads >= max.min(self.threads_per_user)
        {
            return;
        }
        let shared = Arc::clone(&self.waiting);
        let thread = thread::Builder::new().name("longshore-close".to_owned());
        // Without a thread the descriptors stay in the queue, and are counted, until there is one.
        if thread.stack_size(STACK_BYTES).spawn(move || close_all(&shared, user)).is_ok() {
            of_user.threads += 1;
            of_user.last_progress = Some(Instant::now());
            waiting.threads += 1;
        }
    }
}

#[cfg(test)]
impl Closers {
    /// Counts files of a user that are never closed.
    pub(super) fn stick(&self, user: User, files: usize) {
        lock(&self.waiting).users.entry(user).or_default().descriptors += files;
    }

    pub(super) fn unstick(&self, user: User) {
        lock(&self.waiting).users.remove(&user);
    }
}

impl OfUser {
    /// Queues descriptors for the threads that may block.
    fn add(&mut self, kind: Kind, files: Vec<OwnedFd>) {
        *self.count_of(kind) += files.len();
        self.queue.extend(files.into_iter().map(|file| Item { file, kind }));
    }

    fn count_of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Sent => &mut self.descriptors,
            Kind::Connection => &mut self.connections,
            Kind::Memory => &mut self.memory,
        }
    }

    /// Returns the number of descriptors that wait, including those that threads are closing.
    fn count(&self) -> usize {
        self.descriptors + self.connections + self.memory + self.sockets.len()
    }

    fn is_empty(&mut self) -> bool {
        self.count() + self.threads == 0 && self.disposals.have_ended()
    }
}

/// Closes the descriptors that wait for this user, until there are none.
fn close_all(shared: &Mutex<Waiting>, user: User) {
    loop {
        let mut waiting = lock(shared);
        let Some(of_user) = waiting.users.get_mut(&user) else { return };
        let Some(Item { file, kind }) = of_user.queue.pop_front() else {
            of_user.threads -= 1;
            // Another thread of this user may not have looked at its queue again.
            if of_user.is_empty() {
                waiting.users.remove(&user);
            }
            waiting.threads -= 1;
            return;
        };
        drop(waiting);
        drop(file);
        if let Some(of_user) = lock(shared).users.get_mut(&user) {
            of_user.last_progress = Some(Instant::now());
            *of_user.count_of(kind) -= 1;
        }
    }
}

/// Leaks the descriptors for which no thread could be started: they must not be closed on this thread.
/// It does not wait for the threads, which close the others unless the process ends first.
impl Drop for Closers {
    fn drop(&mut self) {
        for of_user in lock(&self.waiting).users.values_mut() {
            mem::take(&mut of_user.sockets).into_iter().for_each(mem::forget);
            if of_user.threads == 0 {
                mem::take(&mut of_user.queue).into_iter().for_each(mem::forget);
            }
        }
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(miri)))]
mod tests;
