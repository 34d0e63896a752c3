//! The gain of prefaulting pages while reading.

use anyhow::Result;

use super::Model;
use super::cold::OURS;
use crate::harness::metric::SPEED;
use crate::harness::{Against, Measure, Session};
use crate::load::Context;
use crate::load::timed::{Interest, TimedJob};
use crate::load::worker::Work;

pub(super) const CASE: &str = "overlap";
const IN_TURN: &str = "allocate, then read";

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let direct =
        Work::Longshore { heap: "memfd".to_owned(), mode: "direct".to_owned(), read_size: None };
    let candidates = [(OURS, direct), (IN_TURN, Work::AllocateThenRead)]
        .into_iter()
        .map(|(name, work)| -> Box<dyn Measure> {
            let job =
                TimedJob::of_worker(name, work, &model.file, &model.rehearsal, context.machine);
            Box::new(job.interest(Interest::Speed))
        })
        .collect();
    let measured = session.run(CASE, candidates);
    let against = [Against { metric: SPEED, baseline: IN_TURN, only: None }];
    session.publish(measured.rows(session.bench(), &against))
}
