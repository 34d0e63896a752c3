//! IO page tables: map, unmap, look up and track dirty pages, in every common format.
//!
//! * [`PageTable`]: the tables of one address space, with [`map`](PageTable::map),
//!   [`unmap`](PageTable::unmap), [`lookup`](PageTable::lookup), [`walk`](PageTable::walk),
//!   [`split`](PageTable::split), [`set_prot`](PageTable::set_prot),
//!   [`read_dirty`](PageTable::read_dirty), [`grow`](PageTable::grow) and
//!   [`dump`](PageTable::dump).
//! * [`format`](mod@format): Arm LPAE stages 1 and 2, VT-d second and first stage, AMD v1, x86-64,
//!   RISC-V, and the trait that they implement.
//! * [`table_memory`]: the memory that tables are allocated from. [`cache_sync`]: cache maintenance
//!   for a walker that does not snoop the CPU's caches.
//! * [`TlbGather`] and [`Invalidate`]: the translations that a walker may still have cached, and
//!   their invalidation.
//! * [`Walker`]: reads tables of any format from any memory image, for tools and device models;
//!   [`Trace`] shows a walk step by step, [`Dump`](dump::Dump) the whole tree.
//!
//! ```
//! use longshore_mem::{BusAddr, Granule, Iova};
//! use longshore_pagetable::cache_sync::Coherent;
//! use longshore_pagetable::format::{ArmStage1, ArmStage1Config};
//! use longshore_pagetable::table_memory::HostPages;
//! use longshore_pagetable::{Invalidate, PageTable, Prot, TlbGather};
//!
//! /// A walker without a TLB.
//! struct NoTlb;
//!
//! impl Invalidate for NoTlb {
//!     type Error = std::convert::Infallible;
//!
//!     fn flush(&self, _gather: &TlbGather) -> Result<(), Self::Error> {
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let format = ArmStage1::new(ArmStage1Config::new(Granule::SIZE_4K))?;
//! let table = PageTable::new(format, HostPages::new(), Coherent)?;
//!
//! let (iova, bus) = (Iova::new(0x4000_0000), BusAddr::new(0x8000_0000));
//! table.map(iova, bus, 0x20_0000, Prot::READ_WRITE)?;
//! let mapping = table.lookup(Iova::new(0x4000_1234))?.unwrap();
//! assert_eq!((mapping.page_log2, mapping.bus), (21, bus));
//! assert_eq!(mapping.translate(Iova::new(0x4000_1234)), Some(BusAddr::new(0x8000_1234)));
//!
//! let mut gather = TlbGather::new();
//! table.unmap(iova, 0x20_0000, &mut gather)?;
//! table.finish(gather, &NoTlb)?;
//! assert_eq!(table.lookup(iova)?, None);
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//!
//! Calls that change *disjoint* ranges may run in several threads in parallel, without a lock; readers
//! may run at any time. This is safe for three reasons:
//!
//! * If a call's range covers all addresses of a slot, no other call changes that slot. If it
//!   covers only some of them, another call may share the slot, and the only change that either
//!   makes to it is to install a table by compare-and-swap. Only a call that covers a table's whole
//!   range detaches that table.
//! * So a table that a call has reached on its way down stays in place while the call runs.
//! * A table is filled before it is linked, and it is freed only after
//!   [`finish`](PageTable::finish) has made sure that no walker can use it. A reader in this
//!   process is a walker too: if tables are freed while it reads, its results are unspecified
//!   (though memory-safe), so [`Invalidate::flush`] must wait for it.
//!
//! Calls whose ranges overlap must not run in parallel. If they do, the resulting mappings are
//! unspecified, tables may be leaked or allocated twice (then the number of tables in use and their
//! limit are wrong), and calls may take long; no memory other than the tables is touched. The range
//! of a [`split`](PageTable::split) includes the whole of each block or contiguous run that it
//! splits.
#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

pub mod cache_sync;
mod dirty;
pub mod dump;
mod error;
pub mod format;
mod gather;
mod geometry;
mod grow;
mod lookup;
mod map;
mod prot;
mod protect;
mod reclaim;
mod simd;
mod split;
mod sync;
mod table;
pub mod table_memory;
mod trace;
mod unmap;
mod walk;

pub use error::Error;
pub use gather::{Invalidate, TlbGather};
pub use prot::Prot;
pub use table::{Check, PageTable};
pub use trace::{Trace, TraceStep};
pub use walk::{Image, Mapping, Walker};
