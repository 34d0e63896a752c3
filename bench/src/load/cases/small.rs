//! Whole processes with little work: a small file from a process's start to its end, and imports.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::{OURS, REHEARSAL_BYTES};
use crate::harness::metric::TIME_MS;
use crate::harness::{Against, Candidate, Run, Session, Trouble, program};
use crate::load::Context;
use crate::load::peers::{LONGSHORE, Peer, RUNAI, SAFETENSORS_NUMPY};
use crate::load::tools::longshore;

pub(super) const FIRST_USE: &str = "first-use";
pub(super) const IMPORT: &str = "python-import";

const RUNAI_PROGRAM: &str = "import sys\n\
    from runai_model_streamer import SafetensorsStreamer\n\
    with SafetensorsStreamer() as streamer:\n\
    \x20   streamer.stream_file(sys.argv[1])\n\
    \x20   dict(streamer.get_tensors())";

pub(super) fn run(context: &Context<'_>, session: &mut Session) -> Result<()> {
    if context.options.common.wants(FIRST_USE) {
        first_use(context, session)?;
    }
    if context.options.common.wants(IMPORT) {
        imports(context, session)?;
    }
    Ok(())
}

/// Measures the time that every call from a shell takes.
fn first_use(context: &Context<'_>, session: &mut Session) -> Result<()> {
    /// A process that only reads the file.
    const BASELINE: &str = "cat";
    let file = context.folder.safetensors_file(REHEARSAL_BYTES)?;
    let peers = &context.peers;
    let load_file = |peer: Peer| (peer.name, peers.load_file(peer));
    let programs = [
        (OURS, longshore()),
        (BASELINE, Ok(Command::new("cat"))),
        load_file(LONGSHORE),
        load_file(SAFETENSORS_NUMPY),
        (RUNAI.name, peers.python(RUNAI, RUNAI_PROGRAM)),
    ];
    let candidates = programs.map(|(name, command)| {
        let with_file = |mut command: Command| {
            command.arg(&file.path);
            command
        };
        process(name, command.map(with_file))
    });
    let against = [Against::new(TIME_MS, BASELINE)];
    session.compare(FIRST_USE, candidates.into(), &against)
}

/// Measures processes that only import a package, with warm files.
fn imports(context: &Context<'_>, session: &mut Session) -> Result<()> {
    /// The start and end of the interpreter alone.
    const NOTHING: &str = "nothing";
    let candidates = [
        (OURS, LONGSHORE, "import longshore"),
        ("longshore.numpy", LONGSHORE, "import longshore.numpy"),
        ("safetensors.numpy", SAFETENSORS_NUMPY, "import safetensors.numpy"),
        ("numpy", SAFETENSORS_NUMPY, "import numpy"),
        (NOTHING, SAFETENSORS_NUMPY, "pass"),
    ]
    .map(|(name, peer, program)| process(name, context.peers.python(peer, program)));
    let against = [
        Against::new(TIME_MS, NOTHING),
        Against::new(TIME_MS, "safetensors.numpy").only("longshore.numpy"),
    ];
    session.compare(IMPORT, candidates.into(), &against)
}

/// Makes a candidate of a program, or of the reason why it cannot run. The output of this project's
/// command must be JSON.
fn process(name: &'static str, command: Result<Command, String>) -> Candidate<'static> {
    let mut command = match command {
        Ok(command) => command,
        Err(why) => return Candidate::unable(name, why),
    };
    let candidate = Candidate::new(name, move || {
        let ended = program::run(&mut command)?;
        if name == OURS && !ended.stdout.is_empty() {
            serde_json::from_str::<serde_json::Value>(&ended.stdout)
                .context("its output is not JSON")?;
        }
        let sample = vec![(TIME_MS, ended.seconds * 1e3)];
        Ok::<_, Trouble>(Run { sample, note: None, cost: Some(ended.cost) })
    });
    if name.starts_with(OURS) { candidate.ours() } else { candidate }
}
