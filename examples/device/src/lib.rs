//! A PCI device for a virtual machine: it copies the machine's memory and computes checksums of it, by
//! descriptors in a ring.
//!
//! ```text
//!   QEMU ── guest's driver ── BAR 0 ──► socket ──► CopyEngine ── doorbell ──► engine's thread
//!     └──── guest's memory ── fds ────► socket ──► SpaceDma ──► Space ◄── Session ──┘
//!                     ▲                                                             │
//!                     └── copies, completions, MSI-X ◄──────────────────────────────┘
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`layout`] | the interface for drivers: registers, descriptors, completions |
//! | `device` | configuration space and registers, called by the server |
//! | `engine` | the thread that takes descriptors from the ring |
//! | `work` | the execution of one descriptor |
//! | [`trace`] | counters of events, and a line of output for each |

#![forbid(unsafe_code)]

mod device;
mod engine;
pub mod layout;
pub mod trace;
mod work;

use std::io;

use longshore::access::Space;
use longshore::vfio_user::{Server, SpaceDma};

pub use device::CopyEngine;
use trace::{Counted, Counts};

/// Returns a server of the device, which maps the client's memory in `space`.
///
/// # Errors
/// The error of the kernel if a thread cannot be started, or no file descriptor is left.
pub fn server(space: Space, counts: &Counts) -> io::Result<Server<CopyEngine, Counted<SpaceDma>>> {
    let device = CopyEngine::new(space.clone(), counts.clone())?;
    Server::new(device, Counted::new(SpaceDma::new(space), counts.clone()))
}
