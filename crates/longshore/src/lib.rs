//! The DMA data path as a userspace library: files into device-shareable memory at the disk's
//! speed.
//!
//! This crate is what most people import. It re-exports the parts and paves the common path:
//!
//! ```
//! use longshore::Sealing;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.bin");
//! # std::fs::write(&path, b"weights")?;
//!
//! // The file's content in huge pages, read directly, page cache untouched.
//! let loaded = longshore::load(&path)?;
//! println!("{} in {} pages", loaded.report.heap, loaded.report.pages);
//!
//! // Descriptors for devices and other processes; nobody can change the content.
//! let shared = loaded.buffer.share(Sealing::Content)?;
//! assert_eq!(shared.as_slice(), Some(&b"weights"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | part | what it is for |
//! | --- | --- |
//! | [`load`](mod@load) | plans, the overlapped reader, verification |
//! | [`formats`] | safetensors, GGUF and index files: bytes in, ranges out |
//! | [`serve`] | sharing on a node: a server that loads each model once, and attaching to it |
//! | [`heap`] | where buffers come from, how they are shared and sealed |
//! | [`iov`] | one cursor over every kind of memory, with copies, checksums and digests |
//! | [`access`] | reading and writing memory by IOVA, as a device does; with feature `vm-memory` memory for rust-vmm's code |
//! | `vfio_user` | with feature `vfio-user`: a server for PCI devices that QEMU drives |
//! | `vhost_user` | with feature `vhost-user`: a server for virtio devices, also behind a virtual IOMMU |
//! | [`domain`] | a DMA API: what a device may reach and until when, with bounce buffers; with features `vfio` and `iommufd` for devices of this machine, with `tracing` a span for each operation |
//! | [`pagetable`] | IO page tables in every common format, and a walker that reads them out of any image |
//! | [`mem`] | address types, ranges, volatile views, `DmaMemory` |
//!
//! The [`manual`] has a page for each job: loading models, sharing them, writing a driver, writing a
//! device model, page tables, moving bytes.

use std::path::Path;

pub mod manual;

pub use longshore_access as access;
pub use longshore_domain as domain;
pub use longshore_formats as formats;
pub use longshore_heap as heap;
pub use longshore_iov as iov;
pub use longshore_load as load;
pub use longshore_mem as mem;
pub use longshore_pagetable as pagetable;
pub use longshore_serve as serve;
#[cfg(feature = "vfio-user")]
pub use longshore_vfio_user as vfio_user;
#[cfg(feature = "vhost-user")]
pub use longshore_vhost_user as vhost_user;

pub use longshore_heap::{Buffer, Export, Heap, Sealing, SharedBuffer};
pub use longshore_load::{CancelToken, Loaded, Loader, Plan, Progress, ReadMode, SourceFile};

/// Loads one whole file into memory that can be sealed and shared: heap `memfd`, mode `auto`.
///
/// # Errors
/// Those of [`Loader::load`]; nothing is left behind then.
pub fn load(path: impl AsRef<Path>) -> load::Result<Loaded> {
    Loader::new().heap(Heap::Memfd).load(&Plan::of_path(path.as_ref())?)
}
