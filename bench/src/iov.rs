//! The bench `iov`: cursors, copies, checksums and digests.

mod bytes_per_clock;
mod code_size;
mod faults;
mod kinds;
mod published;
mod steps;
mod timed;

use anyhow::Result;

use crate::harness::environment::Environment;
use crate::harness::{Bench, CommonOptions, Session};

pub(crate) const BENCH: Bench = Bench { name: "iov", goals: include_str!("../goals/iov.json") };

pub(crate) fn measure(
    options: &CommonOptions,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    session.add_environment(environment)?;
    bytes_per_clock::run(options, session)?;
    steps::run(options, session)?;
    faults::run(options, session)?;
    kinds::run(options, session)?;
    code_size::run(options, session)
}
