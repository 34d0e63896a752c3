//! Ending a server from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_sys::event_fd;

use crate::error::{Error, Result};

/// Ends a server, from any thread, at once. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Stop(Arc<(AtomicBool, OwnedFd)>);

impl Stop {
    /// One that has not been used.
    ///
    /// # Errors
    /// [`Error::Kernel`] where descriptors are exhausted.
    pub fn new() -> Result<Self> {
        let event = event_fd::create().map_err(Error::kernel("making an event"))?;
        Ok(Self(Arc::new((AtomicBool::new(false), event))))
    }

    /// Ends what was given a clone of this.
    pub fn stop(&self) {
        self.0.0.store(true, Ordering::Release);
        // A counter that is full counts something, too.
        let _ = event_fd::signal(&self.0.1);
    }

    /// Returns `true` after [`Stop::stop`].
    pub fn is_stopped(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.1.as_fd()
    }
}
