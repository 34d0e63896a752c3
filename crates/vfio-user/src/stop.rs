//! Ending a server from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_sys::event_fd;

/// Ends a server, from any thread, and at once where it waits. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    is_stopped: AtomicBool,
    /// Counts something from then on.
    event: OwnedFd,
}

impl Stop {
    /// One that has not been used.
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
        // A counter that is full counts something, too.
        let _ = event_fd::signal(&self.0.event);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
