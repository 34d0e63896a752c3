//! One cursor over every kind of memory, with copy, checksum and hash at the speed of the memory.
//!
//! A [`Cursor`] walks a list of memory segments of one *kind* ([`kinds`]): foreign ranges, own
//! slices, pages, sparse pages, a queue of pages, or nothing at all. Its direction is in its type:
//! [`Source`] is read, [`Dest`] is written.
//!
//! Everything that is done to the bytes is a *step*: a closure that is handed one [`Segment`] after
//! another and returns how many of its bytes it left undone. [`SegmentSource::iterate`] calls it,
//! inlined into a loop for each kind. The steps that come with the crate live on top of that as a
//! user's own would: [`copy`]. A [`Sink`] takes in the bytes in the same pass: [`checksum`] (RFC 1071),
//! [`crc32c`], or the `update` of any digest.
//!
//! ```
//! use longshore_iov::{Cursor, Dest, SegmentSource, Source, checksum, copy};
//! use std::io::{IoSlice, IoSliceMut};
//!
//! # fn main() -> Result<(), longshore_iov::Error> {
//! let parts = [IoSlice::new(b"a header, "), IoSlice::new(b"then a body")];
//! let mut source = Cursor::<Source>::own_vec(&parts);
//! assert_eq!(source.remaining(), 21);
//!
//! let (mut low, mut high) = ([0; 8], [0; 13]);
//! let mut whole = [IoSliceMut::new(&mut low), IoSliceMut::new(&mut high)];
//! let mut dest = Cursor::<Dest>::own_vec(&mut whole);
//! assert_eq!(copy::transfer(&mut source, &mut dest, 21)?, 21);
//!
//! source.revert(21)?;
//! let mut bytes = [0; 21];
//! let mut sum = checksum::Checksum::new();
//! copy::read_into(&mut source, &mut bytes, &mut sum)?;
//! assert_eq!(&bytes, b"a header, then a body");
//! assert_eq!(sum.finish(), checksum::of(&bytes));
//! # Ok(())
//! # }
//! ```
//!
//! # Foreign memory
//!
//! The memory of a guest, a device or another process is seen through
//! [volatile views](longshore_mem::VolatileSlice) only, and each of its bytes is read once: a checksum
//! of foreign memory is made while it is copied, never by a second look. Where foreign memory
//! vanishes during a copy the process dies, unless a
//! [`FaultGuard`](longshore_mem::fault::FaultGuard) lives: then the copy ends with
//! [`Error::Fault`], the cursor stands at the exact byte, and the process goes on.

pub mod checksum;
pub mod copy;
pub mod crc32c;
pub mod kinds;

mod cursor;
mod direction;
mod error;
mod fused;
mod kernels;
mod segment;
mod sink;
mod source;
mod through_buffer;

pub use cursor::{Cursor, Mark, Taken};
pub use direction::{Dest, Direction, Source};
pub use error::Error;
pub use segment::{RawSegment, SEGMENTS_MAX, Segment, SegmentList};
pub use sink::Sink;
pub use source::SegmentSource;
