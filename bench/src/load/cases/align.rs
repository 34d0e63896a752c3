//! What it costs to have every tensor at a multiple of something.

use anyhow::Result;

use super::Model;
use super::cold::OURS;
use crate::harness::metric::TIME_MS;
use crate::harness::{Against, Measure, Session};
use crate::load::Context;
use crate::load::timed::{Interest, TimedJob};
use crate::load::worker::Work;

pub(super) const CASE: &str = "align";

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let as_it_is =
        Work::Longshore { heap: "memfd".to_owned(), mode: "auto".to_owned(), read_size: None };
    let aligned = [("64", 64), ("4096", 4096), ("2M", 2 << 20)].map(|(word, alignment_bytes)| {
        (format!("{OURS}, align {word}"), Work::Aligned { alignment_bytes })
    });
    let candidates = std::iter::once((OURS.to_owned(), as_it_is))
        .chain(aligned)
        .map(|(name, work)| -> Box<dyn Measure> {
            let job =
                TimedJob::of_worker(name, work, &model.file, &model.rehearsal, context.machine);
            Box::new(job.interest(Interest::Time))
        })
        .collect();
    let measured = session.run(CASE, candidates);
    let against = [Against { metric: TIME_MS, baseline: OURS, only: None }];
    session.publish(measured.rows(session.bench(), &against))
}
