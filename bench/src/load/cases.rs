//! The cases of the bench, in the order in which they run.

mod attach;
mod model;
mod schemes;
mod small;

use anyhow::Result;

use crate::harness::Session;
use crate::load::Context;
use crate::load::guest;

pub(super) use schemes::{CASE as SCHEMES, OURS as SCHEMES_OURS};

/// The cases in which other programs take part.
pub(super) const WITH_PEERS: [&str; 5] =
    [model::COLD, model::PYTHON, model::WARM, small::IMPORT, small::FIRST_USE];

/// The size of a small file of the same kind, which every job loads once before the timing.
const REHEARSAL_BYTES: u64 = 1 << 20;
/// The library's name in rows.
const OURS: &str = "longshore";

/// Runs every case that the options select.
pub(super) fn run(context: &Context<'_>, session: &mut Session) -> Result<()> {
    model::run(context, session)?;
    small::run(context, session)?;
    attach::run(context, session)?;
    schemes::run(context, session)?;
    if context.options.guest {
        guest::run(context, session)?;
    }
    Ok(())
}
