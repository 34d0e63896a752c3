//! A virtio block device that a virtual machine drives over vhost-user, also from behind a virtual
//! IOMMU, and that can be migrated while it runs.
//!
//! ```text
//!   QEMU ── memory table, rings, features ──► socket ──► Backend ──► SpaceMemory ──► Space
//!     │ ◄── IOTLB updates, invalidations ───────┘            │                         ▲
//!     │                                                      └─► Worker of each ring ──┤ Session
//!     │ ◄── misses ─────────────────────────────────────────────────┘  │               │
//!     └──── guest's memory ◄── requests' data, used rings, dirty log ──┴───────────────┘
//! ```
//!
//! `longshore-vhost-user` implements the protocol, and this crate the disk.
//!
//! | module | content |
//! | --- | --- |
//! | `device` | the device that the protocol's server calls |
//! | `worker` | the thread of a ring |
//! | `ring` | the split virtqueue |
//! | [`block`] | requests of a virtio disk |
//! | [`disk`] | the file |
//! | [`trace`] | counters of events, and a line of output for each |

#![forbid(unsafe_code)]

pub mod block;
mod device;
pub mod disk;
mod ring;
mod status;
pub mod trace;
mod worker;

pub use device::{BlockDevice, RINGS};
pub use disk::Disk;
pub use longshore::vhost_user::{DisconnectReason, Listener, Server, Stop};
pub use trace::Counts;
