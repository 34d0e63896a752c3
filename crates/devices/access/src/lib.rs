//! Reading and writing memory by IOVA, as a device does.
//!
//! A [`Space`] holds the translations of one address space, in page tables as an IOMMU has them. A
//! [`Session`] is a walker of one thread, with a TLB of its own, that reads them without a lock.
//! Unmapping returns when no session can reach the old translation any more.
//!
//! * [`Region`] is memory that can be mapped: of this process ([`Region::map_file`],
//!   [`Region::from_memory`]), of another ([`ProcessMemory`]), or of a device or peer that
//!   answers each access ([`RemoteMemory`]). [`Space::map`] maps parts of one.
//! * [`Session::read`], [`write`](Session::write), [`read_obj`](Session::read_obj),
//!   [`read_iter`](Session::read_iter), [`compare_exchange`](Session::compare_exchange) and so on
//!   access it, or return a [`Fault`]. [`Session::pin`] translates once for many accesses, a
//!   [`Lease`] for longer than a scope.
//! * [`Space::map_raw`] and [`Space::unmap_raw`] are for those who keep the memory themselves: no
//!   lock, no allocation.
//! * Module [`client`] limits what untrusted clients make a process map. The crates
//!   `longshore-vfio-user` and `longshore-vhost-user` serve such clients.
//! * With feature `vm-memory`, code written for rust-vmm runs on a session, a pin or a lease: module
//!   `vm_memory`.
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
//! // What a client sends: a descriptor of its memory, and where its device finds it.
//! let memory = memfd::create("guest", memfd::Backing::Shmem)?;
//! memfd::set_len(&memory, 1 << 20)?;
//! let region = Region::map_file(&memory, FileOffset::new(0), 1 << 20, RegionAccess::ReadWrite)?;
//! let region = Arc::new(region);
//!
//! let space = Space::new()?;
//! space.attach(&region)?;
//! space.map(Iova::new(0x4000_0000), &region, 0, 1 << 20, Prot::READ_WRITE)?;
//!
//! // One of these for each thread of the device model.
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
//! # Which pages were written
//!
//! Four ways, of which none costs anything while it is off: a log of this process or of another, by
//! IOVA or by guest-physical address ([`Space::set_logs`], [`dirty`]), and dirty bits in the page
//! tables as hardware sets them ([`SpaceConfig::dirty_bits`]). What a lease writes, nobody sees: while
//! it lives, each harvest and each look at dirty bits counts all of it as written.
//!
//! # Threads
//!
//! A [`Space`] is shared by any number of threads; each has its own [`Session`]. A session that waits
//! for something else should [`park`](Session::park), so that unmapping meanwhile costs no barrier.
//!
//! A thread cannot wait for itself: within a pin, or while there is a lease that it made and that
//! waits, unmapping returns [`Error::PinnedByCaller`]. A thread that was handed such a lease by
//! another must drop it first.
//!
//! Unmapping waits for accesses, pins and leases of others, but not for a remote region's answer: the
//! call is cancelled. So the other side may answer calls after it was told that its memory is free.

// With loom, `tests/loom_dirty.rs` has `dirty/` alone.
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
