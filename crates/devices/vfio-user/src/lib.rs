//! A server for devices that a virtual machine monitor in another process drives: the vfio-user
//! protocol over a Unix socket.
//!
//! ```text
//!    QEMU, or client::Client               this process
//!    ──────────────────────────            ────────────────────────────────────────────────
//!    guest's driver ── registers ──► socket ──► Server ──► Device        region_read, reset, …
//!    guest's memory ── DmaMap, fd ─► socket ──► Server ──► DmaTarget     map, unmap, dirty log
//!                   ◄─ DmaRead ───── socket ◄── Link ◄──── a thread of the device
//!    guest's CPU    ◄─────────────── eventfd ◄─ Interrupts
//! ```
//!
//! ```
//! use std::os::unix::net::UnixStream;
//!
//! use longshore_access::Space;
//! use longshore_vfio_user::client::{Client, NoDmaMemory};
//! use longshore_vfio_user::pci::{Bar, CONFIG_REGION, ConfigSpace};
//! use longshore_vfio_user::{DeviceDescription, Device, Errno, Server, SpaceDma};
//! use longshore_mem::Iova;
//! use longshore_sys::memfd;
//!
//! /// A device that writes a word to the address in its one register.
//! struct Writer {
//!     config: ConfigSpace,
//!     space: Space,
//!     register: [u8; 16],
//! }
//!
//! impl Device for Writer {
//!     fn description(&self) -> DeviceDescription {
//!         self.config.description()
//!     }
//!
//!     fn region_read(&mut self, region: u32, at: u64, into: &mut [u8]) -> Result<(), Errno> {
//!         if region == CONFIG_REGION {
//!             return self.config.read(at, into);
//!         }
//!         into.copy_from_slice(&self.register[at as usize..][..into.len()]);
//!         Ok(())
//!     }
//!
//!     fn region_write(&mut self, region: u32, at: u64, from: &[u8]) -> Result<(), Errno> {
//!         if region == CONFIG_REGION {
//!             return self.config.write(at, from);
//!         }
//!         self.register[at as usize..][..from.len()].copy_from_slice(from);
//!         let target = Iova::new(u64::from_le_bytes(*self.register.first_chunk().unwrap()));
//!         self.space.session().write(target, b"word").map_err(|_| Errno::EFAULT)
//!     }
//!
//!     fn reset(&mut self) {
//!         self.config.reset();
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let space = Space::new()?;
//! let config = ConfigSpace::new(0x1234, 0x5678).bar(0, Bar::memory32(16));
//! let device = Writer { config, space: space.clone(), register: [0; 16] };
//! let mut server = Server::new(device, SpaceDma::new(space))?;
//! let (ours, theirs) = UnixStream::pair()?; // QEMU wants a `Listener`
//! let server = std::thread::spawn(move || server.serve(theirs));
//!
//! let memory = memfd::create("guest", memfd::Backing::Shmem)?;
//! memfd::set_len(&memory, 1 << 20)?;
//! let mut client = Client::from_stream(ours, NoDmaMemory)?;
//! client.dma_map(0x10_0000, 1 << 20, Some((std::os::fd::AsFd::as_fd(&memory), 0)), true)?;
//! client.region_write(0, 0, &0x10_0040_u64.to_le_bytes())?;
//! let mut word = [0; 4];
//! std::os::unix::fs::FileExt::read_at(&std::fs::File::from(memory), &mut word, 0x40)?;
//! assert_eq!(&word, b"word");
//! assert!(client.region_write(0, 0, &[0; 8]).is_err()); // nothing is mapped there
//! drop(client);
//! assert_eq!(server.join().unwrap()?.refused_count, 1);
//! # Ok(())
//! # }
//! ```
//!
//! | item | purpose |
//! | --- | --- |
//! | [`Device`], [`pci`] | the trait that a device implements; configuration spaces |
//! | [`DmaTarget`], [`SpaceDma`] | the trait that is called when the client maps and unmaps memory; its implementation in a [`Space`](longshore_access::Space) |
//! | [`Server`], [`Link`] | the socket; [`Listener`] and [`Stop`] are those of `longshore-access` |
//! | [`Responder`] | the protocol without a socket |
//! | [`Interrupts`], [`Migration`] | eventfds; moving a device's state to another process |
//! | `client`, `wire` | with feature `client`: a client, and messages as bytes, for tests and tools |
//!
//! # What a hostile client can do
//!
//! A wrong message is answered with an error, and the server goes on. If the boundaries of messages are
//! lost, the connection ends, and the next client is served. All numbers in a message are checked before
//! they are used for a lookup or an allocation. The server holds at most one message, and those that
//! arrived while a device waited for a reply: at most twice the longest message in all. Descriptors of a
//! message that are not needed are closed with it.
//!
//! If a client does not answer, or does not receive, the server waits for [`Server::reply_timeout`],
//! which limits all messages of an access together. When a client dies, all its memory is unmapped. A
//! client can shorten a file that it gave as memory, and code that maps the file must be prepared for
//! that.
//!
//! [`SpaceDma`] limits the resources of this process that a client can use: 64 MiB of page tables
//! ([`CLIENT_TABLE_BYTES_MAX`](longshore_access::CLIENT_TABLE_BYTES_MAX)), which are freed as it unmaps,
//! and the number of files and addresses ([`MAPPED_FILES_MAX`], [`MAPPED_BYTES_MAX`]). A map takes a few
//! tables for its two ends and one for each 512 GiB, at any address, and the time to fill these. Memory
//! must lie inside the file that it is mapped from.
//!
//! Memory of the device that a client maps ([`Device::mappable`]) belongs to that client alone: the next
//! client gets other memory.
//!
//! A client may fill its eventfds and clear `O_NONBLOCK` on them. [`Interrupts::raise`] does not block
//! then.
//!
//! A client can delay all other clients of the process: while it holds a lock of its own file in the
//! kernel, no thread of this process can map or unmap memory, and the process cannot exit. So serve
//! users who do not trust each other from a process each ([`Listener::serve_each`]).
//!
//! # Protocol versions
//!
//! Major version 0. QEMU 11 uses 0.0. Not supported: the second socket for the server's commands ("twin
//! socket"), descriptors for the accesses to a region, and eventfds that report masking.

// With loom, `tests/loom_mailbox.rs` includes `mailbox.rs` alone.
#![cfg(not(loom))]

#[cfg(feature = "client")]
pub mod client;
mod description;
mod device;
mod dma;
mod errno;
mod features;
mod interrupts;
mod link;
mod mailbox;
mod mappable;
mod migration;
mod negotiation;
pub mod pci;
mod receiver;
mod responder;
mod server;
mod space_dma;
mod space_log;
#[cfg(feature = "client")]
pub mod wire;
#[cfg(not(feature = "client"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "public with feature `client`")]
mod wire;

pub use {
    description::{DeviceDescription, IrqDescription, RegionDescription},
    device::Device,
    dma::{DirtyLog, DmaBacking, DmaMapping, DmaTarget},
    errno::Errno,
    interrupts::Interrupts,
    link::{DisconnectReason, DmaError, DmaErrorKind, Link, REPLY_TIMEOUT_DEFAULT},
    longshore_access::client::{Listener, Stop},
    mappable::MappableFile,
    migration::{Migration, MigrationError, MigrationState},
    negotiation::Capabilities,
    receiver::ReceivedFds,
    responder::{RefusedMessage, ReplyMessage, Responder},
    server::{ConnectionSummary, Server},
    space_dma::{MAPPED_BYTES_MAX, MAPPED_FILES_MAX, SpaceDma},
    wire::{header::MessageHeader, reply::MappableArea},
};
