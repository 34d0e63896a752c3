//! The guard under which copies survive faults.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{chain, count};

/// The handler that resumes copies: one of the three values below. It is decided once.
static HANDLER: AtomicU8 = AtomicU8::new(UNDECIDED);

const UNDECIDED: u8 = 0;
/// A guard has installed, or is about to install, the handler of this crate.
const OURS: u8 = 1;
/// [`never_install_handler`] was called before the first guard.
const OF_THE_PROGRAM: u8 = 2;

/// Decides for `handler` if it is undecided. Returns the decision.
fn decide(handler: u8) -> u8 {
    match HANDLER.compare_exchange(UNDECIDED, handler, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => handler,
        Err(earlier) => earlier,
    }
}

/// A guard under which this crate's copies survive faults, in every thread of the process.
#[derive(Debug)]
#[must_use = "copies survive faults only while the guard lives"]
pub struct FaultGuard(());

impl FaultGuard {
    /// Installs the handlers of SIGSEGV and SIGBUS if they are not installed, and counts this
    /// guard.
    ///
    /// They are never removed: without a guard, they only call the handlers that were there before.
    /// If another handler has replaced them since, they are installed again, above that one
    /// ([`fault`](crate::fault#other-handlers)). If [`never_install_handler`] took effect, this
    /// only counts the guard.
    ///
    /// It takes no lock, so a child process may call it after `fork(2)`, whatever the other threads
    /// of its parent did. It allocates only for a handler that it sees for the first time.
    /// # Errors
    /// The error of `sigaction(2)`. [`io::ErrorKind::Unsupported`] under Miri.
    pub fn install() -> io::Result<Self> {
        if cfg!(miri) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "Miri has no signals"));
        }
        if decide(OURS) == OURS {
            chain::install()?;
        }
        count::add();
        Ok(Self(()))
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        count::remove();
    }
}

/// Makes guards install no signal handler, because the program's own handler calls
/// [`handle`](super::handle). Returns `true` if this took effect.
///
/// Call it before the first guard is installed, for example first in `main`. `Region::map_file` of
/// `longshore-access` installs a guard, so call it before the first such region, too. If a guard
/// was installed before, its handler stays: the call then changes nothing and returns `false`.
/// Further calls return the same value as the first.
///
/// From then on, copies survive faults only if the program's handlers of SIGSEGV and SIGBUS call
/// [`handle`](super::handle). Guards do not check that. Without such a handler, a fault of a copy
/// kills the process, even while a guard lives.
#[must_use = "if this is false, guards have installed a handler already, and will again"]
pub fn never_install_handler() -> bool {
    decide(OF_THE_PROGRAM) == OF_THE_PROGRAM
}
