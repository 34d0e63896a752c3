//! A small NVMe driver in userspace, on `longshore-domain`: it reads and writes a disk, and loads a range
//! of it, or a file's extents, straight into a buffer.
//!
//! ```text
//!   Interface::open ──► Domain ◄── rings, lists: coherent memory     (controller, queue, rings)
//!        │                 ▲
//!        │                 ├── a buffer, mapped once                 (stream, load)
//!        ▼                 └── a buffer each transfer, or a slot     (bench)
//!     Passed ── registers, doorbells ──► the controller ── DMA ──► IOMMU ──► what is mapped
//! ```
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`hardware`] | a device that the kernel passes through, or a model of one |
//! | [`registers`], [`command`], [`status`], [`identify`] | what the specifications say, decoded |
//! | [`data`] | PRP entries and lists, scatter-gather lists |
//! | `rings` | a submission and a completion queue: phase tags, numbers of commands, doorbells |
//! | [`controller`] | bringing it up, admin commands, stopping it whatever happens |
//! | [`queue`] | commands in flight, and what is kept until they end |
//! | [`stream`], [`load`] | long transfers, cut into what a command takes |
//! | [`extents`] | where a file is on its disk |
//!
//! ```no_run
//! use longshore_heap::Heap;
//! use longshore_nvme::controller::{Controller, Options};
//! use longshore_nvme::hardware::Interface;
//! use longshore_nvme::load::load;
//! use longshore_nvme::stream::Stretch;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (builder, passed) = Interface::Vfio.open("0000:00:05.0")?;
//! let domain = builder.build();
//! let controller = Controller::new(&domain, passed, Options::default())?;
//! let namespace = controller.namespace(1)?;
//! let buffer = Heap::Memfd.allocate(1 << 30)?;
//! let stretch = Stretch { disk_offset: 0, offset: 0, len_bytes: 1 << 30 };
//! let buffer = load(&controller, &namespace, 64, &[stretch], buffer, |_| {})?;
//! println!("{} bytes", buffer.len_bytes());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "what was not done is given back with the reason")]

pub mod command;
pub mod controller;
pub mod data;
pub mod error;
pub mod extents;
pub mod hardware;
pub mod identify;
pub mod load;
pub mod queue;
pub mod registers;
mod rings;
pub mod status;
pub mod stream;
mod waiting;
