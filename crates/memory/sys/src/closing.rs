//! Closing descriptors of untrusted processes on other threads, which are counted by user.
//!
//! A close can wait for ever. While too many closes of a user wait, no more descriptors of that user are
//! received. This limit depends on the number of threads that wait to close files of all users:
//!
//! ```text
//!   all users         one user
//!   less than 64      4
//!   64 to 255         1
//!   256               none: descriptors of all users are refused
//! ```
//!
//! Each thread that receives at the same moment can exceed these limits by one. At most four threads of a
//! user count for all users, so one user id cannot use up the limit of the others. A person who can connect
//! under 64 user ids can use it up, for example with a range in `/etc/subuid`.
#![expect(unsafe_code, reason = "takes a descriptor out of a value that is dropped")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::answering::{is_closed_at_once, is_disposable};
use crate::disposal::{self, Disposals};

pub use crate::user::User;

/// How many threads may wait in a close for one user.
const THREADS_PER_USER_MAX: usize = 4;
/// How many threads may wait for all users before each user may have one at most.
const THREADS_SHARED_MAX: usize = 64;
/// How many threads may wait for all users. Those above [`THREADS_SHARED_MAX`] are for users that have
/// no other.
const THREADS_MAX: usize = 256;
/// How many descriptors of one user may be held because threads that close others wait.
const HELD_PER_USER_MAX: usize = 256;

static ACCOUNTS: Mutex<Accounts> = Mutex::new(Accounts::new());

/// Returns `true` if few enough files of this user wait to be closed that more descriptors can be
/// received from it, all of which may have to be closed by [`close_without_waiting`].
pub fn may_receive(user: User) -> bool {
    lock().may_receive(user)
}

/// Returns the error of a call that would receive descriptors of a user while [`may_receive`] is `false`.
pub fn too_many_closing() -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        "earlier descriptors of this user are still being closed, because the processes that serve \
         their file systems do not answer; end those processes",
    )
}

/// Returns `true` if a thread closes descriptors of this user, or receives from it, at this moment. If that
/// does not change for long, a file or a peer has the thread wait.
pub fn is_busy(user: User) -> bool {
    lock().is_busy(user)
}

/// A call that receives descriptors of a user. The kernel may close some of them in it.
pub(crate) struct Receiving(User);

impl Receiving {
    pub(crate) fn begin(user: User) -> Self {
        *lock().receiving.entry(user).or_default() += 1;
        Self(user)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        count_down(&mut lock().receiving, self.0);
    }
}

/// Gives a user as many closes that hang as it may have, for tests.
#[doc(hidden)]
pub fn exhaust(user: User) {
    let mut accounts = lock();
    accounts.disposals.insert(user, Disposals::endless());
    let sockets = || std::os::unix::net::UnixStream::pair().map(|(one, _)| OwnedFd::from(one));
    let mut sockets = (0..=HELD_PER_USER_MAX).filter_map(|_| sockets().ok()).collect();
    accounts.dispose(user, &mut sockets);
}

/// Closes files of a user without having the caller wait: regular files for which
/// [`is_answered_by_kernel`](crate::answering::is_answered_by_kernel) is true and that have no record lock
/// here, other regular files on a thread of their own, which ends when their servers have answered, or are
/// gone, and files of all other kinds by [`crate::disposal`].
///
/// If no thread can be started, the files stay open.
pub fn close_without_waiting(user: User, files: Vec<OwnedFd>) {
    let (local, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| is_closed_at_once(file));
    drop(local);
    let (mut disposable, mut others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|file| is_disposable(file));
    if !disposable.is_empty() {
        lock().dispose(user, &mut disposable);
        others.append(&mut disposable);
    }
    if !others.is_empty() {
        close_by_thread(user, others);
    }
}

/// Drops descriptors by fewer threads than if they were dropped one by one: those of a user together.
pub fn close_all(files: Vec<Disposable<OwnedFd>>) {
    let mut by_user = BTreeMap::<User, Vec<OwnedFd>>::new();
    for file in files {
        by_user.entry(file.user()).or_default().push(file.into_inner());
    }
    for (user, files) in by_user {
        close_without_waiting(user, files);
    }
}

/// Closes a connection that no other process has, as [`close_without_waiting`] does. One that has ended with
/// nothing in its queue cannot hang, so it is not counted.
fn close_connection(user: User, connection: OwnedFd) {
    let mut connection = vec![connection];
    if connection.iter().all(has_ended_empty) {
        // It is closed here if the kernel has no room for it now, which does not wait either.
        disposal::dispose(&mut connection);
        return;
    }
    close_without_waiting(user, connection);
}

/// Returns `true` if a socket is a Unix stream that was shut down, in the direction of this process at
/// least, and on which nothing is left to be received. Nothing can be sent to it any more.
fn has_ended_empty(socket: &OwnedFd) -> bool {
    use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let is_at_end = || rustix::net::recv(socket, &mut [0; 1], flags).map(|(count, _)| count == 0);
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        // A connection that was reset says so once.
        && is_at_end().or_else(|_| is_at_end()) == Ok(true)
}

/// The files for whose close no thread could be started.
static LEFT: Mutex<Vec<(User, Vec<OwnedFd>)>> = Mutex::new(Vec::new());

/// Closes files on a thread of their own, and those that are left from earlier calls. If there is no thread
/// for them, they stay open, and count, until the next call.
fn close_by_thread(user: User, files: Vec<OwnedFd>) {
    lock().thread_began(user);
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.push((user, files));
    while let Some((user, files)) = left.pop() {
        let files = Arc::new(Mutex::new(files));
        let taken = Arc::clone(&files);
        let close = move || {
            drop(take(&taken));
            lock().thread_ended(user);
        };
        if thread::Builder::new().name("longshore-close".to_owned()).spawn(close).is_err() {
            left.push((user, take(&files)));
            return;
        }
    }
}

fn take(files: &Mutex<Vec<OwnedFd>>) -> Vec<OwnedFd> {
    mem::take(&mut *files.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A descriptor that an untrusted process has sent or is connected to. When this is dropped, the
/// descriptor is closed without waiting, as [`close_without_waiting`] does.
///
/// A byte that a peer sends out of band (`MSG_OOB`) is received like any other on a connection. Otherwise the
/// kernel would drop it, and close the descriptors that came with it, on the thread that receives.
pub struct Disposable<T: Into<OwnedFd>> {
    file: ManuallyDrop<T>,
    user: User,
    /// `true` for a connection whose bytes out of band are in its queue, and of which no other process
    /// has a descriptor, so that this stays so.
    is_connection: bool,
}

impl<T: Into<OwnedFd> + AsFd> Disposable<T> {
    /// Takes a socket that this process has made or accepted, and counts its closing for the user at the
    /// other end.
    pub fn new(socket: T) -> Self {
        let user = User::of_peer(&socket);
        let is_connection = rustix::net::sockopt::set_socket_oobinline(&socket, true).is_ok();
        Self { file: ManuallyDrop::new(socket), user, is_connection }
    }
}

impl<T: Into<OwnedFd>> Disposable<T> {
    /// Takes a descriptor, and counts its closing for `user`.
    pub fn of_user(descriptor: T, user: User) -> Self {
        Self { file: ManuallyDrop::new(descriptor), user, is_connection: false }
    }

    /// Returns the user for whom the closing is counted.
    pub fn user(&self) -> User {
        self.user
    }

    /// Returns the descriptor, which is closed like any other from then on.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: neither `this` nor its field is used or dropped after that.
        unsafe { ManuallyDrop::take(&mut this.file) }
    }
}

impl<T: Into<OwnedFd>> Deref for Disposable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.file
    }
}

impl<T: Into<OwnedFd> + AsFd> AsFd for Disposable<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<T: Into<OwnedFd> + fmt::Debug> fmt::Debug for Disposable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl<T: Into<OwnedFd>> Drop for Disposable<T> {
    fn drop(&mut self) {
        // SAFETY: the field is not used after that.
        let descriptor = unsafe { ManuallyDrop::take(&mut self.file) };
        let descriptor = descriptor.into();
        match self.is_connection {
            true => close_connection(self.user, descriptor),
            false => close_without_waiting(self.user, vec![descriptor]),
        }
    }
}

/// The closes that have not ended, by user.
#[derive(Debug)]
struct Accounts {
    /// How many threads close files and may wait for that, for users that have any.
    threads: BTreeMap<User, usize>,
    /// How many threads receive from users.
    receiving: BTreeMap<User, usize>,
    /// The descriptors of other kinds than regular files that are being closed.
    disposals: BTreeMap<User, Disposals>,
}

impl Accounts {
    const fn new() -> Self {
        Self { threads: BTreeMap::new(), receiving: BTreeMap::new(), disposals: BTreeMap::new() }
    }

    fn may_receive(&mut self, user: User) -> bool {
        // Threads of a user beyond its limit do not count, so that they take nothing from others.
        let threads = |count: &usize| (*count).min(THREADS_PER_USER_MAX);
        let max = match self.threads.values().map(threads).sum() {
            0..THREADS_SHARED_MAX => THREADS_PER_USER_MAX,
            THREADS_SHARED_MAX..THREADS_MAX => 1,
            _ => 0,
        };
        if self.threads.get(&user).copied().unwrap_or(0) >= max {
            return false;
        }
        let Some(disposals) = self.disposals.get_mut(&user) else { return true };
        if disposals.held() >= HELD_PER_USER_MAX {
            // The threads may have ended.
            disposals.dispose(&mut Vec::new());
        }
        disposals.held() < HELD_PER_USER_MAX
    }

    fn is_busy(&mut self, user: User) -> bool {
        self.threads.contains_key(&user)
            || self.receiving.contains_key(&user)
            || self.disposals.get_mut(&user).is_some_and(|disposals| !disposals.have_ended())
    }

    fn thread_began(&mut self, user: User) {
        *self.threads.entry(user).or_default() += 1;
    }

    fn thread_ended(&mut self, user: User) {
        count_down(&mut self.threads, user);
    }

    /// Disposes of as many descriptors of a user as possible, and goes on with those of all users.
    fn dispose(&mut self, user: User, descriptors: &mut Vec<OwnedFd>) {
        if !descriptors.is_empty() {
            self.disposals.entry(user).or_default().dispose(descriptors);
        }
        self.disposals.retain(|_, disposals| {
            disposals.dispose(&mut Vec::new());
            !disposals.have_ended()
        });
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

fn lock() -> MutexGuard<'static, Accounts> {
    ACCOUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;

    /// As many closes that wait as one user may have. They end when this is dropped. Each test has a user
    /// of its own, since the accounts are those of the process.
    pub(crate) struct Hung(User);

    impl Hung {
        pub(crate) fn of(uid: u32) -> (Self, User) {
            let user = User::from_uid(uid);
            (0..THREADS_PER_USER_MAX).for_each(|_| lock().thread_began(user));
            (Self(user), user)
        }
    }

    impl Drop for Hung {
        fn drop(&mut self) {
            (0..THREADS_PER_USER_MAX).for_each(|_| lock().thread_ended(self.0));
        }
    }

    /// Has threads of this user wait for as long as it may have more; returns how many that is.
    fn hang_all(accounts: &mut Accounts, user: User) -> usize {
        let mut count = 0;
        while accounts.may_receive(user) {
            accounts.thread_began(user);
            count += 1;
        }
        count
    }

    #[test]
    fn threads_that_wait_are_counted_by_user() {
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
    fn each_user_has_one_thread_when_those_of_all_users_are_used_up() {
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
        accounts.dispose(hostile, &mut sockets(HELD_PER_USER_MAX - 1));
        assert!(accounts.may_receive(hostile));
        accounts.dispose(hostile, &mut sockets(2));
        assert!(!accounts.may_receive(hostile) && accounts.may_receive(other));
        accounts.dispose(other, &mut sockets(1));
        assert!(accounts.may_receive(other));
        assert_eq!(accounts.disposals[&hostile].held(), HELD_PER_USER_MAX + 1);
    }

    /// Waits until `is_done` is true, for the threads that close.
    fn wait_until(mut is_done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_done() {
            assert!(begin.elapsed() < Duration::from_secs(60), "a thread does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_close_that_has_ended_is_not_counted() {
        let user = User::from_uid(4_000_000_001);
        for _ in 0..2 * THREADS_PER_USER_MAX {
            close_without_waiting(user, vec![File::open("/proc/self/mem").unwrap().into()]);
        }
        wait_until(|| !lock().threads.contains_key(&user));
        assert!(may_receive(user));
    }

    /// Sets a record lock that belongs to the open file, as one of another process conflicts with ours.
    fn set_record_lock(file: &OwnedFd) {
        let (l_type, l_whence) = (libc::F_RDLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
        let lock = libc::flock { l_type, l_whence, l_start: 1 << 40, l_len: 1, l_pid: 0 };
        // SAFETY: the descriptor is open, and the kernel only reads the structure.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }

    #[test]
    #[cfg(not(miri))]
    fn files_with_record_locks_are_closed_by_a_thread_that_counts() {
        let user = User::from_uid(4_000_000_004);
        let memory = || crate::memfd::create("locked", crate::memfd::Backing::Shmem).unwrap();
        let on_disk = || OwnedFd::from(tempfile::tempfile().unwrap());
        close_without_waiting(user, vec![memory(), on_disk()]);
        assert!(!is_busy(user), "they are closed at once without a lock");
        for file in [memory(), on_disk()] {
            set_record_lock(&file);
            // No thread starts as long as this is held.
            let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            let closing = thread::spawn(move || close_without_waiting(user, vec![file]));
            wait_until(|| closing.is_finished() || is_busy(user));
            assert!(!closing.is_finished(), "it was closed on the thread of the caller");
            drop(left);
            closing.join().unwrap();
            wait_until(|| !is_busy(user));
        }
    }

    #[test]
    #[cfg(not(miri))]
    fn a_disposal_that_has_ended_is_not_counted() {
        let user = User::from_uid(4_000_000_002);
        for _ in 0..HELD_PER_USER_MAX {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            close_without_waiting(user, vec![ours.into()]);
        }
        wait_until(|| {
            lock().dispose(user, &mut Vec::new());
            !lock().disposals.contains_key(&user)
        });
    }

    #[test]
    #[cfg(not(miri))]
    fn a_disposable_is_closed_when_it_is_dropped_and_not_when_it_is_taken() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let taken = Disposable::new(ours).into_inner();
        theirs.set_nonblocking(true).unwrap();
        assert_eq!(
            io::Read::read(&mut theirs, &mut [0]).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        theirs.set_nonblocking(false).unwrap();
        drop(Disposable::new(taken));
        assert_eq!(io::Read::read(&mut theirs, &mut [0]).unwrap(), 0);
    }

    #[test]
    #[cfg(not(miri))]
    fn connections_that_end_empty_are_closed_though_others_hang() {
        let user = User::from_uid(4_000_000_003);
        lock().disposals.insert(user, Disposals::endless());
        let held = || lock().disposals[&user].held();
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_ended_empty(&ours.try_clone().unwrap().into()), "it is open");
        io::Write::write_all(&mut &theirs, b"unread").unwrap();
        drop(theirs);
        assert!(!has_ended_empty(&ours.try_clone().unwrap().into()));
        close_connection(user, ours.into());
        assert_eq!(held(), 1);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        close_connection(user, ours.into());
        assert_eq!(held(), 1, "it is closed by another thread");
        // A socket that came from a peer may have a queue that looks empty.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        drop(Disposable::of_user(ours, user));
        assert_eq!(held(), 2);
        lock().disposals.remove(&user);
    }

    #[test]
    #[cfg(not(miri))]
    fn a_byte_out_of_band_is_in_the_queue_of_a_connection() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ours = Disposable::new(ours);
        let sent = rustix::net::send(&theirs, b"x", rustix::net::SendFlags::OOB);
        if sent.is_err() {
            return println!("SKIPPED: the kernel has no bytes out of band on Unix sockets");
        }
        drop(theirs);
        assert!(!has_ended_empty(&ours.try_clone().unwrap().into()));
        let mut byte = [0];
        assert_eq!(io::Read::read(&mut &*ours, &mut byte).unwrap(), 1);
        assert!(byte == *b"x" && has_ended_empty(&ours.try_clone().unwrap().into()));
    }

    #[test]
    #[cfg(not(miri))]
    fn files_without_a_thread_are_closed_later() {
        let user = User::from_uid(4_000_000_005);
        let (reader, writer) = io::pipe().unwrap();
        lock().thread_began(user);
        LEFT.lock().unwrap().push((user, vec![writer.into()]));
        close_by_thread(user, Vec::new());
        assert_eq!(io::Read::read(&mut &reader, &mut [0]).unwrap(), 0);
        wait_until(|| !lock().threads.contains_key(&user));
    }

    #[test]
    fn the_user_of_a_connection_is_the_one_at_its_other_end() {
        let own = User::own();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(User::of_peer(ours), own);
        let (receiver, _sender) = io::pipe().unwrap();
        assert_eq!(User::of_peer(receiver), own, "it is no socket");
        let unconnected = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        );
        assert_eq!(User::of_peer(unconnected.unwrap()), own);
    }
}
