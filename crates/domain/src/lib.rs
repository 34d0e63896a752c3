//! A DMA API in userspace: what a device may reach, and when it may no more.
//!
//! ```text
//!   memory ──map──► Mapping ── iova ──► (a device)          IovaAllocator   which addresses
//!     ▲                │                     │              Backend         makes it so:
//!     └───── unmap ────┘                     ▼                Soft          page tables here,
//!                                     soft: a Session         …             models as devices
//! ```
//!
//! * A [`Domain`] is one device's view of memory. Its [`Backend`](backend::Backend) is chosen when it
//!   is made.
//! * A [`Mapping`] owns the memory that the device can reach; [`unmap`](Mapping::unmap) gives it back
//!   when the device cannot reach it any more. A [`Batch`] does that for many at once.
//! * A thread that maps much opens a [`Local`] door, which takes no lock.
//!
//! ```
//! use longshore_domain::{Direction, Domain, backend::Soft};
//! use longshore_heap::Heap;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let soft = Soft::new()?;
//! let device = soft.space().session();
//! let domain = Domain::builder(soft).build();
//!
//! let mut buffer = Heap::Memfd.allocate(4096)?;
//! buffer.write()?[..5].copy_from_slice(b"hello");
//! let mapping = domain.map(buffer, Direction::ToDevice)?;
//! let mut seen = [0; 5];
//! device.read(mapping.iova(), &mut seen)?;
//! assert_eq!(&seen, b"hello");
//! assert!(device.write(mapping.iova(), b"?").is_err());
//!
//! let iova = mapping.iova();
//! let buffer = mapping.unmap()?;
//! assert!(device.read(iova, &mut seen).is_err());
//! # drop(buffer);
//! # Ok(())
//! # }
//! ```

pub mod backend;
mod batch;
mod counters;
mod direction;
mod domain;
mod error;
pub mod iova;
mod mapping;

pub use batch::Batch;
pub use counters::Counters;
pub use direction::Direction;
pub use domain::{Builder, Domain, Door, Local};
pub use error::{Error, Failed};
pub use mapping::Mapping;
