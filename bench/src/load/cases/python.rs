//! What Python adds to a load: `load_file` beside the command, and the import.

use anyhow::Result;

use super::Model;
use super::process::{Process, python};
use crate::harness::metric::{IMPORT, SPEED, TIME_MS};
use crate::harness::{Against, Measure, Session};
use crate::load::Context;
use crate::load::peers::{LONGSHORE, SAFETENSORS_NUMPY};
use crate::load::tools::{COMMAND, LoadCommand};

pub(super) const CASE: &str = "python";

pub(super) const IMPORT_CASE: &str = "python-import";
/// What an interpreter takes by itself.
const NOTHING: &str = "nothing";

/// Whole processes that import a package and nothing more, out of the page cache.
pub(super) fn run_imports(context: &Context, session: &mut Session) -> Result<()> {
    let programs = [
        ("longshore", LONGSHORE, "import longshore"),
        ("longshore.numpy", LONGSHORE, "import longshore.numpy"),
        ("safetensors.numpy", SAFETENSORS_NUMPY, "import safetensors.numpy"),
        ("numpy", SAFETENSORS_NUMPY, "import numpy"),
        (NOTHING, SAFETENSORS_NUMPY, "pass"),
    ];
    let candidate = |(name, peer, program)| -> Box<dyn Measure> {
        Box::new(Process { name, command: python(context, peer, program), says_json: false })
    };
    let measured = session.run(IMPORT_CASE, programs.map(candidate).into());
    let against = [
        Against { metric: TIME_MS, baseline: NOTHING, only: None },
        Against { metric: TIME_MS, baseline: "safetensors.numpy", only: Some("longshore.numpy") },
    ];
    session.publish(measured.rows(session.bench(), &against))
}

pub(super) fn run(context: &Context, model: &Model, session: &mut Session) -> Result<()> {
    let machine = context.machine;
    let mut candidates: Vec<Box<dyn Measure>> =
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
