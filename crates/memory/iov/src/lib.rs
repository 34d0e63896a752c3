//! One cursor over every kind of memory, with copies, checksums and digests at memory speed.
//!
//! A [`Cursor`] walks a list of memory segments of one *kind* ([`kinds`]): foreign ranges, private
//! slices, pages, sparse pages, a queue of pages, or no memory at all. Its type gives its
//! direction: a [`Source`] is read, a [`Dest`] is written.
//!
//! All work on the bytes is done by a *step*: a closure that gets one [`Segment`] after another and
//! returns how many bytes of it are left undone. [`SegmentSource::iterate`] calls the step, inlined
//! into a loop for each kind. The operations of this crate ([`copy`]) are such steps, and you can
//! write your own in the same way. A [`Sink`] processes the bytes in the pass that copies them:
//! [`checksum`] (RFC 1071), [`crc32c`], or the `update` function of any digest.
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
//! The memory of a guest, a device or another process is accessed only through [volatile
//! views](longshore_mem::VolatileSlice), and each byte is read once: a checksum of foreign memory
//! is computed while it is copied, never by a second read. If foreign memory vanishes during a
//! copy, the signal kills the process, unless a [`FaultGuard`](longshore_mem::fault::FaultGuard)
//! lives: then the copy returns [`Error::Fault`], the cursor stands at the exact byte that faulted,
//! and the process continues.

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
