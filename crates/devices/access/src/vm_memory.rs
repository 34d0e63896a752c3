//! Support for code written for rust-vmm: vm-memory's `GuestMemory` and `Bytes` by IOVA. It needs the
//! feature `vm-memory`, and is for vm-memory 0.18.
//!
//! Earlier versions cannot be supported: until 0.17, `GuestMemory` is a collection of regions at fixed
//! addresses, without permissions and without translation. That trait is called `GuestMemoryBackend` in
//! 0.18.
//!
//! There are three types. All are addressed by IOVA, as vm-memory's [`GuestAddress`]:
//!
//! | type | made by | memory | lifetime |
//! | --- | --- | --- | --- |
//! | [`SessionMemory`] | [`Session::guest_memory`] | the whole space, translated at each access; it may have holes | a scope |
//! | [`SpaceMemory`] | `memory()` of a [`Space`], which is a `GuestAddressSpace` | the same | until it is dropped, on its thread |
//! | [`PinnedMemory`] | `from` a [`View`] or a [`Lease`] | one range, translated once | that of the pin or the lease |
//!
//! One of the first two is best for a virtqueue, because its buffers can be anywhere. A device that owns
//! its memory can own a clone of the [`Space`], on any thread, and call `memory()` each time that it
//! serves the queue; a scope of a session costs less.
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
//! /// Written for rust-vmm, without any dependency on Longshore.
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
//! // The whole space, for a scope.
//! session.guest_memory(|memory| {
//!     memory.write_obj(7u16, GuestAddress(ring.0 + 2))?;
//!     assert_eq!(next_available(memory, ring), 7);
//!     Ok::<_, vm_memory::GuestMemoryError>(())
//! })?;
//!
//! // The whole space, for the lifetime of the value. A device can own `space.clone()`.
//! assert_eq!(next_available(&*space.memory(), ring), 7);
//!
//! // One range: pinned for a scope, or leased, so that it can be kept and sent to other threads.
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
//! # Dirty logs
//!
//! For a [`SessionMemory`] or [`SpaceMemory`], exactly the written bytes are logged: each of vm-memory's
//! methods that write marks the bytes in the [`Logs`](crate::Logs) after the write. As with any memory
//! of rust-vmm, writes through a raw pointer or an atomic reference (`ptr_guard_mut`, `get_atomic_ref`)
//! are not observed: call `bitmap().mark_dirty()` after them, while the slice lives. Collections wait for
//! the end of the scope, or until the memory is dropped, so no write is lost before it is marked.
//! `dirty_at` reads this process's log by IOVA, and returns `false` if there is none.
//!
//! For a [`PinnedMemory`] that permits writes, all of the range is logged when the pin or the lease
//! ends, whether it was written or not; for a lease, also at each collection. So use small ranges, or a
//! [`SessionMemory`], while writes are logged.
//!
//! Dirty bits in the page tables are set before any write: when writable slices are requested, when a
//! range is checked for write permission, or when it is pinned or leased for writing.
//!
//! # Errors
//!
//! | vm-memory's error | meaning |
//! | --- | --- |
//! | `InvalidGuestAddress` | nothing is mapped there, or the address is outside the pin |
//! | `IOError` with `PermissionDenied` | the mapping or the pin does not permit the access; its source is the [`Fault`] |
//! | `IOError` with `OutOfMemory` | too much read-only memory was read, see below |
//! | `HostAddressNotAvailable` | the address is mapped to a remote region |
//! | `GuestAddressOverflow` | the range passes the end of the address space |
//! | `PartialBuffer` | one of these errors occurred after the given number of bytes, which are done |
//! | `InvalidBackendAddress` | an atomic access is not aligned |
//!
//! # Limitations
//!
//! * Remote regions are not accessible, because vm-memory's slices are addresses in this process. Use
//!   [`Session::read`] and [`write`](Session::write).
//! * Copies are not guarded: vm-memory copies by itself, so if a page of a client's file is missing
//!   during a copy, this process gets SIGBUS. A client can truncate its file unless it is sealed against
//!   shrinking; without overcommit (`vm.overcommit_memory=2`), it can also make the kernel refuse a page
//!   of a sealed file. Serve untrusted clients by the methods of a session.
//! * Slices have no permissions: vm-memory has one type for reading and writing. Permissions are checked
//!   when a slice is requested; all `Bytes` methods request the right ones. Safe code can write to a
//!   slice that it requested for reading. So memory that this process must not write never gets a slice:
//!   a [read-only region](crate::Region::is_read_only), and memory of [`Space::map_raw`] that is mapped
//!   for reading only. The first two types return slices of a private copy instead, which is freed with
//!   the scope or the memory; after 16 MiB of copies they fail with [`io::ErrorKind::OutOfMemory`]. A
//!   [`PinnedMemory`] refuses access to such memory; read it by [`View::read`].
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

/// Converts permissions of vm-memory to flags of a TLB entry.
fn wanted(access: Permissions) -> u64 {
    let read = if access.allow(Permissions::Read) { tlb::READ } else { 0 };
    let write = if access.allow(Permissions::Write) { tlb::WRITE } else { 0 };
    read | write
}

/// Returns an error if `count` bytes from `address` pass the end of the address space.
fn check_end(address: GuestAddress, count: usize) -> Result<(), GuestMemoryError> {
    match count.checked_sub(1).map(|more| address.0.checked_add(more as u64)) {
        Some(None) => Err(GuestMemoryError::GuestAddressOverflow),
        _ => Ok(()),
    }
}

/// Returns vm-memory's error for an access that failed at `address`, `done` bytes after its start.
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
