//! The protocol between host and guest.
//!
//! The host sends a [`Plan`] in the initramfs. The guest answers with [`Event`]s, one line each, on its
//! second serial port, where no kernel message can land in the middle of a line:
//!
//! ```text
//!            host                                      guest
//!   Plan ──► /plan.json in the initramfs ─────────────► init
//!   Event ◄─ QEMU's stdout ◄─ ttyS1 ◄── "@longshore {"n":7,"event":"end",...}\n"
//!   log file ◄─────────────── ttyS0 ◄── kernel messages, and the standard error of init
//! ```
//!
//! Events are numbered, so that a lost one is detected.

mod event;
mod plan;
mod task;

pub use event::{DecodeError, Event, Exit, MAX_TEXT_BYTES, Outcome, Stream, decode, encode};
pub use plan::{DiskPlan, MountPlan, PLAN_PATH, Plan};
pub use task::{DEFAULT_TIMEOUT, Task, Work};
