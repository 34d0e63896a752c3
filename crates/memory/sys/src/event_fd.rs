//! `eventfd(2)`: a counter that one side increments and the other side polls.
//!
//! An eventfd that is shared with another process may block in any mode: that process can clear
//! `O_NONBLOCK` and fill the counter at any moment, also between two system calls of this process, and
//! then a `write(2)` waits until the other process reads. It can also make the last close wait for ever,
//! by an epoll (see [`crate::answering::may_be_passed_on`]). [`SharedEvent`] signals and closes such an
//! eventfd without ever waiting, and [`drain`] does not wait either.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use crate::account::{Account, Limits, Permit};
use crate::aio;
use crate::answering;
use crate::closing::{self, Disposable};
use crate::user::User;

/// Makes an eventfd with the counter zero, which is close-on-exec and non-blocking.
///
/// # Errors
/// Those of `eventfd(2)`, if descriptors or memory are exhausted.
pub fn create() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds one to an eventfd that no other process shares. If the counter is full, the eventfd is readable
/// already, so that is not an error.
///
/// # Errors
/// Those of `write(2)`.
pub fn signal(event: impl AsFd) -> io::Result<()> {
    crate::retry_interrupted(|| match rustix::io::write(&event, &1_u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    })
}

/// Sets the counter to zero and returns the previous value. This never waits, even if another process
/// shares the eventfd and has made it blocking.
///
/// # Errors
/// Those of `preadv2(2)`, except `EAGAIN`: a counter of zero is not an error.
pub fn drain(event: impl AsFd) -> io::Result<u64> {
    /// Reads from the current position, which an eventfd does not have.
    const NO_OFFSET: u64 = u64::MAX;
    let event = event.as_fd();
    let mut count = [0; 8];
    crate::retry_interrupted(|| {
        let mut into = [IoSliceMut::new(&mut count)];
        match rustix::io::preadv2(event, &mut into, NO_OFFSET, ReadWriteFlags::NOWAIT) {
            Ok(8) => Ok(u64::from_ne_bytes(count)),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::AGAIN) => Ok(0),
            // An emulation of Linux.
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => drain_by_mode(event),
            Err(error) => Err(error.into()),
        }
    })
}

/// Does the same as [`drain`], but waits if the eventfd is blocking.
fn drain_by_mode(event: impl AsFd) -> io::Result<u64> {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(_) => Ok(u64::from_ne_bytes(count)),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Returns `true` if a descriptor that another process sent is an eventfd that [`drain`] can empty: its
/// link in `/proc/self/fd` must be that of an eventfd, and it must be readable (not `O_PATH`).
///
/// It also returns `true` for a semaphore (`EFD_SEMAPHORE`), because only `/proc/self/fdinfo`
/// distinguishes the two, and another process determines how long that text is. A semaphore costs no
/// more than an eventfd that its owner signals without end: [`drain`] takes one from the counter, and
/// signalling is the same.
///
/// # Errors
/// Those of reading `/proc/self/fd`, and of `fcntl(2)`.
pub fn is_one(descriptor: impl AsFd) -> io::Result<bool> {
    let descriptor = descriptor.as_fd();
    Ok(answering::is_eventfd(descriptor)?
        && !rustix::fs::fcntl_getfl(descriptor)?.contains(OFlags::PATH))
}

/// Prepares this process for signalling a [`SharedEvent`]. A server calls this before it has any client.
/// Returns `false` if AIO is not available for now; until it is, threads write the signals.
pub fn prepare() -> bool {
    aio::prepare().is_ok()
}

/// An eventfd that an untrusted process shares. It is signalled and closed without waiting. Clones share
/// the same eventfd.
///
/// The kernel signals it as the completion of an operation (`io_submit(2)`), which adds one without
/// blocking, in any mode and even if the counter is full. While AIO is not available, a thread writes
/// instead. That thread may wait for ever if the other process has filled the counter. Each user has at
/// most four such threads, and all users together 256. If all threads of a user wait, it gets no more
/// signals that way.
#[derive(Clone, Debug)]
pub struct SharedEvent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    event: Disposable<OwnedFd>,
    /// The number of signals that a thread must still write.
    owed: AtomicU64,
}

impl SharedEvent {
    /// Takes `event`, for which [`is_one`] has returned `true`. Threads that write to it or close it are
    /// counted for its user.
    pub fn new(event: Disposable<OwnedFd>) -> Self {
        Self(Arc::new(Shared { event, owed: AtomicU64::new(0) }))
    }

    /// Closes those eventfds that have no other clones, with fewer threads than if each were dropped.
    pub fn close_all(events: Vec<Self>) {
        let last = events.into_iter().filter_map(|event| Arc::into_inner(event.0));
        closing::close_all(last.map(|shared| shared.event).collect());
    }

    /// Adds one to the counter, or nothing if the counter is full.
    ///
    /// # Errors
    /// If AIO is not available and the user has no thread: `QuotaExceeded` if the limit of all users is
    /// reached; those of starting a thread.
    pub fn signal(&self) -> io::Result<()> {
        match aio::signal(self) {
            Ok(()) => Ok(()),
            Err(_no_aio) => WRITERS.signal(&self.0),
        }
    }
}

impl AsFd for SharedEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

static WRITERS: Writers = Writers::new(Limits { per_user: 4, all_users: 256 });

/// Threads that write to eventfds. If all threads of a user wait, its eventfds are queued, so no signal
/// is lost for a user that reads its eventfds.
#[derive(Debug)]
struct Writers {
    threads: Account,
    limits: Limits,
    queues: Mutex<BTreeMap<User, VecDeque<Weak<Shared>>>>,
}

impl Writers {
    const fn new(limits: Limits) -> Self {
        let threads = Account::new("threads that write to eventfds");
        Self { threads, limits, queues: Mutex::new(BTreeMap::new()) }
    }

    /// Lets a thread add one to the counter of `event`.
    fn signal(&'static self, event: &Arc<Shared>) -> io::Result<()> {
        let mut queues = self.lock();
        if event.owed.fetch_add(1, Ordering::AcqRel) > 0 {
            return Ok(());
        }
        let queue = queues.entry(event.user()).or_default();
        if queue.len() == queue.capacity() {
            queue.retain(|event| event.strong_count() > 0);
        }
        queue.push_back(Arc::downgrade(event));
        let started = self.start(event.user());
        if started.is_err() {
            event.owed.store(0, Ordering::Release);
            queue.pop_back();
            if queue.is_empty() {
                queues.remove(&event.user());
            }
        }
        started
    }

    /// Starts a thread for the queue of `user`, unless its limit is reached. The caller holds the lock
    /// of the queues, so no thread ends meanwhile.
    fn start(&'static self, user: User) -> io::Result<()> {
        let permit = self.threads.take(user, 1, self.limits).map_err(io::Error::from);
        let started = permit.and_then(|permit| {
            let thread = thread::Builder::new().name("longshore-event".to_owned());
            thread.spawn(move || self.write_queue(user, permit)).map(drop)
        });
        // If the user already has a thread, that one serves the queue, too.
        if self.threads.held(user) > 0 { Ok(()) } else { started }
    }

    fn write_queue(&self, user: User, permit: Permit) {
        loop {
            let mut queues = self.lock();
            let Some(event) = queues.get_mut(&user).and_then(VecDeque::pop_front) else {
                queues.remove(&user);
                // Drop it under the lock, so that an event that is queued later starts a thread.
                drop(permit);
                return;
            };
            drop(queues);
            if let Some(event) = event.upgrade() {
                event.write_owed();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<User, VecDeque<Weak<Shared>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn user(&self) -> User {
        self.event.user()
    }

    /// Writes the owed signals. Waits while the counter is full.
    fn write_owed(&self) {
        let mut count = self.owed.load(Ordering::Acquire);
        while count > 0 {
            // It fails if the counter is full and the eventfd is non-blocking.
            let _ = crate::retry_interrupted(|| {
                Ok(rustix::io::write(&*self.event, &count.to_ne_bytes())?)
            });
            count = self.owed.fetch_sub(count, Ordering::AcqRel) - count;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;

    #[test]
    fn signals_are_drained_once() {
        let event = create().unwrap();
        assert_eq!(drain(&event).unwrap(), 0);
        signal(&event).unwrap();
        signal(&event).unwrap();
        assert_eq!(drain(&event).unwrap(), 2);
        assert_eq!(drain(&event).unwrap(), 0);
    }

    /// Returns a blocking eventfd with a full counter.
    fn full() -> OwnedFd {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        fill(&event);
        event
    }

    fn fill(event: &OwnedFd) {
        rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }

    /// Fails the test if `work` takes too long.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || tell.send(work()));
        told.recv_timeout(Duration::from_secs(20)).expect("it waits for ever")
    }

    fn of_user(event: &OwnedFd, user: User) -> SharedEvent {
        SharedEvent::new(Disposable::of_user(event.try_clone().unwrap(), user))
    }

    /// The users of these tests. The static accounts are shared with other tests.
    const USER: User = User::from_uid(4_000_000_021);
    const OTHER: User = User::from_uid(4_000_000_022);

    #[test]
    fn a_full_counter_that_blocks_is_signalled_and_drained_without_waiting() {
        in_time(|| {
            let event = full();
            let shared = of_user(&event, USER);
            // More signals than the kernel's completion ring has room for.
            (0..10_000).for_each(|_| shared.signal().unwrap());
            assert!(drain(&event).unwrap() >= u64::MAX - 1);
            assert_eq!(drain(&event).unwrap(), 0);
            shared.signal().unwrap();
            shared.signal().unwrap();
            assert_eq!(drain(&event).unwrap(), 2);
        });
    }

    #[test]
    fn threads_signal_one_event_and_no_signal_is_lost() {
        in_time(|| {
            let event = create().unwrap();
            let shared = of_user(&event, USER);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..5_000).for_each(|_| shared.signal().unwrap()));
                }
            });
            drop(shared);
            assert_eq!(drain(&event).unwrap(), 20_000);
        });
    }

    /// Returns an eventfd, and a handle to it for the writing threads.
    fn shared(event: OwnedFd, user: User) -> (OwnedFd, Arc<Shared>) {
        let shared = of_user(&event, user);
        (event, shared.0)
    }

    /// Waits until `is_so` returns `true`.
    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            thread::yield_now();
        }
    }

    /// Drains an eventfd until it has counted `wanted`.
    fn drain_all(event: &OwnedFd, wanted: u64) {
        let mut count = 0;
        while count < wanted {
            count += drain(event).unwrap();
            thread::yield_now();
        }
        assert_eq!(count, wanted);
    }

    #[test]
    fn a_user_whose_counters_are_full_has_few_threads_and_takes_none_from_others() {
        static WRITERS: Writers = Writers::new(Limits { per_user: 2, all_users: 3 });
        in_time(|| {
            let hostile: Vec<_> = (0..20).map(|_| shared(full(), USER)).collect();
            for _ in 0..3 {
                hostile.iter().for_each(|(_, shared)| WRITERS.signal(shared).unwrap());
            }
            let (event, of_other) = shared(create().unwrap(), OTHER);
            for _ in 0..1000 {
                WRITERS.signal(&of_other).unwrap();
            }
            drain_all(&event, 1000);
            until(|| WRITERS.lock()[&USER].len() == 18);
            assert_eq!(WRITERS.threads.held(USER), 2);

            // The two threads that wait have references; the other events are dropped.
            let weak: Vec<_> = hostile.iter().map(|(_, it)| Arc::downgrade(it)).collect();
            let events: Vec<_> = hostile.into_iter().map(|(event, _)| event).collect();
            let alive = || weak.iter().filter(|it| it.strong_count() > 0).count();
            assert_eq!(alive(), 2);
            for event in &events {
                drain(event).unwrap();
            }
            until(|| WRITERS.threads.held(USER) + WRITERS.threads.held(OTHER) == 0);
            assert_eq!(alive(), 0);
            assert_eq!(events.iter().filter(|it| drain(it).unwrap() > 0).count(), 2);
            assert!(WRITERS.lock().is_empty());
        });
    }

    #[test]
    fn signals_behind_a_full_counter_of_the_same_user_are_not_lost() {
        static WRITERS: Writers = Writers::new(Limits { per_user: 1, all_users: 1 });
        in_time(|| {
            let (full, stuck) = shared(full(), USER);
            WRITERS.signal(&stuck).unwrap();
            let (event, behind) = shared(create().unwrap(), USER);
            (0..100).for_each(|_| WRITERS.signal(&behind).unwrap());
            let (other, refused) = shared(create().unwrap(), OTHER);
            let error = WRITERS.signal(&refused).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
            assert_eq!(drain(&event).unwrap(), 0);

            assert_eq!(drain(full).unwrap(), u64::MAX - 1);
            drain_all(&event, 100);
            until(|| WRITERS.threads.held(USER) == 0);
            WRITERS.signal(&refused).unwrap();
            drain_all(&other, 1);
        });
    }

    #[test]
    fn dropped_events_are_removed_from_a_queue() {
        static WRITERS: Writers = Writers::new(Limits { per_user: 1, all_users: 1 });
        in_time(|| {
            let (full, stuck) = shared(full(), USER);
            WRITERS.signal(&stuck).unwrap();
            for _ in 0..1000 {
                WRITERS.signal(&shared(create().unwrap(), USER).1).unwrap();
            }
            assert!(WRITERS.lock()[&USER].len() < 100);
            drain(full).unwrap();
        });
    }

    #[test]
    fn other_descriptors_are_not_eventfds() {
        let event = create().unwrap();
        assert!(is_one(&event).unwrap());
        let path = format!("/proc/self/fd/{}", event.as_raw_fd());
        let path = rustix::fs::open(path, OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        assert!(!is_one(path).unwrap());
        let memfd = crate::memfd::create("event-test", crate::memfd::Backing::Shmem).unwrap();
        assert!(!is_one(memfd).unwrap());
    }

    #[test]
    fn a_semaphore_is_signalled_and_drained_one_by_one_without_waiting() {
        in_time(|| {
            // It is blocking, as its owner can make it at any time.
            let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
            let semaphore = rustix::event::eventfd(0, flags).unwrap();
            assert!(is_one(&semaphore).unwrap());
            let shared = of_user(&semaphore, USER);
            (0..3).for_each(|_| shared.signal().unwrap());
            assert_eq!([(); 4].map(|()| drain(&semaphore).unwrap()), [1, 1, 1, 0]);
        });
    }
}
