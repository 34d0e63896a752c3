//! Which reads this disk likes best: what the library's defaults were taken from.

use anyhow::Result;

use super::Model;
use crate::harness::metric::SPEED;
use crate::harness::{Against, Measure, Session};
use crate::load::Context;
use crate::load::timed::{Interest, TimedJob};
use crate::load::worker::Work;

pub(super) const CASE: &str = "tuning";
const DEFAULTS: &str = "defaults";
const READS_MIB: [u64; 4] = [2, 4, 8, 16];
const DEPTHS: [u32; 4] = [2, 4, 8, 16];

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let candidate = |name: String, read_size: Option<(u64, u32)>| -> Box<dyn Measure> {
        let work =
            Work::Longshore { heap: "memfd".to_owned(), mode: "direct".to_owned(), read_size };
        let job = TimedJob::of_worker(name, work, &model.file, &model.rehearsal, context.machine);
        Box::new(job.interest(Interest::Speed))
    };
    let grid = READS_MIB.into_iter().flat_map(|mib| DEPTHS.map(|depth| (mib, depth)));
    let candidates = [candidate(DEFAULTS.to_owned(), None)]
        .into_iter()
        .chain(grid.map(|(mib, depth)| {
            candidate(format!("{mib} MiB x {depth}"), Some((mib << 20, depth)))
        }))
        .collect();
    let measured = session.run(CASE, candidates);
    let against = [Against { metric: SPEED, baseline: DEFAULTS, only: None }];
    session.publish(measured.rows(session.bench(), &against))
}
