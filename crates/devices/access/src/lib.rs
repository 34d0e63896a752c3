//! Reading and writing memory by IOVA, as a device does.
//!
//! A [`Space`] holds the translations of one address space, in page tables like those of an IOMMU. A
//! [`Session`] belongs to one thread and walks these tables without a lock; it has a TLB of its own.
//! Unmapping returns when no session can use the old translation any more.
//!
//! * A [`Region`] is memory that can be mapped: memory of this process ([`Region::map_file`],
//!   [`Region::from_memory`]), of another process ([`ProcessMemory`]), or of a device or peer that
//!   answers each access ([`RemoteMemory`]). [`Space::map`] maps parts of a region.
//! * [`Session::read`], [`write`](Session::write), [`read_obj`](Session::read_obj),
//!   [`read_iter`](Session::read_iter), [`compare_exchange`](Session::compare_exchange) and so on access
//!   mapped memory, or return a [`Fault`]. [`Session::pin`] translates once for many accesses, and a
//!   [`Lease`] is a pin that can outlive a scope.
//! * [`Space::map_raw`] and [`Space::unmap_raw`] are for callers that keep the memory alive themselves.
//!   They take no lock, and allocate nothing but page tables.
//! * Module [`client`] limits what untrusted clients make a process map. The crates
//!   `longshore-vfio-user` and `longshore-vhost-user` serve such clients.
//! * With the feature `vm-memory`, code written for rust-vmm runs on a session, a pin or a lease; see
//!   the module `vm_memory`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use longshore_access::{RegionAccess, Reason, Region, Space};
//! use longshore_mem::{FileOffset, Iova};
//! use longshore_pagetable::Prot;
//! use longshore_sys::memfd;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A client sends a descriptor of its memory, and the IOVA at which its device finds it.
//! let memory = memfd::create("guest", memfd::Backing::Shmem)?;
//! memfd::set_len(&memory, 1 << 20)?;
//! let region = Region::map_file(&memory, FileOffset::new(0), 1 << 20, RegionAccess::ReadWrite)?;
//! let region = Arc::new(region);
//!
//! let space = Space::new()?;
//! space.attach(&region)?;
//! space.map(Iova::new(0x4000_0000), &region, 0, 1 << 20, Prot::READ_WRITE)?;
//!
//! // Each thread of the device model makes a session.
//! let session = space.session();
//! session.write(Iova::new(0x4000_1000), b"by IOVA")?;
//! session.write_obj(Iova::new(0x4000_2000), 7u32)?;
//! assert_eq!(session.read_obj::<u32>(Iova::new(0x4000_2000))?, 7);
//! let mut bytes = [0; 7];
//! session.read(Iova::new(0x4000_1000), &mut bytes)?;
//! assert_eq!(&bytes, b"by IOVA");
//!
//! space.unmap(Iova::new(0x4000_0000), 1 << 20)?;
//! let fault = session.read(Iova::new(0x4000_1000), &mut bytes).unwrap_err();
//! assert_eq!((fault.done, fault.reason), (0, Reason::Unmapped));
//! space.detach(&region)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Dirty tracking
//!
//! There are two ways to find the pages that were written, and neither costs anything while it is off:
//! logs, which this process or another one reads, by IOVA or by guest-physical address
//! ([`Space::set_logs`], [`dirty`]); and dirty bits in the page tables, as hardware sets them
//! ([`SpaceConfig::dirty_bits`]). The writes through a lease are not observed: while a writable lease
//! lives, each collection and each read of the dirty bits reports all of its pages as written.
//!
//! # Threads
//!
//! Any number of threads can share a [`Space`]; each has its own [`Session`]. A thread that waits for
//! something else should [`park`](Session::park) its session, so that unmapping meanwhile needs no
//! barrier.
//!
//! A thread cannot wait for itself: unmapping returns [`Error::PinnedByCaller`] within a pin, and while
//! a lease of the range exists that the thread made with [`OnUnmap::Wait`]. A thread that received such
//! a lease from another thread must drop it first.
//!
//! Unmapping waits for accesses, pins and leases of other threads, but not for a remote region's answer:
//! it cancels the call. So the other side may still answer calls after it was notified that its memory
//! is free.

// Under loom, `tests/loom_dirty.rs` includes `dirty/` as source; nothing else is built.
#![cfg(not(loom))]

pub mod client;
mod config;
pub mod dirty;
mod error;
mod fault;
mod lease;
mod logs;
mod page_runs;
mod process;
mod region;
mod session;
mod space;
mod tlb;
#[cfg(feature = "vm-memory")]
pub mod vm_memory;
mod windows;
mod words;

pub use {
    config::{CLIENT_TABLE_BYTES_MAX, SpaceConfig},
    error::Error,
    fault::{Fault, Reason},
    lease::OnUnmap,
    logs::Logs,
    longshore_sync::Barrier,
    process::{PROCESS_TIMEOUT_DEFAULT, ProcessMemory},
    region::{Region, RegionAccess, RemoteFault, RemoteMemory},
    session::{
        Lease, ReadOnly, ReadWrite, Readable, Session, View, ViewAccess, ViewSlice, Word, Writable,
        WriteOnly,
    },
    space::{Batch, Counters, Space},
};
