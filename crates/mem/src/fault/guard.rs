//! How long faults are survived.

use std::io;

use super::handler;

/// While one lives, this crate's copies survive faults, in every thread of the process.
#[derive(Debug)]
#[must_use = "faults are survived only while the guard lives"]
pub struct FaultGuard(());

impl FaultGuard {
    /// Installs the handler, unless another guard has.
    ///
    /// # Errors
    /// What `sigaction(2)` says; nothing is installed then. [`io::ErrorKind::Unsupported`] under
    /// Miri.
    pub fn install() -> io::Result<Self> {
        handler::acquire()?;
        Ok(Self(()))
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        handler::release();
    }
}
