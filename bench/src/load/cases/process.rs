//! Programs whose whole time counts.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, anyhow};

use super::cold::OURS;
use crate::harness::metric::TIME_MS;
use crate::harness::subprocess::last_lines;
use crate::harness::{Measure, Sample, Trouble};
use crate::load::Context;
use crate::load::peers::Peer;

/// A program from its start to its end, which comes after all it was to do.
pub(super) struct Process {
    pub(super) name: &'static str,
    /// Why it cannot be run, where it cannot.
    pub(super) command: Result<Command, String>,
    /// Whether what it prints has to be JSON.
    pub(super) says_json: bool,
}

/// A program in the Python that has `peer`.
pub(super) fn python(context: &Context, peer: Peer, program: &str) -> Result<Command, String> {
    context.peers.python_for(peer).map(|python| {
        let mut command = Command::new(python);
        command.args(["-c", program]);
        command
    })
}

impl Measure for Process {
    fn name(&self) -> &str {
        self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        let command = self.command.as_mut().map_err(|why| Trouble::NotRun(why.clone()))?;
        let began = Instant::now();
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
        Ok(vec![(TIME_MS, seconds * 1e3)])
    }

    fn is_ours(&self) -> bool {
        self.name.starts_with(OURS)
    }
}
