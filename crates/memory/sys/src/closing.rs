//! Closing descriptors of untrusted processes on other threads, with limits for each user.
//!
//! A close can block for ever. While too many closes of a user are blocked, no more descriptors of that
//! user are received. This limit depends on the number of threads that are blocked in closes for all
//! users:
//!
//! ```text
//!   all users         one user
//!   less than 64      4
//!   64 to 255         1
//!   256               none: descriptors of all users are refused
//! ```
//!
//! Threads that receive at the same moment can each exceed these limits by one. At most four threads of
//! a user count for all users, so one user ID cannot use up the limit of the others. A person who can
//! connect with 64 user IDs can use it up, for example with a range in `/etc/subuid`.
//!
//! Regular files that the kernel serves itself do not count here: one thread at a time closes those of a
//! user that are in memory, and another those on disks. No more descriptors of a user are received while
//! 256 of its files wait.
//!
//! Closing does not look up the block devices of a file, because another user can delay that. So a file on
//! a device that another process serves (a loop device on FUSE) can delay the closing of the same user's
//! other files on disks, but not of its memory, and not of files of other users.
#![expect(unsafe_code, reason = "takes a descriptor out of a value that is dropped")]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::answering::{self, Place, is_disposable};
use crate::disposal::{self, Disposals};

pub use crate::user::User;

use self::accounts::{Accounts, HELD_PER_USER_MAX, Kind};

mod accounts;

/// The time that a call that receives a descriptor from a user waits for closes of that user's files.
const CATCH_UP_TIME: Duration = Duration::from_secs(1);
/// The time that such a call, and a thread that closes files, sleep before they check again.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The number of times that a thread that closes files looks for more before it ends.
const LOOKS_MAX: u32 = 100;
/// The name of the threads.
const THREAD_NAME: &str = "longshore-close";

static ACCOUNTS: Mutex<Accounts> = Mutex::new(Accounts::new());

/// Returns `true` if the user is within its limits, so that more descriptors can be received from it,
/// which may all have to be closed by [`close_without_waiting`].
pub fn may_receive(user: User) -> bool {
    lock().may_receive(user)
}

/// Waits for up to a second until more descriptors can be received from this user. Returns `true` if they
/// can.
///
/// This gives the closes of the user's files time to catch up, because a client may send many files at
/// once. Call it only if there is a descriptor to receive.
pub fn catch_up(user: User) -> bool {
    let begin = Instant::now();
    while lock().files_held(user) >= HELD_PER_USER_MAX && begin.elapsed() < CATCH_UP_TIME {
        // The files may wait because no thread could be started.
        close_in_turn(Kind::Memory, user, Vec::new());
        close_in_turn(Kind::Disk, user, Vec::new());
        thread::sleep(LOOK_EVERY);
    }
    lock().may_receive(user)
}

/// Returns the error of a call that would receive descriptors of a user while [`may_receive`] is
/// `false`.
pub fn too_many_closing() -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        "earlier descriptors of this user are still being closed, because the processes that serve \
         their file systems do not answer; end those processes",
    )
}

/// Returns `true` if a thread closes descriptors of this user, or receives from it, at this moment. If
/// that does not change for a long time, a file or a peer blocks the thread. Regular files that the
/// kernel serves itself are ignored, because a busy client always has some of them closed.
pub fn is_busy(user: User) -> bool {
    lock().is_busy(user)
}

/// A call that receives descriptors of a user, in which the kernel may close some of them.
pub(crate) struct Receiving(User);

impl Receiving {
    pub(crate) fn begin(user: User) -> Self {
        lock().receiving_began(user);
        Self(user)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        lock().receiving_ended(self.0);
    }
}

/// Returns `true` if regular files of this user that the kernel serves itself are not closed yet, for
/// tests.
#[doc(hidden)]
pub fn has_files(user: User) -> bool {
    lock().has_files(user)
}

/// Has files of this user for which the kernel answers wait to be closed from now on, for tests.
#[doc(hidden)]
pub fn hold_files(user: User) {
    let mut accounts = lock();
    accounts.files(Kind::Memory).occupy(user);
    accounts.files(Kind::Disk).occupy(user);
}

/// Gives a user the maximum number of closes that never end, for tests.
#[doc(hidden)]
pub fn exhaust(user: User) {
    let mut accounts = lock();
    accounts.disposals.insert(user, Disposals::endless());
    let sockets = || std::os::unix::net::UnixStream::pair().map(|(one, _)| OwnedFd::from(one));
    let mut sockets = (0..=HELD_PER_USER_MAX).filter_map(|_| sockets().ok()).collect();
    let copies = accounts.dispose(user, &mut sockets);
    drop(accounts);
    drop(copies);
}

/// Closes files of a user without blocking the caller. Memory, and other regular files that the kernel
/// serves itself without a block device, are closed on a thread that closes such files of this user one
/// after another; regular files on disks on a second thread of this kind; other regular files on a new
/// thread, which ends when their servers have answered or are gone; and files of all other kinds by
/// [`crate::disposal`].
///
/// If no thread can be started, the files stay open.
pub fn close_without_waiting(user: User, files: Vec<OwnedFd>) {
    let (mut memory, mut disk, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        match answering::place(&file) {
            Place::Memory => memory.push(file),
            Place::Disk => disk.push(file),
            Place::Other => others.push(file),
        }
    }
    close_in_turn(Kind::Memory, user, memory);
    close_in_turn(Kind::Disk, user, disk);
    let (mut disposable, mut others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|file| is_disposable(file));
    if !disposable.is_empty() {
        let copies = lock().dispose(user, &mut disposable);
        // Other users need the lock, and closing the copies can take long.
        drop(copies);
        others.append(&mut disposable);
    }
    if !others.is_empty() {
        close_by_thread(user, others);
    }
}

/// Closes files that the kernel serves itself on another thread, and those that are left from earlier
/// calls. If no thread can be started, they stay open, and count, until the next call.
fn close_in_turn(kind: Kind, user: User, files: Vec<OwnedFd>) {
    if !lock().files(kind).add(user, files) {
        return;
    }
    let thread = thread::Builder::new().name(THREAD_NAME.to_owned());
    if thread.spawn(move || close_files(kind)).is_err() {
        lock().files(kind).start_failed();
    }
}

/// Closes files that the kernel serves itself, until none have arrived for some time.
fn close_files(kind: Kind) {
    let mut looks = 0;
    while looks < LOOKS_MAX || !lock().files(kind).end() {
        looks += 1;
        let taken = lock().files(kind).take();
        if let Some((user, files)) = taken {
            drop(files);
            lock().files(kind).closed(user);
            looks = 0;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Drops descriptors, those of each user together, which needs fewer threads than dropping them one by
/// one.
pub fn close_all(files: Vec<Disposable<OwnedFd>>) {
    let mut by_user = BTreeMap::<User, Vec<OwnedFd>>::new();
    for file in files {
        by_user.entry(file.user()).or_default().push(file.into_inner());
    }
    for (user, files) in by_user {
        close_without_waiting(user, files);
    }
}

/// Closes a connection that no other process has, like [`close_without_waiting`]. If it has ended and
/// its queue is empty, closing it cannot block, so it is not counted.
fn close_connection(user: User, connection: OwnedFd) {
    let mut connection = vec![connection];
    if connection.iter().all(has_ended_empty) {
        // If this fails, the connection is closed here, which does not block either.
        disposal::dispose(&mut connection);
        return;
    }
    close_without_waiting(user, connection);
}

/// Receives and closes all messages in the queue of a connection that was shut down, in an exiting thread
/// that counts for the user. Returns `false` if no thread is available for now.
pub(crate) fn empty(user: User, connection: impl AsFd) -> bool {
    lock().disposals.entry(user).or_default().empty(connection)
}

/// Returns `true` if a socket is a Unix stream that was shut down, at least in the direction to this
/// process, and whose queue is empty. Nothing more can be sent to it.
pub(crate) fn has_ended_empty(socket: impl AsFd) -> bool {
    use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let is_at_end = || rustix::net::recv(&socket, &mut [0; 1], flags).map(|(count, _)| count == 0);
    sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&socket) == Ok(SocketType::STREAM)
        // If the connection was reset, the first call returns an error.
        && is_at_end().or_else(|_| is_at_end()) == Ok(true)
}

/// The files for whose close no thread could be started.
static LEFT: Mutex<Vec<(User, Vec<OwnedFd>)>> = Mutex::new(Vec::new());

/// Closes files on a new thread, and those that are left from earlier calls. If no thread can be
/// started, they stay open, and count, until the next call.
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
        if thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(close).is_err() {
            left.push((user, take(&files)));
            return;
        }
    }
}

fn take(files: &Mutex<Vec<OwnedFd>>) -> Vec<OwnedFd> {
    mem::take(&mut *files.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A descriptor that an untrusted process has sent or is connected to. Dropping it closes the descriptor
/// without blocking, like [`close_without_waiting`].
///
/// On a connection, a byte that a peer sends out of band (`MSG_OOB`) is received like any other.
/// Otherwise the kernel would drop it, and close the descriptors that came with it on the receiving
/// thread.
pub struct Disposable<T: Into<OwnedFd>> {
    file: ManuallyDrop<T>,
    /// The number of the user.
    uid: AtomicU32,
    /// `true` for a connection whose bytes out of band are received inline, and of which no other
    /// process has a descriptor, so that this cannot change.
    is_connection: bool,
}

impl<T: Into<OwnedFd> + AsFd> Disposable<T> {
    /// Takes a socket that this process has made or accepted, and counts its closing for the user at the
    /// other end.
    pub fn new(socket: T) -> Self {
        let uid = User::of_peer(&socket).uid().into();
        let is_connection = rustix::net::sockopt::set_socket_oobinline(&socket, true).is_ok();
        Self { file: ManuallyDrop::new(socket), uid, is_connection }
    }
}

impl<T: Into<OwnedFd>> Disposable<T> {
    /// Takes a descriptor, and counts its closing for `user`.
    pub fn of_user(descriptor: T, user: User) -> Self {
        Self { file: ManuallyDrop::new(descriptor), uid: user.uid().into(), is_connection: false }
    }

    /// Returns the user for whom the closing is counted.
    pub fn user(&self) -> User {
        User::from_uid(self.uid.load(Ordering::Relaxed))
    }

    /// Counts the closing for `user` instead: the one to whom a file of this process is sent.
    pub fn set_user(&self, user: User) {
        self.uid.store(user.uid(), Ordering::Relaxed);
    }

    /// Returns the descriptor, which is then closed like any other.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: neither `this` nor its field is used or dropped afterwards.
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
        let user = self.user();
        // SAFETY: the field is not used afterwards.
        let descriptor = unsafe { ManuallyDrop::take(&mut self.file) };
        let descriptor = descriptor.into();
        match self.is_connection {
            true => close_connection(user, descriptor),
            false => close_without_waiting(user, vec![descriptor]),
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

    use super::accounts::THREADS_PER_USER_MAX;
    use super::*;

    /// As many blocked closes as one user may have. They end when this is dropped. Each test has its own
    /// user, because the accounts belong to the process.
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

    /// Waits until `is_done` returns `true`.
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

    #[test]
    #[cfg(not(miri))]
    fn files_that_the_kernel_serves_are_not_closed_on_the_thread_of_the_caller() {
        let user = User::from_uid(4_000_000_006);
        hold_files(user);
        let memory = crate::memfd::create("closed-in-turn", crate::memfd::Backing::Shmem).unwrap();
        let link = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let is_open = || {
            let name = std::fs::read_link(&link).unwrap_or_default();
            name.to_string_lossy().starts_with("/memfd:closed-in-turn")
        };
        close_without_waiting(user, vec![memory]);
        assert!(is_open() && has_files(user));
        while may_receive(user) {
            close_without_waiting(user, vec![tempfile::tempfile().unwrap().into()]);
        }
        assert_eq!(lock().files_held(user), HELD_PER_USER_MAX);
        // Bytes without descriptors are received at once: waiting for each would take a minute.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let begin = Instant::now();
        for _ in 0..60 {
            io::Write::write_all(&mut &theirs, b"x").unwrap();
            let mut byte = [0];
            let mut none = Vec::new();
            crate::unix_socket::receive(&ours, user, &mut byte, &mut none, None).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        lock().files(Kind::Memory).release(user);
        lock().files(Kind::Disk).release(user);
        close_without_waiting(user, vec![tempfile::tempfile().unwrap().into()]);
        wait_until(|| !has_files(user));
        assert!(!is_open() && may_receive(user));
    }

    #[test]
    #[cfg(not(miri))]
    fn a_close_on_a_disk_that_hangs_does_not_delay_memory_of_the_same_user() {
        let user = User::from_uid(4_000_000_007);
        lock().files(Kind::Disk).occupy(user);
        let file = tempfile::tempfile().unwrap();
        if answering::place(&file) != Place::Disk {
            return println!("SKIPPED: temporary files are not on a disk");
        }
        let memory = crate::memfd::create("beside-disk", crate::memfd::Backing::Shmem).unwrap();
        close_without_waiting(user, vec![file.into(), memory]);
        wait_until(|| !lock().files(Kind::Memory).has_any(user));
        assert_eq!(lock().files_held(user), 1);
        lock().files(Kind::Disk).release(user);
        close_without_waiting(user, vec![tempfile::tempfile().unwrap().into()]);
        wait_until(|| !has_files(user));
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
            drop(lock().dispose(user, &mut Vec::new()));
            !lock().disposals.contains_key(&user)
        });
    }

    #[test]
    #[cfg(not(miri))]
    fn a_disposable_is_closed_by_drop_but_not_by_into_inner() {
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
    fn ended_connections_with_empty_queues_are_closed_even_if_others_hang() {
        let user = User::from_uid(4_000_000_003);
        lock().disposals.insert(user, Disposals::endless());
        let held = || lock().disposals[&user].held();
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_ended_empty(&ours), "it is open");
        io::Write::write_all(&mut &theirs, b"unread").unwrap();
        drop(theirs);
        assert!(!has_ended_empty(&ours));
        close_connection(user, ours.into());
        assert_eq!(held(), 1);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        close_connection(user, ours.into());
        assert_eq!(held(), 1, "it is closed by another thread");
        // The queue of a socket that a peer has sent may only look empty.
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
        assert!(!has_ended_empty(&ours));
        let mut byte = [0];
        assert_eq!(io::Read::read(&mut &*ours, &mut byte).unwrap(), 1);
        assert!(byte == *b"x" && has_ended_empty(&ours));
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
        assert_eq!(User::of_peer(receiver), own, "it is not a socket");
        let unconnected = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        );
        assert_eq!(User::of_peer(unconnected.unwrap()), own);
    }
}
