//! The bench `access`: reading and writing memory by IOVA, and what unmapping costs meanwhile.
//!
//! Every candidate makes the same accesses to the same addresses of this process, one after the
//! other, by its own way from an address that a device would use:
//!
//! ```text
//!   accesses (a list)      an accessor for each candidate          memory, 1 GiB
//!   ┌──────────────────┐   ┌──────────────────────────────┐
//!   │ place, len, dir  │──►│ ours: IOVA, session          │──┐   pieces in an arbitrary
//!   │                  │   │ vm-memory: guest address     │──┼─► order, so that adjacent
//!   │                  │   │ IOMMU memory: IOVA           │──┤   ones do not make a run
//!   │                  │   │ plain copy: the host address │──┘
//!   └──────────────────┘   └──────────────────────────────┘
//! ```

mod accessor;
mod cases;
mod memory;
pub(crate) mod other;
mod ours;
mod plain;
mod published;
pub(crate) mod random;
mod remap;
mod schemes;
mod stream;
mod timed;
mod unmap;
mod vm_memory;

use anyhow::Result;
use clap::Args;
use longshore_access::Space;

use crate::harness::clock::counter_hz;
use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};
use memory::Memory;

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Access {
    #[command(flatten)]
    common: CommonOptions,
}

impl Bench for Access {
    const NAME: &'static str = "access";
    const GOALS: &'static str = include_str!("../goals/access.json");
    type Setting = Memory;

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn set_up(&self, environment: &mut Environment) -> Result<Memory> {
        let memory = Memory::new()?;
        environment.set("memory_pages", memory.pages());
        environment.set("counter_mhz", (counter_hz() / 1e6) as u64);
        environment.set("grace_periods_by", format!("{:?}", Space::new()?.barrier()));
        Ok(memory)
    }

    fn measure(&self, memory: &Memory, session: &mut Session) -> Result<()> {
        cases::run(&self.common, memory, session)?;
        schemes::run(&self.common, memory, session)?;
        unmap::run(&self.common, memory, session)?;
        remap::run(&self.common, memory, session)
    }
}
