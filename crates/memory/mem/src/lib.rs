//! The words the rest of Longshore is written in: addresses, ranges, DMA memory, volatile views.
//!
//! * [`Iova`], [`BusAddr`], [`HostAddr`], [`GuestPhys`], [`FileOffset`]: one type for each address
//!   space, so that an address of one can never be used in another.
//! * [`RangeClaim`] and [`AddrRange`]: a range that came from outside, and one that was validated.
//! * [`Granule`]: a power-of-two page or block size known only at run time.
//! * `DmaMemory`: memory that stays where it is while a device uses it (feature `std`, on by
//!   default, because it lends a file descriptor).
//! * [`VolatileSlice`], [`VolatileSliceMut`]: views of memory that someone else may change at any
//!   moment; no reference to it is ever formed. [`Page`]: a page of it.
//! * [`copy`]: bulk copies of such memory, which survive its vanishing while a `FaultGuard` lives
//!   ([`fault`]), by the instructions the machine has ([`isa`]).
//!
//! The crate is `no_std` without its `std` feature and depends on nothing then; with it on `libc`,
//! for the signal handler.
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

pub mod copy;
pub mod fault;
pub mod isa;

mod addr;
#[cfg(feature = "std")]
mod dma_memory;
mod granule;
mod page;
mod range;
mod volatile;

pub use addr::{BusAddr, FileOffset, GuestPhys, HostAddr, Iova};
#[cfg(feature = "std")]
pub use dma_memory::{DmaMemory, SharedDmaMemory};
pub use granule::{Granule, NotAPowerOfTwo};
pub use page::{NotAPage, Page};
pub use range::{AddrRange, Address, RangeClaim, RangeError};
pub use volatile::{OutOfBounds, VolatileSlice, VolatileSliceMut};
