//! The progress and the cancellation of a load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of bytes that are in the buffer.
    pub done_bytes: u64,
    /// The number of bytes of the whole load.
    pub total_bytes: u64,
    /// The time since the load began.
    pub elapsed: Duration,
}

impl Progress {
    /// Makes the progress of a load that has `done_bytes` of `total_bytes` after `elapsed`.
    pub const fn new(done_bytes: u64, total_bytes: u64, elapsed: Duration) -> Self {
        Self { done_bytes, total_bytes, elapsed }
    }
}

/// A token that cancels loads from any thread or from a signal handler. The load waits for the reads in
/// flight and begins no others. If a disk or file system does not answer a read, the load does not
/// return. But it takes no more memory, and other loads of the process can use the memory that it has
/// not taken.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a token from a flag that other code sets.
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Cancels every load that has this token.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
