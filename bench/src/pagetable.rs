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

use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};

pub(crate) const BENCH: Bench =
    Bench { name: "pagetable", goals: include_str!("../goals/pagetable.json") };

pub(crate) fn measure(
    options: &CommonOptions,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    environment.set("cleaned_with", ours::cleaned_with());
    session.add_environment(environment)?;
    cases::run(options, session)?;
    before_after::run(options, session)
}
