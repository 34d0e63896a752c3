//! `eventfd(2)`: a counter that one side adds to and the other polls.
//!
//! An eventfd whose descriptor another process has, too, may block whichever mode it was given: that
//! process can clear `O_NONBLOCK` and fill the counter at any moment, also between two system calls
//! of this one, and a `write(2)` waits then until it reads. [`SharedEvent`] signals such an eventfd
//! without ever waiting, and [`drain`] does not wait either.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use crate::aio;

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
/// one by its name in `/proc/self/fd`, can be read (`O_PATH` cannot), and is no semaphore.
///
/// Before Linux 6.5 the kernel does not report semaphores, and they pass for the others.
///
/// # Errors
/// Those of reading `/proc/self/fd` and `/proc/self/fdinfo`, and of `fcntl(2)`.
pub fn is_one(descriptor: impl AsFd) -> io::Result<bool> {
    let descriptor = descriptor.as_fd();
    let number = descriptor.as_raw_fd();
    if !is_any(descriptor)? || rustix::fs::fcntl_getfl(descriptor)?.contains(OFlags::PATH) {
        return Ok(false);
    }
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let semaphore = info.lines().find_map(|line| line.strip_prefix("eventfd-semaphore:"));
    Ok(semaphore.is_none_or(|is_one| is_one.trim() == "0"))
}

/// Returns `true` for an eventfd of any kind, by its name in `/proc/self/fd`.
///
/// # Errors
/// Those of reading `/proc/self/fd`.
pub fn is_any(descriptor: impl AsFd) -> io::Result<bool> {
    let number = descriptor.as_fd().as_raw_fd();
    let name = rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new())?;
    Ok(name.to_bytes() == b"anon_inode:[eventfd]")
}

/// An eventfd that an untrusted process shares, to be signalled without waiting. Clones are the same
/// one.
///
/// The kernel signals it as the completion of an operation (`io_submit(2)`), which adds one whatever
/// mode the eventfd is in and however full it is. Where a process has no AIO, a thread writes, which
/// harms nothing but this eventfd's signals if it has to wait. If it still waits when the last clone is
/// dropped, another thread reads the counter for a second at most, so that it ends; the thread that
/// drops does not wait.
#[derive(Clone, Debug)]
pub struct SharedEvent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    event: Arc<OwnedFd>,
    /// How many signals a thread has still to write. It ends when there are none.
    owed: Arc<AtomicU64>,
}

impl SharedEvent {
    /// Takes `event`, for which [`is_one`] was true.
    pub fn new(event: OwnedFd) -> Self {
        Self(Arc::new(Shared { event: Arc::new(event), owed: Arc::default() }))
    }

    /// Adds one to the counter. If it is at its end, nothing is added.
    ///
    /// # Errors
    /// Those of starting a thread, where this process has no AIO.
    pub fn signal(&self) -> io::Result<()> {
        let shared = &*self.0;
        // A thread that writes keeps the order.
        if shared.owed.load(Ordering::Acquire) == 0 && aio::signal(&shared.event).is_ok() {
            return Ok(());
        }
        self.signal_by_thread()
    }

    fn signal_by_thread(&self) -> io::Result<()> {
        let Shared { event, owed } = &*self.0;
        if owed.fetch_add(1, Ordering::AcqRel) > 0 {
            return Ok(());
        }
        let (event, owes) = (Arc::clone(event), Arc::clone(owed));
        let thread = thread::Builder::new().name("eventfd".to_owned());
        let started = thread.spawn(move || {
            let mut count = owes.load(Ordering::Acquire);
            while count > 0 {
                // It may be full, and its other end may be gone.
                let _ = crate::retry_interrupted(|| {
                    Ok(rustix::io::write(&event, &count.to_ne_bytes())?)
                });
                count = owes.fetch_sub(count, Ordering::AcqRel) - count;
            }
        });
        started.map(drop).inspect_err(|_| owed.store(0, Ordering::Release))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.owed.load(Ordering::Acquire) == 0 {
            return;
        }
        // Without a thread, the one that writes waits until another process reads.
        let (event, owed) = (Arc::clone(&self.event), Arc::clone(&self.owed));
        let thread = thread::Builder::new().name("eventfd".to_owned());
        let _ = thread.spawn(move || make_room(&event, &owed));
    }
}

/// Reads the counter until the thread that writes to it is through, or for a second. Another process
/// may fill it again, but cannot win each time.
fn make_room(event: &OwnedFd, owed: &AtomicU64) {
    for _ in 0..1000 {
        // Only a thread that has not written after this time waits for room.
        thread::sleep(Duration::from_millis(1));
        if owed.load(Ordering::Acquire) == 0 {
            break;
        }
        let _ = drain(event);
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_full_counter_that_blocks_is_signalled_and_drained_without_waiting() {
        in_time(|| {
            let event = full();
            let shared = SharedEvent::new(event.try_clone().unwrap());
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
            let shared = SharedEvent::new(event.try_clone().unwrap());
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..5_000).for_each(|_| shared.signal().unwrap()));
                }
            });
            drop(shared);
            assert_eq!(drain(&event).unwrap(), 20_000);
        });
    }

    #[test]
    fn without_aio_a_thread_waits_and_ends_with_the_event() {
        in_time(|| {
            let event = full();
            let shared = SharedEvent::new(event.try_clone().unwrap());
            let owed = Arc::clone(&shared.0.owed);
            for _ in 0..3 {
                shared.signal_by_thread().unwrap();
            }
            assert!(owed.load(Ordering::Acquire) > 0, "it waits for room");
            drop(shared);
            while owed.load(Ordering::Acquire) > 0 {
                thread::yield_now();
            }

            let event = create().unwrap();
            let shared = SharedEvent::new(event.try_clone().unwrap());
            shared.signal_by_thread().unwrap();
            let mut count = 0;
            while count == 0 {
                count = drain(&event).unwrap();
            }
            assert_eq!(count, 1);
        });
    }

    #[test]
    fn dropping_does_not_wait_for_a_thread_that_waits() {
        in_time(|| {
            for _ in 0..30 {
                // A read takes one of a semaphore's counter, so its owner seems to fill it again.
                let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
                let event = rustix::event::eventfd(0, flags).unwrap();
                fill(&event);
                let shared = SharedEvent::new(event);
                (0..5_000).for_each(|_| shared.signal_by_thread().unwrap());
                let owed = Arc::clone(&shared.0.owed);
                drop(shared);
                assert!(owed.load(Ordering::Acquire) > 0, "it still waits for room");
            }
        });
    }

    #[test]
    fn another_descriptor_is_none() {
        let semaphore = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        let semaphore = rustix::event::eventfd(0, semaphore).unwrap();
        let info =
            fs::read_to_string(format!("/proc/self/fdinfo/{}", semaphore.as_raw_fd())).unwrap();
        if info.contains("eventfd-semaphore") {
            assert!(!is_one(&semaphore).unwrap());
        } else {
            println!("SKIPPED: this kernel does not report semaphores");
        }
        let path = format!("/proc/self/fd/{}", semaphore.as_raw_fd());
        let path = rustix::fs::open(path, OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        assert!(!is_one(path).unwrap());
        assert!(is_one(create().unwrap()).unwrap());
        let memfd = crate::memfd::create("event-test", crate::memfd::Backing::Shmem).unwrap();
        assert!(!is_one(memfd).unwrap());
    }
}
