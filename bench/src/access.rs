//! The bench `access`: reads and writes of memory by IOVA, and the cost of unmapping at the same time.
//!
//! Every candidate makes the same accesses to the same memory of this process, one after the other. Each
//! candidate translates in its own way from the address that a device would use:
//!
//! ```text
//!   accesses (a list)      an accessor for each candidate          memory, 1 GiB
//!   ┌──────────────────┐   ┌──────────────────────────────┐
//!   │ place, len, dir  │──►│ ours: IOVA, session          │──┐   ranges in an arbitrary
//!   │                  │   │ vm-memory: guest address     │──┼─► order, so that none
//!   │                  │   │ IOMMU memory: IOVA           │──┤   continues another
//!   │                  │   │ plain copy: the host address │──┘
//!   └──────────────────┘   └──────────────────────────────┘
//! ```

mod accessor;
mod cases;
mod memory;
pub(crate) mod other;
mod ours;
mod plain;
pub(crate) mod random;
mod remap;
mod schemes;
mod stream;
mod timed;
mod unmap;
mod vm_memory;

use anyhow::Result;
use longshore_access::Space;

use crate::harness::clock::counter_hz;
use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};
use memory::Memory;

pub(crate) const BENCH: Bench =
    Bench { name: "access", goals: include_str!("../goals/access.json") };

pub(crate) fn measure(
    options: &CommonOptions,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    let memory = &Memory::new()?;
    environment.set("memory_pages", memory.pages());
    environment.set("counter_mhz", (counter_hz() / 1e6) as u64);
    environment.set("grace_periods_by", format!("{:?}", Space::new()?.barrier()));
    session.add_environment(environment)?;
    cases::run(options, memory, session)?;
    schemes::run(options, memory, session)?;
    unmap::run(options, memory, session)?;
    remap::run(options, memory, session)
}
