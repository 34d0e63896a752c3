//! The bench `bounce`: mappings for devices, and bounce buffers that replace them.
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
mod trees;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bounce {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    /// Leave out the cases in the guest, as --quick does
    #[arg(long)]
    host_only: bool,
}

pub(crate) const BENCH: Bench =
    Bench { name: "bounce", goals: include_str!("../goals/bounce.json") };

pub(crate) fn measure(
    Bounce { common, host_only }: &Bounce,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    session.add_environment(environment)?;
    host::run(common, session)?;
    pool::run(common, session)?;
    if *host_only || common.quick {
        return Ok(());
    }
    guest::run(common, session)
}
