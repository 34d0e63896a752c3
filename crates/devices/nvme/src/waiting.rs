//! Polling for a command to end.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::CommandInfo;
use crate::error::Error;

/// The number of polls after which the clock is read and other threads may run.
const SPINS: u32 = 1024;
/// The interval between two reads of CSTS, which is far slower than memory.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A poll loop, which sometimes reads the clock and checks the controller.
pub(crate) struct Waiting {
    timeout: Duration,
    spins: u32,
    started: Option<Instant>,
    checked: Duration,
}

impl Waiting {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, spins: 0, started: None, checked: Duration::ZERO }
    }

    /// Waits a moment. `in_flight` returns a command that has not ended, and `check` returns an error if
    /// the controller does not work any more.
    #[inline]
    pub(crate) fn spin(
        &mut self,
        in_flight: impl FnOnce() -> Option<CommandInfo>,
        check: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.spins += 1;
        if self.spins < SPINS {
            hint::spin_loop();
            return Ok(());
        }
        self.spins = 0;
        let command = in_flight().ok_or(Error::Idle)?;
        let Some(started) = self.started else {
            self.started = Some(Instant::now());
            return Ok(());
        };
        let waited = started.elapsed();
        if waited >= self.checked + CHECK_INTERVAL {
            self.checked = waited;
            check()?;
        }
        if waited > self.timeout {
            return Err(Error::TimedOut { command, waited: self.timeout });
        }
        thread::yield_now();
        Ok(())
    }
}
