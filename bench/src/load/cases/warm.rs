//! A model that is in the page cache, beside a copy in memory and other programs.

use anyhow::Result;

use super::Model;
use super::cold::OURS;
use crate::harness::metric::{IMPORT, PAGE_CACHE, PEAK_OVER_FILE, SPEED};
use crate::harness::{Against, Measure, Session};
use crate::load::Context;
use crate::load::machine::Start;
use crate::load::peers::{MMAP_CLONE, Peer, READINTO, RUNAI, SAFETENSORS_NUMPY};
use crate::load::timed::{Interest, TimedJob};
use crate::load::worker::Work;

pub(super) const CASE: &str = "warm";
/// One copy by two threads into memory that exists: the most that memory gives.
const COPY_POPULATED: &str = "memcpy, populated";
/// The same into pages that are made on the way: the most that a load into new memory can give.
const COPY_FRESH: &str = "memcpy, fresh pages";
const PEERS: [Peer; 4] = [READINTO, MMAP_CLONE, SAFETENSORS_NUMPY, RUNAI];

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let machine = context.machine;
    let ours = |name: &str, work: Work, interest: Interest| -> Box<dyn Measure> {
        let job = TimedJob::of_worker(name, work, &model.file, &model.rehearsal, machine);
        Box::new(job.start(Start::Warm).interest(interest))
    };
    let auto =
        Work::Longshore { heap: "memfd".to_owned(), mode: "auto".to_owned(), read_size: None };
    let mut candidates = vec![
        ours(OURS, auto, Interest::Everything),
        ours(COPY_POPULATED, Work::MemoryCopy { fresh: false }, Interest::Speed),
        ours(COPY_FRESH, Work::MemoryCopy { fresh: true }, Interest::Speed),
    ];
    for peer in PEERS {
        candidates.push(context.peers.candidate(
            peer,
            &model.file,
            &model.rehearsal,
            &context.folder,
            machine,
            |job| job.start(Start::Warm),
        ));
    }
    let measured = session.run(CASE, candidates);
    let rows = measured.rows(
        session.bench(),
        &[
            Against { metric: SPEED, baseline: COPY_POPULATED, only: None },
            Against { metric: SPEED, baseline: COPY_FRESH, only: Some(OURS) },
            Against { metric: PAGE_CACHE, baseline: SAFETENSORS_NUMPY.name, only: None },
            Against { metric: PEAK_OVER_FILE, baseline: SAFETENSORS_NUMPY.name, only: None },
            Against { metric: IMPORT, baseline: SAFETENSORS_NUMPY.name, only: None },
        ],
    );
    session.publish(rows)
}
