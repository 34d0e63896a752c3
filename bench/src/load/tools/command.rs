//! The command of this project, which is built beside this program.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::harness::metric::SPEED;
use crate::harness::subprocess::last_lines;
use crate::harness::{Measure, Sample, Trouble};
use crate::load::data::DataFile;
use crate::load::machine::{Machine, Start};
use crate::load::timed::memory_bytes;
use crate::load::units::gigabytes_per_second;

pub(crate) const NAME: &str = "longshore, command";

/// `longshore load --json`, to which files are added; or why there is none.
///
/// # Errors
/// Where this program does not know where it is.
pub(crate) fn longshore() -> Result<Result<Command, String>> {
    let here = std::env::current_exe().context("finding this program")?;
    let program: PathBuf = here.with_file_name("longshore");
    if !program.is_file() {
        let how = "there is no `longshore` beside this program; build it with \
                   `cargo build --release -p longshore-cli`";
        return Ok(Err(how.to_owned()));
    }
    let mut command = Command::new(program);
    command.args(["load", "--json"]).stdin(Stdio::null());
    Ok(Ok(command))
}

/// A cold load by the command, as fast as it says itself: the process's end, which gives the memory
/// back, is not in it.
pub(crate) struct LoadCommand {
    file: DataFile,
    machine: Machine,
}

impl LoadCommand {
    pub(crate) fn new(file: &DataFile, machine: Machine) -> Self {
        Self { file: file.clone(), machine }
    }
}

impl Measure for LoadCommand {
    fn name(&self) -> &str {
        NAME
    }

    fn measure(&mut self) -> std::result::Result<Sample, Trouble> {
        let mut command = longshore()?.map_err(Trouble::NotRun)?;
        self.machine.prepare(&self.file.path, Start::Cold, memory_bytes(self.file.len_bytes))?;
        let answer = command.args(["--heap", "memfd"]).arg(&self.file.path).output()?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr);
            return Err(anyhow!("{}: {}", answer.status, last_lines(&said)).into());
        }
        let said: Value = serde_json::from_slice(&answer.stdout).context("it said no JSON")?;
        let seconds = said["seconds"].as_f64().context("it did not say how long it took")?;
        Ok(vec![(SPEED, gigabytes_per_second(self.file.len_bytes, seconds))])
    }

    fn is_ours(&self) -> bool {
        true
    }
}
