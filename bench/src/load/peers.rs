//! Other programs that load models, each in a Python process that times itself.

mod requirement;
mod venv;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use crate::harness::{Measure, Sample, Trouble};
use crate::load::data::{DataFile, Folder};
use crate::load::machine::Machine;
use crate::load::timed::{Interest, TimedJob};
pub(crate) use venv::Venv;

/// A program to be compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// As rows and the driver call it.
    pub(crate) name: &'static str,
    /// The package it comes in.
    package: &'static str,
    needs_torch: bool,
    /// Its own format, which the file has to be converted to.
    own_format: bool,
    is_ours: bool,
}

pub(crate) const SAFETENSORS: Peer = Peer::of("safetensors", "safetensors").with_torch();
pub(crate) const SAFETENSORS_NUMPY: Peer = Peer::of("safetensors-numpy", "safetensors");
pub(crate) const READINTO: Peer = Peer::of("readinto", "numpy");
pub(crate) const MMAP_CLONE: Peer = Peer::of("mmap+clone", "numpy");
pub(crate) const RUNAI: Peer =
    Peer::of("runai-model-streamer", "runai-model-streamer").with_torch();
pub(crate) const FASTSAFETENSORS: Peer =
    Peer::of("fastsafetensors", "fastsafetensors").with_torch();
pub(crate) const TENSORIZER: Peer =
    Peer { own_format: true, ..Peer::of("tensorizer", "tensorizer").with_torch() };

/// This project's own package.
pub(crate) const LONGSHORE: Peer =
    Peer { is_ours: true, ..Peer::of("longshore, Python", "longshore") };

impl Peer {
    const fn of(name: &'static str, package: &'static str) -> Self {
        Self { name, package, needs_torch: false, own_format: false, is_ours: false }
    }

    const fn with_torch(self) -> Self {
        Self { needs_torch: true, ..self }
    }
}

/// The peers of a run: the environment they are installed in, or why there is none.
pub(crate) struct Peers {
    venv: Result<Venv, String>,
    with_torch: bool,
}

/// A file as a peer reads it.
struct Input {
    path: PathBuf,
    rehearsal: PathBuf,
}

impl Peers {
    /// Makes the environment and installs what is to be compared with.
    pub(crate) fn install(python: &Path, with_torch: bool) -> Self {
        Self { venv: Venv::install(python, with_torch), with_torch }
    }

    /// No peers, and why.
    pub(crate) fn none(why: &str) -> Self {
        Self { venv: Err(why.to_owned()), with_torch: false }
    }

    /// The versions of what is installed.
    pub(crate) fn versions(&self) -> Option<Value> {
        self.venv.as_ref().ok().map(Venv::versions)
    }

    /// The interpreter, for programs other than the driver.
    ///
    /// # Errors
    /// Why `peer` cannot run.
    pub(crate) fn python_for(&self, peer: Peer) -> Result<PathBuf, String> {
        self.check(peer).map(Venv::python)
    }

    /// `peer` as a candidate; one that cannot run says why when it is asked to.
    pub(crate) fn candidate<'a>(
        &'a self,
        peer: Peer,
        file: &DataFile,
        rehearsal: &DataFile,
        folder: &Folder,
        machine: Machine,
        set_up: impl FnOnce(TimedJob<'a>) -> TimedJob<'a>,
    ) -> Box<dyn Measure + 'a> {
        let input = self.check(peer).and_then(|venv| {
            input_for(venv, peer, file, rehearsal, folder)
                .map(|input| (venv, input))
                .map_err(|error| format!("{error:#}"))
        });
        match input {
            Err(why) => Box::new(Absent { name: peer.name, why }),
            Ok((venv, Input { path, rehearsal })) => {
                let read = path.clone();
                let command = move || {
                    let mut command = venv.driver();
                    command.arg("load").arg(peer.name).arg(&read).arg(&rehearsal);
                    Ok(command)
                };
                let job = TimedJob::of_program(peer.name, command, path, file.len_bytes, machine);
                let job = if peer.is_ours { job.ours() } else { job };
                Box::new(set_up(job.interest(Interest::Everything)))
            }
        }
    }

    fn check(&self, peer: Peer) -> Result<&Venv, String> {
        let venv = self.venv.as_ref().map_err(Clone::clone)?;
        if peer.needs_torch && !self.with_torch {
            return Err("it comes with torch, which is installed only with --peers".to_owned());
        }
        let packages = peer.needs_torch.then_some("torch").into_iter().chain([peer.package]);
        for package in packages {
            if let Some(why) = venv.why_missing(package) {
                return Err(why);
            }
        }
        Ok(venv)
    }
}

/// The file, converted if it has to be.
fn input_for(
    venv: &Venv,
    peer: Peer,
    file: &DataFile,
    rehearsal: &DataFile,
    folder: &Folder,
) -> Result<Input> {
    if !peer.own_format {
        return Ok(Input { path: file.path.clone(), rehearsal: rehearsal.path.clone() });
    }
    let convert = |from: &DataFile| -> Result<PathBuf> {
        let name = from.path.file_name().unwrap_or_default().to_string_lossy();
        let into = folder.place(&format!("{name}.tensors"), from.len_bytes)?;
        if !into.exists() {
            venv.convert(peer.name, &from.path, &into)?;
        }
        Ok(into)
    };
    Ok(Input { path: convert(file)?, rehearsal: convert(rehearsal)? })
}

/// A candidate that cannot run.
struct Absent {
    name: &'static str,
    why: String,
}

impl Measure for Absent {
    fn name(&self) -> &str {
        self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        Err(Trouble::NotRun(self.why.clone()))
    }
}
