//! The bench `pagetable`: map, unmap, look up and scan IO page tables.

mod before_after;
mod cases;
mod counts;
mod layout;
mod ours;
mod peers;
mod tables;
mod timed;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Pagetable {
    #[command(flatten)]
    common: CommonOptions,
}

impl Bench for Pagetable {
    const NAME: &'static str = "pagetable";
    const GOALS: &'static str = include_str!("../goals/pagetable.json");
    type Setting = ();

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn set_up(&self, environment: &mut Environment) -> Result<()> {
        environment.set("cleaned_with", ours::cleaned_with());
        Ok(())
    }

    fn measure(&self, (): &(), session: &mut Session) -> Result<()> {
        cases::run(&self.common, session)?;
        before_after::run(&self.common, session)
    }
}
