//! Ending a server from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_sys::event_fd;

/// Ends a server or one of its threads, from any other thread, also while it waits. Clones are the same
/// one.
///
/// Its descriptor becomes readable then, for those who wait with `poll(2)`.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    is_stopped: AtomicBool,
    /// Readable from then on.
    event: OwnedFd,
}

impl Stop {
    /// Makes one that has not been used.
    ///
    /// # Errors
    /// Descriptors exhausted.
    pub fn new() -> io::Result<Self> {
        let inner = Inner { is_stopped: AtomicBool::new(false), event: event_fd::create()? };
        Ok(Self(Arc::new(inner)))
    }

    /// Ends what was given a clone of this.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Release);
        // A counter that is full is readable, too.
        let _ = event_fd::signal(&self.0.event);
    }

    /// Returns whether [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
