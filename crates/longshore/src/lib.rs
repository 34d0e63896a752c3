//! Moves bytes between files, memory and devices from userspace: model weights into memory that GPUs and
//! processes share, and guest memory to device models and drivers.
//!
//! This crate re-exports the other crates, by feature, and has a function for the common case:
//!
//! ```
//! use longshore::Sealing;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.bin");
//! # std::fs::write(&path, b"weights")?;
//!
//! // Read the file into huge pages with direct I/O, past the page cache.
//! let loaded = longshore::load(&path)?;
//! println!("{} in {} pages", loaded.report.heap, loaded.report.pages);
//!
//! // Get descriptors for devices and other processes. No process can change the content any more.
//! let shared = loaded.buffer.share(Sealing::Content)?;
//! assert_eq!(shared.as_slice(), Some(&b"weights"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | feature | purpose |
//! | --- | --- | --- |
//! | [`load`](mod@load) | `models` | plans, the overlapped reader, verification |
//! | [`formats`] | `models` | safetensors, GGUF and index files: bytes in, ranges out |
//! | [`remote`] | `remote` | files of HTTP servers, object stores and the Hugging Face Hub, in place of files of this machine |
//! | [`serve`] | `models` | sharing on a node: a server that loads each model once, and its clients |
//! | [`access`] | `devices` | reads and writes of memory by IOVA, as a device makes them; the feature `vm-memory` adds rust-vmm's `GuestMemory` |
//! | [`domain`] | `devices` | a DMA API with bounce buffers; the features `vfio` and `iommufd` add devices of this machine, and `tracing` adds a span for each operation |
//! | [`pagetable`] | `devices` | IO page tables in every common format, and a walker that reads them in memory images |
//! | [`vfio_user`] | `vfio-user` | a server for PCI devices that QEMU drives |
//! | [`vhost_user`] | `vhost-user` | a server for virtio devices, also behind a virtual IOMMU |
//! | [`heap`] | always | memory for buffers, sealed and shared by descriptor |
//! | [`iov`] | always | one cursor over every kind of memory, with copies, checksums and digests |
//! | [`mem`] | always | address types, ranges, volatile views, `DmaMemory` |
//!
//! The feature `models` is on by default. Each of the others turns on the features that it needs.
//!
//! The [`manual`] has pages about loading models, sharing them, writing a driver, writing a device
//! model, page tables, moving bytes, system calls and benchmarks. It needs the features `models` and
//! `devices`.

#[cfg(all(feature = "models", feature = "devices"))]
pub mod manual;

pub use longshore_heap as heap;
pub use longshore_iov as iov;
pub use longshore_mem as mem;

#[cfg(feature = "remote")]
pub use longshore_remote as remote;
#[cfg(feature = "models")]
pub use {longshore_formats as formats, longshore_load as load, longshore_serve as serve};

#[cfg(feature = "vfio-user")]
pub use longshore_vfio_user as vfio_user;
#[cfg(feature = "vhost-user")]
pub use longshore_vhost_user as vhost_user;
#[cfg(feature = "devices")]
pub use {
    longshore_access as access, longshore_domain as domain, longshore_pagetable as pagetable,
};

pub use longshore_heap::{Buffer, Export, Heap, Sealing, SharedBuffer};
#[cfg(feature = "models")]
pub use longshore_load::{CancelToken, Loaded, Loader, Plan, Progress, ReadMode, SourceFile};

/// Loads one whole file into memory that can be sealed and shared. The heap is `memfd`, the read mode
/// is `auto`.
///
/// # Errors
/// Those of [`Loader::load`]. A load that fails leaves no descriptor and no memory behind.
#[cfg(feature = "models")]
pub fn load(path: impl AsRef<std::path::Path>) -> load::Result<Loaded> {
    Loader::new().heap(Heap::Memfd).load(&Plan::from_path(path.as_ref())?)
}
