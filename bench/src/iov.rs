//! The bench `iov`: cursors, copies, checksums and digests.

mod bytes_per_clock;
mod code_size;
mod faults;
mod kinds;
mod published;
mod steps;
mod timed;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Iov {
    #[command(flatten)]
    common: CommonOptions,
}

impl Bench for Iov {
    const NAME: &'static str = "iov";
    const GOALS: &'static str = include_str!("../goals/iov.json");
    type Setting = ();

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn set_up(&self, _environment: &mut Environment) -> Result<()> {
        Ok(())
    }

    fn measure(&self, (): &(), session: &mut Session) -> Result<()> {
        bytes_per_clock::run(&self.common, session)?;
        steps::run(&self.common, session)?;
        faults::run(&self.common, session)?;
        kinds::run(&self.common, session)?;
        code_size::run(&self.common, session)
    }
}
