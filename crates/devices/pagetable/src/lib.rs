//! IO page tables: map, unmap, look up and track dirty pages, in every common format.
//!
//! * [`PageTable`] is the tables of one address space: [`map`](PageTable::map),
//!   [`unmap`](PageTable::unmap), [`lookup`](PageTable::lookup), [`walk`](PageTable::walk),
//!   [`split`](PageTable::split), [`set_prot`](PageTable::set_prot),
//!   [`read_dirty`](PageTable::read_dirty), [`grow`](PageTable::grow), [`dump`](PageTable::dump).
//! * [`format`](mod@format): Arm LPAE stages 1 and 2, VT-d second and first stage, AMD v1, x86-64,
//!   RISC-V, and the trait that they implement.
//! * [`table_memory`]: where tables come from. [`cache_sync`]: how changes reach a walker that does
//!   not snoop the caches.
//! * [`TlbGather`] and [`Invalidate`]: the translations that a walker may still have cached, and how
//!   they are invalidated.
//! * [`Walker`]: reads tables of any format out of any image of memory, for tools and device models;
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
//! Calls that change *disjoint* ranges may run in several threads at once, without a lock; readers
//! may run at any time. What makes that work:
//!
//! * A slot that a call's range covers whole is that call's alone. A slot that it covers in part may
//!   be shared, and the one thing that can happen to such a slot is that a table is installed, by
//!   compare-and-swap; a table is taken out only by a call that covers it whole.
//! * So a table that a call has found on its way stays while the call runs.
//! * A table is linked when it is filled, and freed when [`finish`](PageTable::finish) knows that no
//!   walker can use it. A reader in this process is a walker too: what it finds while tables are
//!   freed under it is unspecified (though memory-safe), so [`Invalidate::flush`] must wait for it.
//!
//! Calls whose ranges overlap must not run at once: what is mapped afterwards is unspecified, tables
//! may be lost or given out twice, so that the counts and the limit of tables no longer hold, and calls
//! may take long. No memory but the tables is touched. The range of a [`split`](PageTable::split) counts as all of each block or
//! contiguous run that it changes a part of.
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
