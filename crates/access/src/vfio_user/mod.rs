//! A server for devices that a virtual machine monitor in another process drives: the vfio-user
//! protocol over a Unix socket.
//!
//! ```text
//!    QEMU, or vfio_user::client            this process
//!    ──────────────────────────            ────────────────────────────────────────────────
//!    guest's driver ── registers ──► socket ──► Server ──► Device        region_read, reset, …
//!    guest's memory ── DmaMap, fd ─► socket ──► Server ──► DmaTarget     map, unmap, dirty log
//!                   ◄─ DmaRead ───── socket ◄── Link ◄──── a thread of the device
//!    guest's CPU    ◄─────────────── eventfd ◄─ Interrupts
//! ```
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`wire`] | messages, as bytes |
//! | [`negotiation`] | the version, and how much either end takes at once |
//! | [`device`], [`pci`] | what a device must say and do; configuration spaces |
//! | [`dma`], [`space_dma`] | what must be done when the client's memory comes and goes; a [`Space`](crate::Space) that does it |
//! | [`responder`] | the protocol without a socket |
//! | [`server`], [`link`] | the socket |
//! | [`interrupts`], [`migration`] | eventfds; moving a device |
//! | [`client`] | the other end, for tests and tools |
//!
//! # What a hostile client can do
//!
//! It is told what is wrong with a message, and the server goes on; where the bytes cannot be told
//! apart any more, the connection ends and the next client is served. What a message claims is
//! checked before anything is looked up or allocated by it: the server holds at most one message, and
//! those that came while a device waited for an answer, at most twice the longest one in all.
//! Descriptors that a message brought and nobody needs are closed with it.
//!
//! A client that does not answer, or does not take what it is sent, is waited for as long as
//! [`Server::reply_timeout`] says. One that dies leaves nothing mapped. It can shorten a file that
//! it gave for memory: what maps the file must be prepared for that. An eventfd whose other end
//! takes away its mode of not blocking at the very moment it is signalled, and has filled it, lets
//! the thread that signals it wait.
//!
//! # Which versions
//!
//! Major version 0. QEMU 11 speaks 0.0. Not spoken: the second socket for the server's
//! commands ("twin socket"), descriptors for a region's accesses, eventfds that tell of masking.

pub mod client;
pub mod device;
pub mod dma;
mod features;
pub mod interrupts;
pub mod link;
pub mod migration;
pub mod negotiation;
pub mod pci;
mod receiver;
mod refusal;
pub mod responder;
pub mod server;
pub mod space_dma;
mod stop;
pub mod wire;

pub use device::{Description, Device, Irqs, Mappable, Region};
pub use dma::{Backing, DirtyLog, DmaMap, DmaTarget};
pub use interrupts::Interrupts;
pub use link::{AccessFailed, AccessFailure, Ended, Link};
pub use migration::{Migration, MigrationFailed, MigrationState};
pub use negotiation::Limits;
pub use refusal::Refusal;
pub use responder::Responder;
pub use server::{Listener, Served, Server};
pub use space_dma::SpaceDma;
pub use stop::Stop;
