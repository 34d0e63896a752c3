//! `eventfd(2)`: a counter that one side adds to and the other polls.
//!
//! An eventfd whose descriptor another process has, too, may block whichever mode it was given: that
//! process can clear `O_NONBLOCK` and fill the counter at any moment, also between two system calls
//! of this one, and a `write(2)` waits then until it reads. It can also have the last close wait for ever, by
//! an epoll (see [`crate::answering::may_be_passed_on`]). [`SharedEvent`] signals and closes such an eventfd
//! without ever waiting, and [`drain`] does not wait either.

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

/// Makes one that counts nothing yet, is closed on exec and never blocks.
///
/// # Errors
/// Descriptors or memory exhausted.
pub fn create() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds one to an eventfd of this process alone. A counter that is at its end already says all that
/// one more would, so that is no error.
///
/// # Errors
/// Those of `write(2)`.
pub fn signal(event: impl AsFd) -> io::Result<()> {
    crate::retry_interrupted(|| match rustix::io::write(&event, &1_u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    })
}

/// Sets the counter to zero and returns what it was. This never waits, also where another process
/// shares the eventfd and has made it block.
///
/// # Errors
/// Those of `preadv2(2)`, other than that it counts nothing.
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
            // Not a Linux kernel, but something that stands in for one.
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => drain_by_mode(event),
            Err(error) => Err(error.into()),
        }
    })
}

/// As [`drain`]; waits if the eventfd blocks.
fn drain_by_mode(event: impl AsFd) -> io::Result<u64> {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(_) => Ok(u64::from_ne_bytes(count)),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a descriptor that another process sent is an eventfd that [`drain`] empties: it is
/// one by its name in `/proc/self/fd`, and can be read (`O_PATH` cannot).
///
/// A semaphore (`EFD_SEMAPHORE`) passes for the others, because only `/proc/self/fdinfo` shows that it is
/// one, and another process decides how long that text is. It costs no more than an eventfd that its owner
/// signals without end: [`drain`] takes one from the counter, and signalling is the same.
///
/// # Errors
/// Those of reading `/proc/self/fd`, and of `fcntl(2)`.
pub fn is_one(descriptor: impl AsFd) -> io::Result<bool> {
    let descriptor = descriptor.as_fd();
    Ok(answering::is_eventfd(descriptor)?
        && !rustix::fs::fcntl_getfl(descriptor)?.contains(OFlags::PATH))
}

/// Prepares this process to signal eventfds of untrusted processes, as [`SharedEvent`] does. A server calls
/// this before it has any client. Returns `false` if this process has no AIO for now: signals are written
/// by threads until it has.
pub fn prepare() -> bool {
    aio::prepare().is_ok()
}

/// An eventfd that an untrusted process shares, to be signalled and closed without waiting. Clones are the
/// same one.
///
/// The kernel signals it as the completion of an operation (`io_submit(2)`), which adds one whatever
/// mode the eventfd is in and however full it is. While a process has no AIO, a thread writes. It may wait
/// for ever, if the other process has filled the counter. Each user has four such threads at most, and
/// all users have 256. A user whose threads all wait gets no more signals that way.
#[derive(Clone, Debug)]
pub struct SharedEvent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    event: Disposable<OwnedFd>,
    /// How many signals a thread has still to write.
    owed: AtomicU64,
}

impl SharedEvent {
    /// Takes `event`, for which [`is_one`] was true. Threads that write to it or close it are counted for
    /// its user.
    pub fn new(event: Disposable<OwnedFd>) -> Self {
        Self(Arc::new(Shared { event, owed: AtomicU64::new(0) }))
    }

    /// Closes eventfds of which these are the last clones, by fewer threads than if each were dropped.
    pub fn close_all(events: Vec<Self>) {
        let last = events.into_iter().filter_map(|event| Arc::into_inner(event.0));
        closing::close_all(last.map(|shared| shared.event).collect());
    }

    /// Adds one to the counter. If it is at its end, nothing is added.
    ///
    /// # Errors
    /// While this process has no AIO and the user has no thread: none could be started, or all users have as
    /// many as they may.
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

/// Threads that write to eventfds. The eventfds of a user whose threads all wait are queued, so no signal
/// of a user that reads its eventfds is lost.
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

    /// Has a thread add one to the counter of `event`.
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

    /// Starts a thread for the queue of `user`, unless it has as many as it may. The caller has the lock of
    /// the queues, without which no thread ends.
    fn start(&'static self, user: User) -> io::Result<()> {
        let permit = self.threads.take(user, 1, self.limits).map_err(io::Error::from);
        let started = permit.and_then(|permit| {
            let thread = thread::Builder::new().name("longshore-event".to_owned());
            thread.spawn(move || self.write_queue(user, permit)).map(drop)
        });
        // A thread that the user has serves the queue, too.
        if self.threads.held(user) > 0 { Ok(()) } else { started }
    }

    fn write_queue(&self, user: User, permit: Permit) {
        loop {
            let mut queues = self.lock();
            let Some(event) = queues.get_mut(&user).and_then(VecDeque::pop_front) else {
                queues.remove(&user);
                // With the lock: an event that is queued later gets a thread of its own.
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

    /// Waits for as long as the counter has no room.
    fn write_owed(&self) {
        let mut count = self.owed.load(Ordering::Acquire);
        while count > 0 {
            // It may be full and not block.
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
    fn what_is_added_is_drained_once() {
        let event = create().unwrap();
        assert_eq!(drain(&event).unwrap(), 0);
        signal(&event).unwrap();
        signal(&event).unwrap();
        assert_eq!(drain(&event).unwrap(), 2);
        assert_eq!(drain(&event).unwrap(), 0);
    }

    /// An eventfd that blocks, and whose counter is at its end.
    fn full() -> OwnedFd {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        fill(&event);
        event
    }

    fn fill(event: &OwnedFd) {
        rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }

    /// Ends the test if `work` waits for ever.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || tell.send(work()));
        told.recv_timeout(Duration::from_secs(20)).expect("it waits for ever")
    }

    fn of_user(event: &OwnedFd, user: User) -> SharedEvent {
        SharedEvent::new(Disposable::of_user(event.try_clone().unwrap(), user))
    }

    /// Users of the tests, which share the static accounts.
    const USER: User = User::from_uid(4_000_000_021);
    const OTHER: User = User::from_uid(4_000_000_022);

    #[test]
    fn a_full_counter_that_blocks_is_signalled_and_drained_without_waiting() {
        in_time(|| {
            let event = full();
            let shared = of_user(&event, USER);
            // More than there is room for in the kernel's ring.
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

    /// An eventfd, and its handle that threads write to.
    fn shared(event: OwnedFd, user: User) -> (OwnedFd, Arc<Shared>) {
        let shared = of_user(&event, user);
        (event, shared.0)
    }

    /// Waits until threads have done their work.
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

            // The two that wait have a reference; the others are forgotten with their connection.
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
    fn events_that_are_gone_take_no_place_in_a_queue() {
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
    fn another_descriptor_is_none() {
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
            // It blocks, as its owner can have it do.
            let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
            let semaphore = rustix::event::eventfd(0, flags).unwrap();
            assert!(is_one(&semaphore).unwrap());
            let shared = of_user(&semaphore, USER);
            (0..3).for_each(|_| shared.signal().unwrap());
            assert_eq!([(); 4].map(|()| drain(&semaphore).unwrap()), [1, 1, 1, 0]);
        });
    }
}
