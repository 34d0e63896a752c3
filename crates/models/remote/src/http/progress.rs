//! The least speed of a transfer.

use std::io::{self, ErrorKind};
use std::time::Instant;

use super::connection::Limits;

/// The number of bytes that a connection must bring in each [`Limits::idle_timeout`], so that a server that
/// sends a byte now and then does not hold a load for ever.
pub(super) const PROGRESS_BYTES: usize = 256 << 10;

/// The progress of a transfer.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Instant,
    bytes: usize,
}

impl Progress {
    /// Begins a transfer after `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { since: Instant::now(), bytes }
    }

    /// Checks that the transfer is fast enough, with `bytes` by now.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`], and those of [`Limits::check`].
    pub(crate) fn check(&mut self, bytes: usize, limits: &Limits<'_>) -> io::Result<()> {
        limits.check()?;
        if self.since.elapsed() >= limits.idle_timeout {
            if bytes - self.bytes < PROGRESS_BYTES {
                return Err(ErrorKind::TimedOut.into());
            }
            *self = Self::new(bytes);
        }
        Ok(())
    }
}
