//! A PCI device that a virtual machine drives: it copies and sums the machine's memory, as a
//! descriptor ring tells it to.
//!
//! ```text
//!   QEMU ── guest's driver ── BAR 0 ──► socket ──► CopyEngine ── doorbell ──► engine's thread
//!     └──── guest's memory ── fds ────► socket ──► SpaceDma ──► Space ◄── Session ──┘
//!                     ▲                                                             │
//!                     └── copies, completions, MSI-X ◄──────────────────────────────┘
//! ```
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`layout`] | what a driver must know: registers, descriptors, completions |
//! | `device` | configuration space and registers, called by the server |
//! | `engine` | the thread that takes descriptors from the ring |
//! | `work` | what one descriptor asks for |
//! | [`trace`] | counts, and a line for each thing that happens |

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

/// A server of the device, which keeps the client's memory in `space`.
///
/// # Errors
/// No thread or descriptor to be had.
pub fn server(space: Space, counts: &Counts) -> io::Result<Server<CopyEngine, Counted<SpaceDma>>> {
    let device = CopyEngine::new(space.clone(), counts.clone())?;
    Server::new(device, Counted::new(SpaceDma::new(space), counts.clone()))
}
