//! llama.cpp, with a model from the page cache and with a published one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::place::Place;
use super::server::Server;
use super::ways::{ATTACHED, COPIED, FROM_DISK, OTHER_BYTES, PUBLISHED, bring};
use crate::harness::metric::{TIME_MS, TOKEN_RATE};
use crate::harness::program;
use crate::harness::{Against, Candidate, CommonOptions, Run, Session, Trouble};
use crate::load::data::Folder;
use crate::load::machine::{Machine, Start, require_memory};
use crate::load::tools;

const SIZE_BYTES: u64 = 2 << 30;
const SIZE_QUICK_BYTES: u64 = 64 << 20;
/// The cases, with the number of generated tokens.
const CASES: [(&str, u32); 2] = [("llama.cpp, one thread", 24), ("llama.cpp, start", 1)];

/// The program `llama-bench`.
pub(super) struct Llama {
    program: PathBuf,
    version: Option<String>,
}

impl Llama {
    pub(super) fn find(program: &Path) -> Self {
        let output = Command::new(program).arg("--version").output().ok();
        let text = output.map(|it| [it.stdout, it.stderr].concat());
        let text = text.map(|it| String::from_utf8_lossy(&it).into_owned());
        let line = text.as_deref().and_then(|it| it.lines().find(|line| line.contains("version")));
        Self { program: program.to_owned(), version: line.map(str::to_owned) }
    }

    pub(super) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Generates tokens on one thread. Returns tokens per second, and the seconds of the whole program.
    fn generate(&self, model: &Path, count: u32) -> Result<Run, Trouble> {
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(model).args(["-p", "0", "-r", "1", "-t", "1", "-o", "json"]);
        let ended = program::run(command.args(["--no-warmup", "-n", &count.to_string()]))?;
        let json = ended.stdout.find('[').map(|start| &ended.stdout[start..]);
        let said: Value = serde_json::from_str(json.context("its output is not JSON")?)?;
        let rate = said[0]["avg_ts"].as_f64().context("its output has no rate")?;
        let sample = vec![(TOKEN_RATE, rate), (TIME_MS, ended.seconds * 1e3)];
        Ok(Run { sample, note: None, cost: Some(ended.cost) })
    }
}

pub(super) fn measure(
    llama: &Llama,
    common: &CommonOptions,
    folder: &Folder,
    machine: Machine,
    place: &Place,
    session: &mut Session,
) -> Result<()> {
    let cases = CASES.iter().filter(|(case, _)| common.wants(case));
    if llama.version.is_none() {
        for (case, _) in cases {
            let why = format!("{} is not installed (--llama-bench)", llama.program.display());
            session.not_run(case, PUBLISHED, &why)?;
        }
        return Ok(());
    }
    let size_bytes = if common.quick { SIZE_QUICK_BYTES } else { SIZE_BYTES };
    let model = folder.place(&format!("{size_bytes}.gguf"), size_bytes)?;
    if !model.exists() {
        let mut command = tools::own_command().map_err(anyhow::Error::msg)?;
        command.args(["make-model", "--size", &size_bytes.to_string()]).arg(&model);
        program::run(&mut command).map_err(|trouble| anyhow::anyhow!("{trouble}"))?;
    }
    for (case, count) in cases {
        let candidates = [FROM_DISK, COPIED, PUBLISHED, ATTACHED].map(|name| {
            let model = &model;
            let candidate = Candidate::new(name, move || {
                require_memory(size_bytes * 2 + OTHER_BYTES)?;
                let start = if name == FROM_DISK { Start::Warm } else { Start::Cold };
                // llama.cpp copies most matrices into another layout.
                machine.prepare(model, start, size_bytes * 2 + OTHER_BYTES)?;
                let server = match name {
                    ATTACHED => Some(Server::start(model, place)?),
                    _ => None,
                };
                let path = match &server {
                    Some(server) => server.path.clone(),
                    None => bring(name, model, place)?,
                };
                let run = llama.generate(&path, *count)?;
                drop(server);
                place.clear()?;
                Ok::<_, Trouble>(run)
            });
            if [PUBLISHED, ATTACHED].contains(&name) { candidate.ours() } else { candidate }
        });
        let rules = [
            Against::new(TOKEN_RATE, FROM_DISK),
            Against::new(TOKEN_RATE, COPIED),
            Against::new(TIME_MS, FROM_DISK),
        ];
        session.compare(case, candidates.into(), &rules)?;
    }
    folder.discard(&model);
    Ok(())
}
