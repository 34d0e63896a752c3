//! Copies that survive memory that is not there.
//!
//! Foreign memory can vanish under a copy: a file behind a mapping is truncated (SIGBUS), a guest
//! unmaps a page (SIGSEGV), a memory module reports a poisoned page (SIGBUS). While a
//! [`FaultGuard`] lives, a copy that meets such a fault stops at the exact byte and says where;
//! without one the process dies as it always did. It costs nothing where nothing faults: the copy
//! is the same code with or without a guard.
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
//! The handler is the process's: installed with the first guard, removed with the last unless
//! somebody installed another one after it, which may call it. It runs on the alternative signal
//! stack where there is one, so it works beside the stack-overflow handlers of Rust's standard
//! library and of Go, and beside Python's `faulthandler`, if they were installed before
//! (`tests/hosts.rs`). A library that was loaded with `dlopen` must not be unloaded while its
//! handler may still be called.

#[cfg(feature = "std")]
mod guard;
#[cfg(feature = "std")]
mod handler;
#[cfg(feature = "std")]
mod lookup;
mod table;

use core::fmt;

#[cfg(feature = "std")]
pub use guard::FaultGuard;

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
