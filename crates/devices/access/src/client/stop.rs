//! Stopping a server from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_sys::event_fd;

/// A handle that stops a server or one of its threads from any other thread, also while it waits. Clones
/// share the same state.
///
/// When it is used, its descriptor becomes readable, for use with `poll(2)`.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    is_stopped: AtomicBool,
    /// Readable after `stop`.
    event: OwnedFd,
}

impl Stop {
    /// Makes a handle that has not been used.
    ///
    /// # Errors
    /// Those of `eventfd(2)`, if descriptors are exhausted for example.
    pub fn new() -> io::Result<Self> {
        let inner = Inner { is_stopped: AtomicBool::new(false), event: event_fd::create()? };
        Ok(Self(Arc::new(inner)))
    }

    /// Stops every server and thread that has a clone of this.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Release);
        // If the counter is full, the descriptor is readable already.
        let _ = event_fd::signal(&self.0.event);
    }

    /// Returns `true` if [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
