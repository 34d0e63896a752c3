//! Runs tests in a real kernel: QEMU, a Debian kernel, and an initramfs whose init is the crate
//! `longshore-guest`.
//!
//! The host's kernel may lack udmabuf, dma-heap, VFIO or iommufd, and a test must neither depend on it
//! nor disturb it. A guest has all of these and boots in seconds, without KVM and without root.
//!
//! ```text
//!   Machine ──► initramfs: init, modules in load order, files, plan
//!      │                        │
//!      └──► QEMU ──► kernel ──► init ──► one process per test or command
//!                       │         │
//!   kernel log ◄── ttyS0┘         └ttyS1 ──► Event ──► Report
//! ```
//!
//! - [`Machine`] is the type that most callers need: build one, [`Machine::run`] some [`Task`]s, read
//!   the [`Report`]. [`static_binary()`] builds programs for it.
//! - [`Qmp`] sends commands to a running QEMU: to migrate, to quit.
//! - [`Qtest`] is a machine without a kernel: the host reads and writes its memory and registers.
//! - [`require`] decides whether a test is skipped or fails if no guest can run.
//! - [`protocol`], [`pattern`] and [`fixture`] are shared with the guest.
//! - [`expected`] compares a run with the committed list of tests; [`arguments`] selects tests.

#![forbid(unsafe_code)]

mod apt;
pub mod arguments;
mod boot;
mod cache;
mod cpio;
mod disk;
mod error;
pub mod expected;
mod filesystem;
pub mod fixture;
mod initramfs;
mod kernel;
mod kernel_log;
mod machine;
pub mod pattern;
pub mod protocol;
mod qemu;
mod qmp;
mod qtest;
mod report;
pub mod require;
mod static_binary;
mod tool;

pub use disk::{Attach, Disk, ReadError};
pub use error::{Error, GuestFault, Result};
pub use filesystem::{FileSystem, ext4_sector_of, make_fragmented_ext4, make_image};
pub use kernel::{Flavor, Kernel};
pub use machine::{Iommu, Machine};
pub use protocol::Task;
pub use qemu::Qemu;
pub use qmp::Qmp;
pub use qtest::Qtest;
pub use report::{CommandReport, Report, TestReport};
pub use static_binary::{guest_init, quick_static_binary, static_binary};
