//! A model that is not in the page cache, beside the disk's limit and other programs.

use anyhow::Result;

use super::Model;
use crate::harness::metric::{IMPORT, PAGE_CACHE, PEAK_OVER_FILE, SPEED};
use crate::harness::{Against, Measure, Measured, Session};
use crate::load::Context;
use crate::load::peers::{
    FASTSAFETENSORS, Peer, RUNAI, SAFETENSORS, SAFETENSORS_NUMPY, TENSORIZER,
};
use crate::load::timed::{Interest, TimedJob};
use crate::load::tools::{Dd, Fio};
use crate::load::worker::Work;

pub(super) const CASE: &str = "cold";
pub(super) const OURS: &str = "longshore";

/// The limit: in each round the better of two block sizes, because which one a disk likes better
/// changes from one minute to the next. A limit that is picked so can only be too high.
const LIMIT: &str = "fio";
const LIMIT_BLOCKS_MIB: [u64; 2] = [4, 8];
const BEST_PEER: &str = "best peer";
const PEERS: [Peer; 5] = [SAFETENSORS, SAFETENSORS_NUMPY, RUNAI, FASTSAFETENSORS, TENSORIZER];

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let machine = context.machine;
    let ours = |name: &str, work: Work, interest: Interest| -> Box<dyn Measure> {
        let job = TimedJob::of_worker(name, work, &model.file, &model.rehearsal, machine);
        Box::new(job.interest(interest))
    };
    let auto =
        Work::Longshore { heap: "memfd".to_owned(), mode: "auto".to_owned(), read_size: None };
    let mut candidates = vec![
        ours(OURS, auto, Interest::Everything),
        ours("direct loop", Work::DirectLoop, Interest::Speed),
        Box::new(Dd::new(&model.file, machine)),
    ];
    for block_mib in LIMIT_BLOCKS_MIB {
        candidates.push(Box::new(Fio::new(block_mib, &model.file, machine)));
    }
    for peer in PEERS {
        candidates.push(context.peers.candidate(
            peer,
            &model.file,
            &model.rehearsal,
            &context.folder,
            machine,
            |job| job,
        ));
    }
    let mut measured = session.run(CASE, candidates);

    let blocks = LIMIT_BLOCKS_MIB.map(Fio::name_for);
    let blocks: Vec<&str> = blocks.iter().map(String::as_str).collect();
    measured.add_best_of(LIMIT, &blocks, SPEED);
    measured.add_best_of(BEST_PEER, &PEERS.map(|peer| peer.name), SPEED);
    if let Some(why) = why_not_measured(&measured) {
        measured.set_not_measured(why);
    }
    let against = |metric, baseline, only| Against { metric, baseline, only };
    let rows = measured.rows(
        session.bench(),
        &[
            against(SPEED, LIMIT, None),
            against(SPEED, "direct loop", Some(OURS)),
            against(SPEED, BEST_PEER, Some(OURS)),
            against(SPEED, SAFETENSORS.name, Some(OURS)),
            against(PAGE_CACHE, SAFETENSORS.name, None),
            against(PEAK_OVER_FILE, SAFETENSORS.name, None),
            against(IMPORT, SAFETENSORS.name, None),
        ],
    );
    session.publish(rows)
}

/// A cold figure counts only beside the disk's limit and the fastest peer known.
fn why_not_measured(measured: &Measured) -> Option<String> {
    [LIMIT, RUNAI.name]
        .into_iter()
        .find_map(|name| measured.why_not(name).map(|why| format!("{name} did not run: {why}")))
}
