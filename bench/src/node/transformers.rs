//! transformers, which loads a Llama of 1.1 GB and computes one forward pass on the CPU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use super::place::Place;
use super::server::Server;
use super::ways::{COPIED, FROM_DISK, OTHER_BYTES, PUBLISHED, bring};
use crate::harness::metric::{PAGE_CACHE, TIME_MS};
use crate::harness::program;
use crate::harness::{Against, Candidate, CommonOptions, Run, Session, Trouble};
use crate::load::data::Folder;
use crate::load::machine::{Machine, Start, require_memory, resident_bytes};
use crate::load::units::mebibytes;

const DRIVER: &str = include_str!("../../peers/llama.py");
const COLD: &str = "transformers, cold";
const SECOND: &str = "transformers, second process";
const PATCHED: &str = "longshore attached, patch_safetensors";
/// The layers and the width of the model, and the limit on its size.
const MODEL: (u32, u32, u64) = (8, 2048, 1200 << 20);
const MODEL_QUICK: (u32, u32, u64) = (1, 256, 8 << 20);

/// A Python interpreter that has torch, transformers and this project's package.
pub(super) struct Transformers {
    python: Option<PathBuf>,
}

impl Transformers {
    pub(super) fn new(python: Option<&Path>) -> Self {
        Self { python: python.map(Path::to_owned) }
    }

    pub(super) fn version(&self) -> Option<String> {
        let code = "import torch, transformers, longshore as l; \
                    print(f'{transformers.__version__}, torch {torch.__version__}')";
        let output = Command::new(self.python.as_ref()?).args(["-c", code]).output().ok()?;
        let version = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| version.trim().to_owned())
    }
}

pub(super) fn measure(
    transformers: &Transformers,
    common: &CommonOptions,
    folder: &Folder,
    machine: Machine,
    place: &Place,
    session: &mut Session,
) -> Result<()> {
    let cases: Vec<_> = [COLD, SECOND].into_iter().filter(|case| common.wants(case)).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let python = match (&transformers.python, transformers.version()) {
        (Some(python), Some(_)) => python,
        (python, _) => {
            let why = match python {
                None => "no Python with transformers was named (--transformers)".to_owned(),
                Some(python) => {
                    format!("{} cannot import torch, transformers and longshore", python.display())
                }
            };
            for case in cases {
                session.not_run(case, PUBLISHED, &why)?;
            }
            return Ok(());
        }
    };
    let (layers, width, len_bytes) = if common.quick { MODEL_QUICK } else { MODEL };
    let model = Model::make(python, folder, (layers, width), len_bytes)?;
    for case in cases {
        let candidates = [FROM_DISK, COPIED, PUBLISHED, PATCHED].map(|name| {
            let model = &model;
            let candidate = Candidate::new(name, move || {
                let run = model.run(case, name, machine, place);
                place.clear()?;
                run
            });
            if [PUBLISHED, PATCHED].contains(&name) { candidate.ours() } else { candidate }
        });
        let rules = [Against::new(TIME_MS, FROM_DISK), Against::new(TIME_MS, COPIED)];
        session.compare(case, candidates.into(), &rules)?;
    }
    Ok(())
}

/// A model directory, and the interpreter that uses it.
struct Model<'a> {
    python: &'a Path,
    directory: PathBuf,
    weights: PathBuf,
    len_bytes: u64,
    logits: String,
}

impl Drop for Model<'_> {
    fn drop(&mut self) {
        // The next run makes it again.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl<'a> Model<'a> {
    fn make(
        python: &'a Path,
        folder: &Folder,
        (layers, width): (u32, u32),
        len_bytes: u64,
    ) -> Result<Self> {
        let directory = folder.place("llama", len_bytes)?;
        let _ = std::fs::remove_dir_all(&directory);
        eprintln!("creating a model with transformers");
        let mut command = driver(python, "make", &directory);
        command.args([layers.to_string(), width.to_string()]);
        program::run(&mut command).map_err(|trouble| anyhow::anyhow!("{trouble}"))?;
        let weights = directory.join("model.safetensors");
        let len_bytes = weights.metadata().context("transformers has written no weights")?.len();
        std::fs::File::open(&weights)?.sync_all()?;
        let mut model = Self { python, directory, weights, len_bytes, logits: String::new() };
        model.logits = model
            .forward(&model.directory, None)
            .map_err(|trouble| anyhow::anyhow!("{trouble}"))?
            .1;
        Ok(model)
    }

    fn run(&self, case: &str, name: &str, machine: Machine, place: &Place) -> Result<Run, Trouble> {
        require_memory(self.len_bytes * 3 + OTHER_BYTES)?;
        let is_warm = case == SECOND && name == FROM_DISK;
        let start = if is_warm { Start::Warm } else { Start::Cold };
        machine.prepare(&self.weights, start, self.len_bytes + OTHER_BYTES)?;
        let began = Instant::now();
        let server = match name {
            PATCHED => Some(Server::start(&self.weights, place)?),
            _ => None,
        };
        let directory = match name {
            PATCHED => self.directory.clone(),
            _ => bring(name, &self.directory, place)?,
        };
        let seconds_before = if case == COLD { began.elapsed().as_secs_f64() } else { 0.0 };
        let socket = server.as_ref().map(|server| server.socket.as_path());
        let (mut run, logits) = self.forward(&directory, socket)?;
        if logits != self.logits {
            return Err(
                anyhow::anyhow!("the logits differ from those of the file on the disk").into()
            );
        }
        run.sample[0].1 += seconds_before * 1e3;
        let cached = resident_bytes(&self.weights)?.cast_signed();
        run.sample.push((PAGE_CACHE, mebibytes(cached)));
        Ok(run)
    }

    /// Loads the model and computes the logits. Returns the time of both.
    fn forward(&self, directory: &Path, socket: Option<&Path>) -> Result<(Run, String), Trouble> {
        let mut command = driver(self.python, "forward", directory);
        let ended = program::run(command.args(socket))?;
        let said: Value = serde_json::from_str(&ended.stdout).context("its output is not JSON")?;
        let seconds = said["seconds"].as_f64().context("its output has no time")?;
        let logits = said["logits"].as_str().context("its output has no hash")?;
        let sample = vec![(TIME_MS, seconds * 1e3)];
        Ok((Run { sample, note: None, cost: Some(ended.cost) }, logits.to_owned()))
    }
}

fn driver(python: &Path, action: &str, directory: &Path) -> Command {
    let mut command = Command::new(python);
    command.env("HF_HUB_OFFLINE", "1").args(["-c", DRIVER, action]).arg(directory);
    command
}
