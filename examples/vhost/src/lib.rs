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
//! | module | what it is for |
//! | --- | --- |
//! | [`wire`] | messages, as bytes |
//! | `channel` | messages and descriptors over a socket |
//! | [`server`] | one front-end after the other |
//! | `backend` | what each message does |
//! | `worker` | the thread of a ring |
//! | `ring` | the split virtqueue |
//! | `dma` | access to the guest's memory, which asks for what is not translated |
//! | `misses` | whom it asks |
//! | [`block`] | what a request asks for |
//! | [`disk`] | the file |
//! | [`trace`] | counts, and a line for each thing that happens |

#![forbid(unsafe_code)]

mod backend;
pub mod block;
mod channel;
pub mod disk;
mod dma;
mod misses;
mod ring;
pub mod server;
pub mod stop;
pub mod trace;
pub mod wire;
mod worker;

pub use backend::RINGS;
pub use disk::Disk;
pub use server::{Ended, Listener, Server};
pub use trace::Counts;
