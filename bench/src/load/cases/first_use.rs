//! From the start of a process to a small file in memory: what every call from a shell pays.

use std::process::{Command, Stdio};

use anyhow::Result;

use super::REHEARSAL_BYTES;
use super::cold::OURS;
use super::process::{Process, python};
use crate::harness::metric::TIME_MS;
use crate::harness::{Against, Measure, Session};
use crate::load::Context;
use crate::load::peers::{LONGSHORE, Peer, RUNAI, SAFETENSORS_NUMPY};
use crate::load::tools::longshore;

pub(super) const CASE: &str = "first-use";
/// A process that reads the file and nothing more.
const BASELINE: &str = "cat";

const LONGSHORE_PROGRAM: &str =
    "import sys; from longshore.numpy import load_file; load_file(sys.argv[1])";
const SAFETENSORS_PROGRAM: &str =
    "import sys; from safetensors.numpy import load_file; load_file(sys.argv[1])";
const RUNAI_PROGRAM: &str = "import sys\n\
    from runai_model_streamer import SafetensorsStreamer\n\
    with SafetensorsStreamer() as streamer:\n\
    \x20   streamer.stream_file(sys.argv[1])\n\
    \x20   dict(streamer.get_tensors())";

pub(super) fn run(context: &Context, session: &mut Session) -> Result<()> {
    let file = context.folder.safetensors_file(REHEARSAL_BYTES)?;
    let peer = |peer: Peer, program| (peer.name, python(context, peer, program));
    let mut cat = Command::new("cat");
    cat.stdout(Stdio::null());
    let programs = [
        (OURS, longshore()?),
        (BASELINE, Ok(cat)),
        peer(LONGSHORE, LONGSHORE_PROGRAM),
        peer(SAFETENSORS_NUMPY, SAFETENSORS_PROGRAM),
        peer(RUNAI, RUNAI_PROGRAM),
    ];
    let candidates = programs
        .into_iter()
        .map(|(name, command)| -> Box<dyn Measure> {
            let command = command.map(|mut command| {
                command.arg(&file.path);
                command
            });
            Box::new(Process { name, command, says_json: name == OURS })
        })
        .collect();
    let measured = session.run(CASE, candidates);
    let against = [Against { metric: TIME_MS, baseline: BASELINE, only: None }];
    session.publish(measured.rows(session.bench(), &against))
}
