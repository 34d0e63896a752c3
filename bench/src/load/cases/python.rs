//! What Python adds to a load: `load_file` beside the command, and the import.

use anyhow::Result;

use super::Model;
use crate::harness::{Against, Candidate, Session};
use crate::load::Context;
use crate::load::metrics::{IMPORT, SPEED};
use crate::load::peers::{LONGSHORE, SAFETENSORS_NUMPY};
use crate::load::tools::{COMMAND, LoadCommand};

pub(super) const CASE: &str = "python";

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let machine = context.machine;
    let mut candidates: Vec<Box<dyn Candidate>> =
        vec![Box::new(LoadCommand::new(&model.file, machine))];
    for peer in [LONGSHORE, SAFETENSORS_NUMPY] {
        let (file, rehearsal) = (&model.file, &model.rehearsal);
        let folder = &context.folder;
        candidates.push(context.peers.candidate(peer, file, rehearsal, folder, machine, |job| job));
    }
    let measured = session.run(CASE, candidates);
    let against = |metric, baseline| Against { metric, baseline, only: None };
    let rows = measured
        .rows(session.bench(), &[against(SPEED, COMMAND), against(IMPORT, SAFETENSORS_NUMPY.name)]);
    session.publish(rows)
}
