//! Copies that survive memory that is not there.
//!
//! Memory of others can vanish during a copy: a file behind a mapping is truncated (SIGBUS), a guest
//! unmaps a page (SIGSEGV), a memory module reports a poisoned page (SIGBUS). While a
//! [`FaultGuard`] lives, a copy of [`copy`](crate::copy) that meets such a fault stops at the exact byte and returns it as an
//! error; without a guard the signal ends the process as usual. It costs nothing where nothing
//! faults: the copy is the same code with or without a guard.
//!
//! # How
//!
//! As a kernel does it, with an exception table. Each copy that may fault is one block of assembly,
//! which leaves an entry in a section of its own ([`fault_range!`](crate::fault_range)): from
//! where to where it may fault, and where to go on then. The signal handler looks the instruction
//! pointer up in the table, puts the fault's address and cause into two registers that the block
//! names as outputs, and moves the instruction pointer. Any other fault goes to the handler that
//! was installed before, or to the default action, as if this one were not there.
//!
//! # Other handlers
//!
//! The handlers of SIGSEGV and SIGBUS are the process's. The first guard installs them, and they
//! stay: while no guard lives they pass every signal on. They call the handler that was there before
//! with the signal mask, and on the stack, that it asked for, and once only if it has
//! `SA_RESETHAND`. So they work beside the stack-overflow handlers of Rust's standard library and of
//! Go, and beside Python's `faulthandler` (`tests/hosts.rs`).
//!
//! A handler that is installed later should call ours for signals that it does not handle, as
//! handlers do. If it does not, copies do not survive faults until the next guard is installed:
//! [`FaultGuard::install`] then installs a handler of ours above it, which calls it for all other
//! signals. Handlers that call each other this way form no loop, and each is called. At most four
//! replaced handlers are remembered: the first three and the newest. A guard that replaces a fifth
//! different handler forgets the fourth, which is no longer called.
//!
//! A program with a handler of its own can do without ours: it calls [`handle`] in its handler, and
//! [`never_install_handler`] before the first guard. Without a handler that calls [`handle`], guards
//! have no effect then.
//!
//! The kernel calls no handler for a fault of a thread that has blocked the signal: copies in a thread
//! with SIGBUS or SIGSEGV in its signal mask do not survive faults.
//!
//! A library that was loaded with `dlopen` must not be unloaded after its first guard.

#[cfg(feature = "std")]
mod chain;
#[cfg(feature = "std")]
mod count;
#[cfg(feature = "std")]
mod guard;
#[cfg(feature = "std")]
mod handler;
#[cfg(feature = "std")]
mod lookup;
mod table;

use core::fmt;

#[cfg(feature = "std")]
pub use guard::{FaultGuard, never_install_handler};
#[cfg(feature = "std")]
pub use handler::handle;

use crate::HostAddr;

/// Why a copy could not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultCause {
    /// Nothing is mapped there, or it may not be accessed in this way (SIGSEGV).
    NotMapped,
    /// It is mapped, but the file or device behind it gave no page, as past a file's end (SIGBUS).
    NotBacked,
    /// The page's content is lost: the memory itself failed (SIGBUS with `BUS_MCEERR_AR`).
    Poisoned,
}

/// A fault that a copy met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address the processor could not access, or the start of the page that is poisoned. Zero
    /// where the processor does not tell, as for an address that is none.
    pub address: HostAddr,
    /// What was wrong with it.
    pub cause: FaultCause,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            FaultCause::NotMapped => "is not mapped for this access",
            FaultCause::NotBacked => "has nothing behind it: the file was truncated",
            FaultCause::Poisoned => "is on a page whose memory failed",
        };
        write!(f, "memory at {:#x} {what}", self.address.raw())
    }
}

impl core::error::Error for Fault {}

/// What a block of assembly with a [`fault_range!`](crate::fault_range) reports: how many bytes it
/// left undone, and the two registers that the handler wrote (zero if it did not).
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct RawOutcome {
    pub left_bytes: usize,
    pub address: usize,
    pub cause: usize,
}

impl RawOutcome {
    /// Whether all was done.
    pub const fn is_complete(self) -> bool {
        self.cause == 0
    }

    /// The fault, if one was met.
    pub fn fault(self) -> Option<Fault> {
        let cause = match self.cause {
            0 => return None,
            table::NOT_BACKED => FaultCause::NotBacked,
            table::POISONED => FaultCause::Poisoned,
            _ => FaultCause::NotMapped,
        };
        Some(Fault { address: HostAddr::new(self.address as u64), cause })
    }
}
