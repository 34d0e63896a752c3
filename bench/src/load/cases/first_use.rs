//! From the start of a process to a small file in memory: what every call from a shell pays.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};

use super::REHEARSAL_BYTES;
use super::cold::OURS;
use crate::harness::subprocess::last_lines;
use crate::harness::{Against, Candidate, Sample, Session, Trouble};
use crate::load::Context;
use crate::load::metrics::TIME;
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
    let python = |peer: Peer, program: &str| {
        let command = context.peers.python_for(peer).map(|python| {
            let mut command = Command::new(python);
            command.args(["-c", program]);
            command
        });
        (peer.name, command)
    };
    let mut cat = Command::new("cat");
    cat.stdout(Stdio::null());
    let programs = [
        (OURS, longshore()?),
        (BASELINE, Ok(cat)),
        python(LONGSHORE, LONGSHORE_PROGRAM),
        python(SAFETENSORS_NUMPY, SAFETENSORS_PROGRAM),
        python(RUNAI, RUNAI_PROGRAM),
    ];
    let candidates = programs
        .into_iter()
        .map(|(name, command)| -> Box<dyn Candidate> {
            let command = command.map(|mut command| {
                command.arg(&file.path);
                command
            });
            Box::new(FirstUse { name, command, says_json: name == OURS })
        })
        .collect();
    let measured = session.run(CASE, candidates);
    let against = [Against { metric: TIME, baseline: BASELINE, only: None }];
    session.publish(measured.rows(session.bench(), &against))
}

struct FirstUse {
    name: &'static str,
    command: Result<Command, String>,
    /// Whether what it prints has to be JSON.
    says_json: bool,
}

impl Candidate for FirstUse {
    fn name(&self) -> &str {
        self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        let command = self.command.as_mut().map_err(|why| Trouble::NotRun(why.clone()))?;
        let began = Instant::now();
        // To the end of the process, which comes after the descriptor.
        let answer = command.stdin(Stdio::null()).output()?;
        let seconds = began.elapsed().as_secs_f64();
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr);
            return Err(anyhow!("{}: {}", answer.status, last_lines(&said)).into());
        }
        if self.says_json {
            serde_json::from_slice::<serde_json::Value>(&answer.stdout)
                .context("what it printed is no JSON")?;
        }
        Ok(vec![(TIME, seconds * 1e3)])
    }

    fn is_ours(&self) -> bool {
        self.name == OURS
    }
}
