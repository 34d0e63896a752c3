//! The basic types of Longshore: addresses, ranges, DMA memory, and volatile views.
//!
//! * [`Iova`], [`BusAddr`], [`HostAddr`], [`GuestPhys`], [`FileOffset`]: a type for each address
//!   space, so an address of one space cannot be used in another.
//! * [`RangeClaim`] and [`AddrRange`]: a range that came from outside, and one that was validated.
//! * [`Granule`]: a power-of-two page or block size that is known only at run time.
//! * `DmaMemory`: memory that keeps its address while a device uses it (feature `std`, on by
//!   default, because it lends a file descriptor).
//! * [`VolatileSlice`], [`VolatileSliceMut`]: views of memory that a device, a guest or another
//!   process may change at any time, without ever forming a reference to it. [`Page`]: a page of
//!   such memory.
//! * [`ByteSize`]: a number of bytes in a message.
//! * [`copy`]: bulk copies of such memory, by the best instructions of the machine ([`isa`]). They
//!   survive if the memory vanishes while a `FaultGuard` lives ([`fault`]).
//!
//! Without its `std` feature, the crate is `no_std` and has no dependencies. With it, the crate
//! depends on `libc`, for the signal handler.
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

pub mod copy;
pub mod fault;
pub mod isa;

mod addr;
mod byte_size;
#[cfg(feature = "std")]
mod dma_memory;
mod granule;
mod page;
mod range;
mod volatile;

pub use addr::{BusAddr, FileOffset, GuestPhys, HostAddr, Iova};
pub use byte_size::ByteSize;
#[cfg(feature = "std")]
pub use dma_memory::{DmaMemory, SharedDmaMemory};
pub use granule::{Granule, NotAPowerOfTwo};
pub use page::{NotAPage, Page};
pub use range::{AddrRange, Address, RangeClaim, RangeError};
pub use volatile::{OutOfBounds, VolatileSlice, VolatileSliceMut};
