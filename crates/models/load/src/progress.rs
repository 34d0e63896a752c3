//! How far a load has come, and how to stop it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes that are in the buffer.
    pub done_bytes: u64,
    /// Bytes there are to be.
    pub total_bytes: u64,
    /// Time since the load began.
    pub elapsed: Duration,
}

impl Progress {
    /// Makes the progress of a load that has `done_bytes` of `total_bytes` after `elapsed`.
    pub const fn new(done_bytes: u64, total_bytes: u64, elapsed: Duration) -> Self {
        Self { done_bytes, total_bytes, elapsed }
    }
}

/// Stops a load from any thread, or from a signal handler: the reads in flight are waited for, the
/// rest is not begun. If a disk or a file system does not answer a read, the load does not return, but
/// it takes no more memory, and other loads of the process can have what it had not taken.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that has not been used.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token around a flag that someone else sets.
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Asks every load that has this token to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`CancelToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
