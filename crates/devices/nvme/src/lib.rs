//! An NVMe driver in userspace, on [`longshore_domain`]. It reads and writes a disk, and loads ranges of it
//! or the extents of a file straight into a buffer.
//!
//! ```text
//!   Interface::open ──► Domain ◄── rings, lists: coherent memory     Controller, Queue
//!        │                 ▲
//!        │                 ├── a buffer, mapped once                 transfer, load, store
//!        ▼                 └── a buffer for each transfer            the caller, with a Queue
//!     PciDevice ── registers, doorbells ──► controller ── DMA ──► IOMMU ──► mapped memory
//! ```
//!
//! | item | purpose |
//! | --- | --- |
//! | [`Interface`], [`PciDevice`], [`Hardware`] | a device that the kernel passes through, or a model of one |
//! | [`Controller`], [`Options`] | enabling and stopping the controller; its namespaces and queues |
//! | [`Queue`] | commands in flight, and the memory that is kept until they end |
//! | [`transfer`], [`load()`], [`store`] | long transfers, split into commands |
//! | [`ExtentList`] | the place of a file on its disk |
//! | [`registers`] | the registers of a controller |
//!
//! The memory of a command is never unmapped while the controller may access it: a [`Queue`] keeps a value
//! for each command in flight, such as the mapping of its memory, and returns the value when the
//! command has ended or the controller has given it up.
//!
//! ```no_run
//! use longshore_heap::Heap;
//! use longshore_nvme::{Controller, DiskRange, Interface, Options, load};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (builder, device) = Interface::Vfio.open("0000:00:05.0")?;
//! let domain = builder.build();
//! let controller = Controller::new(&domain, device, Options::default())?;
//! let namespace = controller.namespace(1)?;
//! let buffer = Heap::Memfd.allocate(1 << 30)?;
//! let range = DiskRange { disk_offset: 0, offset: 0, len_bytes: 1 << 30 };
//! let buffer = load(&controller, &namespace, 64, &[range], buffer, |_| {})?;
//! println!("{} bytes", buffer.len());
//! # Ok(())
//! # }
//! ```
//!
//! Sources: NVM Express Base Specification 2.0, NVM Command Set Specification 1.0, NVMe over PCIe Transport
//! Specification 1.0.

#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "an error returns the memory of the operation")]

mod command;
mod controller;
mod data;
mod error;
mod extents;
mod hardware;
mod identify;
mod load;
mod queue;
pub mod registers;
mod rings;
mod status;
mod stream;
mod waiting;

pub use command::{CommandError, CommandInfo, Opcode};
pub use controller::{Controller, Namespace, Options};
pub use data::{DataPointerError, DataPointerFormat, Segment};
pub use error::{Error, ExtentsError, NamespaceError, SubmitError, Unsupported};
pub use extents::{Extent, ExtentList};
pub use hardware::{Hardware, Interface, PciDevice};
pub use identify::{IdentifyController, SglSupport};
pub use load::{load, store};
pub use queue::{Completion, Queue};
pub use status::Status;
pub use stream::{DiskRange, transfer};
