//! A DMA API in userspace: a domain decides which memory a device can reach, and for how long.
//!
//! ```text
//!   memory ──map──► Mapping ── iova ──► (a device)          IovaAllocator   chooses addresses
//!     ▲                │                     │              Backend         maps and unmaps:
//!     └───── unmap ────┘                     ▼                Soft          in this process
//!                                     Soft: a Session         Vfio, Iommufd in the kernel
//! ```
//!
//! * A [`Domain`] is one device's view of memory. Its [`Backend`](backend::Backend) is chosen when it
//!   is made.
//! * A [`Mapping`] owns the memory that the device can reach; [`unmap`](Mapping::unmap) gives it back
//!   when the device cannot reach it any more. A [`Batch`] does that for many at once.
//! * A thread that maps often makes a [`Local`] handle, which takes no lock.
//! * Short transfers can be copied through bounce buffers, which stay mapped ([`Bounce`]). Transfers
//!   that begin or end within a granule are always copied so, at least at their ends, unless the device
//!   is outside this process and [trusted](Builder::trusted).
//! * Tests can [check](Builder::on_misuse) the use of mappings, as the kernel's dma-debug does: misuse
//!   that types cannot prevent is reported. With the feature `tracing`, each operation is a span.
//! * Elements of a [`DmaPool`] stay mapped, for drivers that do not map per transfer.
//! * Memory in several places can be [one mapping](Domain::map_sg), with a list of segments for the
//!   device.
//! * Borrowed bytes can be [lent](Domain::lend) to the device for a scope, also those of
//!   [a cursor](Domain::lend_sg). CPU and device share [`Coherent`] memory all the time.
//!
//! ```
//! use longshore_domain::{Direction, Domain, Error, backend::Soft};
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
//! let buffer = mapping.unmap().map_err(Error::from)?;
//! assert!(device.read(iova, &mut seen).is_err());
//! # drop(buffer);
//! # Ok(())
//! # }
//! ```

#![allow(clippy::result_large_err, reason = "an error gives the value back")]

#[cfg(not(loom))]
pub mod backend;
#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
mod core;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod direction;
#[cfg(not(loom))]
mod dma_pool;
#[cfg(loom)]
#[path = "dma_pool/refs.rs"]
pub mod dma_pool_refs;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod handle;
#[cfg(not(loom))]
pub mod iova;
#[cfg(not(loom))]
mod local;
#[cfg(not(loom))]
mod policy;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
mod trace;
#[cfg(not(loom))]
mod transfer;
#[cfg(not(loom))]
mod undo;
#[cfg(not(loom))]
mod watch;

#[cfg(not(loom))]
pub use {
    counters::Counters,
    direction::Direction,
    dma_pool::{DmaElement, DmaPool, DmaPoolOptions, DmaPoolUsage, DmaSlice, SliceError},
    domain::Domain,
    domain::builder::Builder,
    domain::calibration::{Calibration, CalibrationStep},
    domain::dump::Dump,
    domain::reclaim::Reclaimed,
    error::{Error, Failed, PoolLayoutReason},
    handle::Handle,
    local::Local,
    policy::{Bounce, WhenFull},
    pool::PoolUsage,
    pool::budget::{process_pool_bytes, set_process_budget},
    pool::error::PoolError,
    transfer::batch::Batch,
    transfer::coherent::Coherent,
    transfer::mapping::Mapping,
    transfer::sg::{Lendable, SgLimits, SgMapping, SgSegment},
    transfer::summed::Sum,
    watch::{MappingInfo, Misuse},
};
