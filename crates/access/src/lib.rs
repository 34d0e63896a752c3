//! Reading and writing memory by IOVA, as a device does.
//!
//! A `Space` holds the translations of one address space, in page tables as an IOMMU has them. A
//! `Session` is a walker of one thread, with a TLB of its own, that reads them without a lock.
//! Unmapping returns when no session can reach the old translation any more.

pub mod dirty;
mod sync;
