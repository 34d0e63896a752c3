//! Copies that return an error if their memory vanishes.
//!
//! Foreign memory can vanish during a copy: a file behind a mapping is truncated (SIGBUS), a guest
//! unmaps a page (SIGSEGV), or the memory hardware reports a poisoned page (SIGBUS). While a
//! [`FaultGuard`] lives, a copy of [`copy`](crate::copy) that faults stops at the exact byte and
//! returns the fault as an error. Without a guard, the signal kills the process as usual. A copy
//! that does not fault pays nothing for this: it runs the same code with or without a guard.
//!
//! # How it works
//!
//! It uses an exception table, as kernels do. Each copy that may fault is one block of assembly,
//! which adds an entry to a section of its own ([`fault_range!`](crate::fault_range)): the range in
//! which it may fault, and the address at which it then resumes. The signal handler looks up the
//! instruction pointer in the table, puts the address and the cause of the fault into two registers
//! that are outputs of the block, and changes the instruction pointer. Any other fault goes to the
//! handler that was installed before, or to the default action, as if this handler did not exist.
//!
//! # Other handlers
//!
//! A process has one handler of SIGSEGV and one of SIGBUS. The first guard installs ours, and they
//! stay: while no guard lives, they pass every signal on. They call the handler that was there
//! before with the signal mask and on the stack that it asked for, and only once if it has
//! `SA_RESETHAND`. So they work beside the stack-overflow handlers of Rust's standard library and
//! of Go, and beside Python's `faulthandler` (`tests/hosts.rs`).
//!
//! A handler that is installed later should call ours for signals that it does not handle, as is
//! usual. If it does not, copies do not survive faults until the next guard is installed:
//! [`FaultGuard::install`] then installs another handler of ours above it, which calls it for all
//! other signals. Handlers that call each other this way form no loop, and each is called. At most
//! four replaced handlers are remembered: the first three and the newest. A guard that replaces a
//! fifth different handler forgets the fourth, which is no longer called.
//!
//! A program that has its own handler does not need ours: it calls [`handle`] in its handler, and
//! [`never_install_handler`] before the first guard. If its handler then does not call [`handle`],
//! guards have no effect.
//!
//! The kernel calls no handler if the faulting thread has blocked the signal: copies in a thread
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

/// The reason why a copy stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultCause {
    /// The address is not mapped, or not for this kind of access (SIGSEGV).
    NotMapped,
    /// The address is mapped, but the file or device behind it has no page there, for example past
    /// the end of the file (SIGBUS).
    NotBacked,
    /// The content of the page is lost because the memory failed (SIGBUS with `BUS_MCEERR_AR`).
    Poisoned,
}

/// A fault that stopped a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address of the failed access, or the start of the poisoned page. It is zero if the
    /// processor does not report an address, for example for a non-canonical one.
    pub address: HostAddr,
    /// The cause of the fault.
    pub cause: FaultCause,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            FaultCause::NotMapped => "is not mapped for this access",
            FaultCause::NotBacked => "is mapped but not backed: the file was truncated",
            FaultCause::Poisoned => "is on a page whose memory failed",
        };
        write!(f, "memory at {:#x} {what}", self.address.raw())
    }
}

impl core::error::Error for Fault {}

/// The outcome of a block of assembly with a [`fault_range!`](crate::fault_range): the number of
/// bytes left undone, and the two registers that the handler wrote (a cause of zero means that it
/// did not).
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct RawOutcome {
    pub left_bytes: usize,
    pub address: usize,
    pub cause: usize,
}

impl RawOutcome {
    /// Returns `true` if no bytes are left.
    pub const fn is_complete(self) -> bool {
        self.cause == 0
    }

    /// Returns the fault, if there was one.
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
