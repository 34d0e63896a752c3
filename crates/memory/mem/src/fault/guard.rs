//! How long copies survive faults.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{chain, count};

/// Which handler resumes copies: one of the three below. It is decided once.
static HANDLER: AtomicU8 = AtomicU8::new(UNDECIDED);

const UNDECIDED: u8 = 0;
/// A guard has installed, or is about to install, the handler of this crate.
const OURS: u8 = 1;
/// [`never_install_handler`] came first.
const OF_THE_PROGRAM: u8 = 2;

/// Decides for `handler` if nothing is decided. Returns the decision.
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
    /// Installs the handlers of SIGSEGV and SIGBUS if they are not there, and counts this guard.
    ///
    /// They are never removed: without a guard they only call the handlers that were there before.
    /// If another handler has replaced them since, they are installed again, above that one
    /// ([`fault`](crate::fault#other-handlers)). If [`never_install_handler`] took effect, this only
    /// counts the guard.
    ///
    /// A child process may call this after `fork(2)`, whatever other threads of its parent did: there
    /// is no lock. It allocates only for a handler that it sees for the first time.
    ///
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
/// [`handle`](super::handle). Returns whether it took effect.
///
/// Call it before the first guard is installed, for example first in `main`. `Region::map_file` of
/// `longshore-access` installs a guard, so this includes the first such region. If a guard was installed before, its handler stays: the call then changes nothing and
/// returns `false`. Further calls return the same as the first.
///
/// From then on copies survive faults only if the program's handlers of SIGSEGV and SIGBUS call
/// [`handle`](super::handle). Guards do not check that. Without such a handler the fault of a copy
/// ends the process, also while a guard lives.
#[must_use = "if this is false, guards have installed a handler already, and will again"]
pub fn never_install_handler() -> bool {
    decide(OF_THE_PROGRAM) == OF_THE_PROGRAM
}
