//! The bench `bounce`: mappings for devices, and the bounce buffers that spare them.
//!
//! ```text
//!   on the host, no device            in a guest, an NVMe behind each virtual IOMMU
//!   ─────────────────────             ──────────────────────────────────────────────
//!   Soft: map + unmap                 map + unmap for each transfer
//!   a bounce and its copies           against bounce, static buffers, the policy
//!   one thread, two                   throughput; instructions in map and unmap
//!   pool memory over a burst          the published table beside them
//! ```

mod guest;
mod host;
mod lines;
mod ours;
mod parts;
mod pool;
mod published;
mod trees;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bounce {
    #[command(flatten)]
    common: CommonOptions,
    /// Leave out the cases in the guest, as --quick does
    #[arg(long)]
    host_only: bool,
}

impl Bench for Bounce {
    const NAME: &'static str = "bounce";
    const GOALS: &'static str = include_str!("../goals/bounce.json");
    type Setting = ();

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn set_up(&self, _environment: &mut Environment) -> Result<()> {
        Ok(())
    }

    fn measure(&self, (): &(), session: &mut Session) -> Result<()> {
        host::run(&self.common, session)?;
        pool::run(&self.common, session)?;
        if self.host_only || self.common.quick {
            return Ok(());
        }
        guest::run(&self.common, session)
    }
}
