//! Memory for code written for rust-vmm: vm-memory's `GuestMemory` and `Bytes` by IOVA. Feature
//! `vm-memory`, for vm-memory 0.18.
//!
//! No other version will do: until 0.17 `GuestMemory` is a collection of regions at fixed addresses,
//! without permissions and without memory that is translated. That trait is called
//! `GuestMemoryBackend` in 0.18.
//!
//! Three types, all addressed by IOVA as vm-memory's [`GuestAddress`]:
//!
//! | type | made by | what it reaches | lasts |
//! | --- | --- | --- | --- |
//! | [`SessionMemory`] | [`Session::guest_memory`] | the whole space, translated as it is accessed; holes may be in it | for a scope |
//! | [`SpaceMemory`] | `memory()` of a [`Space`], which is a `GuestAddressSpace` | the same | until it is dropped, on its thread |
//! | [`PinnedMemory`] | `from` a [`View`] or a [`Lease`] | one range, translated once | as the pin or the lease |
//!
//! A virtqueue is best served from one of the first two: its descriptors lie anywhere. A device that
//! owns its memory owns a clone of the [`Space`], on any thread, and asks it for memory whenever it
//! serves the queue; the session's scope costs less.
//!
//! ```
//! # #[cfg(not(miri))] {
//! use std::sync::Arc;
//! use std::sync::atomic::Ordering;
//!
//! use longshore_access::vm_memory::PinnedMemory;
//! use longshore_access::{RegionAccess, OnUnmap, ReadOnly, Region, Space};
//! use longshore_mem::{FileOffset, Iova};
//! use longshore_pagetable::Prot;
//! use longshore_sys::memfd;
//! use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemory};
//!
//! /// Written for rust-vmm: it knows nothing of Longshore.
//! fn next_available<M: GuestMemory>(memory: &M, ring: GuestAddress) -> u16 {
//!     memory.load(GuestAddress(ring.0 + 2), Ordering::Acquire).map(u16::from_le).unwrap_or(0)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = memfd::create("guest", memfd::Backing::Shmem)?;
//! memfd::set_len(&file, 1 << 20)?;
//! let region = Region::map_file(&file, FileOffset::new(0), 1 << 20, RegionAccess::ReadWrite)?;
//! let (region, space) = (Arc::new(region), Space::new()?);
//! space.attach(&region)?;
//! space.map(Iova::new(0x4000_0000), &region, 0, 1 << 20, Prot::READ_WRITE)?;
//! let session = space.session();
//! let ring = GuestAddress(0x4000_3000);
//!
//! // The space, for as long as the scope.
//! session.guest_memory(|memory| {
//!     memory.write_obj(7u16, GuestAddress(ring.0 + 2))?;
//!     assert_eq!(next_available(memory, ring), 7);
//!     Ok::<_, vm_memory::GuestMemoryError>(())
//! })?;
//!
//! // The space, for as long as the value; `space.clone()` can be given to a device to own.
//! assert_eq!(next_available(&*space.memory(), ring), 7);
//!
//! // One range: pinned for a scope, or leased to keep and to send to other threads.
//! let seen = session.pin(Iova::new(ring.0), 4096, ReadOnly, |view| {
//!     next_available(&PinnedMemory::from(view), ring)
//! })?;
//! let leased = session.lease(Iova::new(ring.0), 4096, ReadOnly, OnUnmap::Wait)?;
//! let leased = Arc::new(PinnedMemory::from(leased)); // a `GuestAddressSpace`
//! assert_eq!((seen, next_available(&*leased, ring)), (7, 7));
//! # Ok(())
//! # }
//! # main().unwrap();
//! # }
//! ```
//!
//! # Which writes are logged, and when
//!
//! Of a [`SessionMemory`] or [`SpaceMemory`], exactly the bytes that were written: each of vm-memory's
//! methods that writes marks the bytes in the [`Logs`](crate::Logs) right after. What is written through a raw pointer
//! or an atomic reference (`ptr_guard_mut`, `get_atomic_ref`) is not seen, as with any memory of
//! rust-vmm: call `bitmap().mark_dirty()` then, while the slice lives. Harvests wait for the scope's
//! end, or until the memory is dropped, so no write is lost between it and its mark. `dirty_at` looks into a log by IOVA of this process,
//! and says no where there is none.
//!
//! Of a [`PinnedMemory`], all of the range when the pin or the lease ends, if that permits writes,
//! whether it was written or not; of a lease also each time that a harvest asks. So have small ones,
//! or a [`SessionMemory`], while pages are logged.
//!
//! Dirty bits in the page tables are set as hardware sets them: where writing is permitted, so when
//! slices to write are asked for, when a range is checked for it, or when it is pinned or leased.
//!
//! # Errors
//!
//! | vm-memory's error | what it says here |
//! | --- | --- |
//! | `InvalidGuestAddress` | nothing is mapped there, or it lies outside the pin |
//! | `IOError` with `PermissionDenied` | the mapping, or the pin, does not permit it; its source is the [`Fault`] |
//! | `IOError` with `OutOfMemory` | too much read-only memory was read, see below |
//! | `HostAddressNotAvailable` | it is mapped to a remote region |
//! | `GuestAddressOverflow` | the range passes the end of the address space |
//! | `PartialBuffer` | one of these after so many bytes; they are done |
//! | `InvalidBackendAddress` | an atomic access is not aligned |
//!
//! # What it cannot do
//!
//! * Remote regions: vm-memory's slices are addresses of this process. [`Session::read`] and
//!   [`write`](Session::write) reach them.
//! * Guarded copies: vm-memory copies by itself, so if a page of a client's file is missing during a
//!   copy this process gets SIGBUS. A client can truncate its file, unless it is sealed against that; if
//!   memory is not overcommitted (`vm.overcommit_memory=2`), it can also have the kernel refuse a page of
//!   a sealed file. Serve clients that are not trusted by the methods of a session.
//! * Permissions of a slice: vm-memory has one type to read and to write. Permissions are checked
//!   when slices are handed out, against those that are asked for; all its `Bytes` methods ask for
//!   the right ones. Safe code can write to a slice that it asked for to read, so there is no slice
//!   of memory that cannot be written in this process: a [read-only region](crate::Region::is_read_only), and
//!   memory of [`Space::map_raw`] that is mapped for reading only. Slices of the first two types are
//!   of a private copy then, which is freed with the scope or the memory; after 16 MiB of copies
//!   they end with [`io::ErrorKind::OutOfMemory`]. A [`PinnedMemory`] refuses access to such
//!   memory; read it by [`View::read`].
#![expect(unsafe_code, reason = "hands out pinned memory as vm-memory's slices")]

mod copies;
mod owned;
mod pinned;
mod session;

use std::io;

use longshore_mem::Iova;
use vm_memory::{GuestAddress, GuestMemoryError, Permissions};

use crate::fault::{Fault, Reason};
use crate::tlb;

pub use owned::{SpaceBitmap, SpaceMemory};
pub use pinned::{PinnedMemory, PinnedRegion, PinnedRegions};
pub use session::{DirtySlice, SessionMemory};

#[cfg(doc)]
use crate::{Lease, Session, Space, View};

/// What an access of rust-vmm wants of an entry.
fn wanted(access: Permissions) -> u64 {
    let read = if access.allow(Permissions::Read) { tlb::READ } else { 0 };
    let write = if access.allow(Permissions::Write) { tlb::WRITE } else { 0 };
    read | write
}

/// That `count` bytes from `address` are in the address space.
fn check_end(address: GuestAddress, count: usize) -> Result<(), GuestMemoryError> {
    match count.checked_sub(1).map(|more| address.0.checked_add(more as u64)) {
        Some(None) => Err(GuestMemoryError::GuestAddressOverflow),
        _ => Ok(()),
    }
}

/// Why `address` cannot be accessed, `done` bytes after the start, in vm-memory's words.
fn refused(address: u64, done: usize, reason: Reason) -> GuestMemoryError {
    match reason {
        Reason::Unmapped => GuestMemoryError::InvalidGuestAddress(GuestAddress(address)),
        Reason::NotDirect => GuestMemoryError::HostAddressNotAvailable,
        Reason::Overflow => GuestMemoryError::GuestAddressOverflow,
        reason => {
            let fault = Fault { iova: Iova::new(address), done, reason };
            GuestMemoryError::IOError(io::Error::new(io::ErrorKind::PermissionDenied, fault))
        }
    }
}
