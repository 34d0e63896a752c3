//! What the size of the pages means for direct reads.

use anyhow::Result;

use super::Model;
use crate::harness::metric::SPEED;
use crate::harness::{Against, Measure, Session};
use crate::load::Context;
use crate::load::timed::{Interest, TimedJob};
use crate::load::worker::Work;

pub(super) const CASE: &str = "page-size";
const BASE_PAGES: &str = "memfd:4k";

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let candidates = ["memfd", BASE_PAGES]
        .into_iter()
        .map(|heap| -> Box<dyn Measure> {
            let work = Work::Longshore {
                heap: heap.to_owned(),
                mode: "direct".to_owned(),
                read_size: None,
            };
            let job =
                TimedJob::of_worker(heap, work, &model.file, &model.rehearsal, context.machine);
            Box::new(job.interest(Interest::Speed))
        })
        .collect();
    let measured = session.run(CASE, candidates);
    let against = [Against { metric: SPEED, baseline: BASE_PAGES, only: None }];
    session.publish(measured.rows(session.bench(), &against))
}
