//! A vhost-user back-end: a server for virtio devices whose front-end is in another process. It supports
//! a virtual IOMMU and live migration.
//!
//! A device implements [`Device`], and serves the rings of its [`Queue`]s. [`Server`] runs the protocol.
//! [`SpaceMemory`] alone is for back-ends with a server of their own: it keeps the front-end's memory
//! table, IOTLB and dirty log in a [`Space`](longshore_access::Space). The crates of rust-vmm have no
//! IOTLB messages.
//!
//! ```text
//!   front-end (QEMU)                          back-end (this process)
//!   ────────────────                          ───────────────────────────────────────────────
//!   SET_MEM_TABLE, descriptors ──► socket ──► SpaceMemory::set_table ──► Regions, attached
//!   IOTLB_MSG: update, invalidate ──────────► iotlb_update, _invalidate ──► Space ◄── Session of
//!   IOTLB_MSG: miss ◄────────────── socket ◄── Fault { Unmapped } ◄────────────────── each ring
//!   SET_LOG_BASE, LOG_ALL ────────► socket ──► set_log, log_writes ──► ExternalLog
//! ```
//!
//! The protocol has four address spaces, which are four types here:
//!
//! | address space | type | where it occurs |
//! | --- | --- | --- |
//! | the front-end's process | [`UserAddr`] | the memory table, rings without an IOMMU, IOTLB updates |
//! | guest-physical memory | [`GuestPhys`](longshore_mem::GuestPhys) | the memory table, the dirty log |
//! | the device's addresses | [`Iova`](longshore_mem::Iova) | descriptors; rings with an IOMMU |
//! | a descriptor's file | [`FileOffset`](longshore_mem::FileOffset) | the memory table, the beginning of the log |
//!
//! Without an IOMMU the device uses guest-physical addresses, so the table is mapped one to one. With
//! one (`VIRTIO_F_ACCESS_PLATFORM`) only the front-end's translations are mapped. If a session finds no
//! translation, it faults with [`Reason::Unmapped`](longshore_access::Reason::Unmapped), and the
//! back-end sends a miss to the front-end and tries again. An invalidation returns when no session can
//! access the memory any more; acknowledge it only then.
//!
//! This crate has no virtqueue processing and no devices: `examples/vhost` serves a disk. Source: QEMU's
//! `docs/interop/vhost-user.rst`.
//!
//! ```
//! use longshore_vhost_user::{SpaceMemory, TableRegion, Translation, UserAddr};
//! use longshore_access::{Reason, Space};
//! use longshore_mem::{FileOffset, GuestPhys, Iova};
//! use longshore_pagetable::Prot;
//! use longshore_sys::memfd;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = memfd::create("guest", memfd::Backing::Shmem)?;
//! memfd::set_len(&file, 1 << 20)?;
//! let mut memory = SpaceMemory::new(Space::new()?);
//! memory.set_translation(Translation::Iotlb)?;
//! let user = UserAddr::new(0x7f00_0000_0000);
//! memory.set_table(&[TableRegion {
//!     guest_phys: GuestPhys::new(0),
//!     len_bytes: 1 << 20,
//!     user,
//!     file: std::os::fd::AsFd::as_fd(&file),
//!     offset: FileOffset::new(0),
//! }])?;
//!
//! let session = memory.space().session();
//! let at = Iova::new(0xffff_f000);
//! let miss = session.read_obj::<u32>(at).unwrap_err();
//! assert_eq!(miss.reason, Reason::Unmapped); // tell the front-end, which answers:
//! memory.iotlb_update(at, 0x1000, user, Prot::READ)?;
//! assert_eq!(session.read_obj::<u32>(at)?, 0);
//! memory.iotlb_invalidate(at, 0x1000)?; // acknowledge now
//! # Ok(())
//! # }
//! ```
//!
//! # What a hostile front-end can do
//!
//! All numbers of a message are checked before anything changes, and a message with an error is refused
//! as a whole ([`MemoryError`]). A front-end can have at most [`REGIONS_MAX`] regions and
//! [`IOTLB_ENTRIES_MAX`] translations at a time, [`TABLE_BYTES_MAX`] of regions in all, each inside its
//! file, and page tables of 64 MiB
//! ([`CLIENT_TABLE_BYTES_MAX`](longshore_access::CLIENT_TABLE_BYTES_MAX)). A region or a translation
//! takes a few tables for its two ends and one for each 512 GiB, at any address, and the time to fill
//! these. The front-ends of one user together can have a quarter of the mappings (`vm.max_map_count`)
//! and addresses of this process, and those of all users a half ([`SpaceMemory::with_uid`]).
//!
//! The front-end can shorten the files of its memory and its log. Accesses then fault
//! ([`Reason::BackingLost`](longshore_access::Reason::BackingLost)), and writes are counted as not
//! logged ([`SpaceMemory::unlogged_count`]).
//!
//! A front-end can delay all others of the process: while it holds a lock of its own file in the kernel,
//! no thread of this process can map or unmap memory, and the process cannot exit. So serve users who do
//! not trust each other from a process each ([`Listener::serve_each`]).

mod backend;
mod channel;
mod device;
mod error;
mod memory;
mod misses;
mod queue;
mod queue_memory;
mod server;
#[cfg(test)]
mod tests;
pub mod wire;

pub use device::{ACCESS_PLATFORM, Device, Event};
pub use error::{ConnectionError, MessageError, RequestError};
pub use longshore_access::client::{Listener, Stop};
pub use memory::{
    IOTLB_ENTRIES_MAX, MemoryError, REGIONS_MAX, SpaceMemory, TABLE_BYTES_MAX, TableRegion,
    Translation, UserAddr,
};
pub use queue::{Queue, QueueLayout, QueueState, RunningQueue};
pub use queue_memory::{AccessError, QueueMemory};
pub use server::{DisconnectReason, Server};
