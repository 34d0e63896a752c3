//! Where device-shareable buffers come from, and how they are exported.
//!
//! ```text
//!  Heap::reserve(len) ──► Reservation ──finish()──► Buffer ──share()──► SharedBuffer
//!   (which memory)        populate() ranges,        private:            fds, seals,
//!                         write() into them         slices              volatile views
//! ```
//!
//! * [`Heap`] names the memory: a memfd in huge pages, a udmabuf over one, a kernel dma-heap.
//! * A [`Reservation`] has an address and a length but not yet its pages: they are made range by
//!   range by [`Reservation::populate`], so that filling can begin before all of them exist. It
//!   has no descriptor to give away: nothing half filled can leave it.
//! * A [`Buffer`] is complete and belongs to one owner, so it may be borrowed as slices.
//! * A [`SharedBuffer`] has descriptors for devices and other processes. What others can change is
//!   seen through volatile views; a slice exists only where the content is sealed.
//!
//! CPU access to a dma-buf must be bracketed by `DMA_BUF_IOCTL_SYNC`; the guards [`ReadAccess`],
//! [`WriteAccess`] and [`SharedView`] are the only way to the bytes, and they do it.
//!
//! ```
//! use longshore_heap::{Heap, Sealing};
//!
//! let mut buffer = Heap::Memfd.allocate(4096)?;
//! buffer.write()?[..5].copy_from_slice(b"hello");
//! let shared = buffer.share(Sealing::Content)?;
//! assert_eq!(&shared.as_slice().unwrap()[..5], b"hello");
//! # Ok::<(), longshore_heap::Error>(())
//! ```

mod buffer;
mod dma_buf;
mod error;
mod extents;
mod heap;
mod memory;
mod page_report;
mod reason;
mod reservation;
mod shared;

pub use buffer::{Buffer, ReadAccess, WriteAccess};
pub use dma_buf::DmaBuf;
pub use error::{Error, Result};
pub use heap::{Heap, ParseHeapError};
pub use page_report::PageReport;
pub use reason::{LengthLimit, Unavailability};
pub use reservation::{Filling, Reservation};
pub use shared::{Export, Sealing, SharedBuffer, SharedView};
