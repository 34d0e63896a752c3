//! The memory of buffers that can be shared with devices, and its export.
//!
//! ```text
//!  Heap::reserve(len) ──► Reservation ──finish()──► Buffer ──share()──► SharedBuffer
//!   (which memory)        populate() ranges,        private:            fds, seals,
//!                         write() into them         slices              volatile views
//! ```
//!
//! * A [`Heap`] is the source of the memory: a memfd in huge pages, a udmabuf over one, a kernel
//!   dma-heap.
//! * A [`Reservation`] has an address and a length, but not yet its pages:
//!   [`Reservation::populate`] prefaults them range by range, so that filling can begin before all
//!   of them exist. It hands out no descriptor, so half-filled memory cannot be shared.
//! * A [`Buffer`] is complete and has one owner, so it may be borrowed as slices.
//! * A [`SharedBuffer`] has descriptors for devices and other processes. Its content is accessed
//!   through volatile views, because others may change it, and as a slice only if it is sealed.
//!
//! CPU access to a dma-buf must be enclosed by `DMA_BUF_IOCTL_SYNC`. The bytes are only accessible
//! through the guards [`ReadAccess`], [`WriteAccess`] and [`SharedView`], which do this.
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
mod private;
mod reason;
mod reservation;
mod shared;

pub use buffer::{Buffer, ReadAccess, WriteAccess};
pub use dma_buf::DmaBuf;
pub use error::{Error, Result};
pub use heap::{Heap, ParseHeapError};
pub use page_report::PageReport;
pub use private::{CopyOnWrite, PrivateBuffer};
pub use reason::{LengthLimit, Unavailability};
pub use reservation::{Filling, Reservation};
pub use shared::{Export, Sealing, SharedBuffer, SharedView};
