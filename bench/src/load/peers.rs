//! Other programs that load models, each in a Python process that times itself.

mod venv;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use crate::harness::Candidate;
use crate::load::data::{DataFile, Folder};
use crate::load::machine::{Machine, Start};
use crate::load::timed::of_program;
pub(crate) use venv::{Packages, Venv};

/// A program to compare with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The name in rows and in the driver.
    pub(crate) name: &'static str,
    /// The package that contains it.
    package: &'static str,
    needs_torch: bool,
    /// `true` if it reads only its own format, so that the file must be converted.
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

/// The clients of servers, which the bench `remote` uses.
pub(crate) const RUNAI_S3: Peer =
    Peer::of("runai-model-streamer S3", "runai-model-streamer-s3").with_torch();
pub(crate) const AWSCLI: Peer = Peer::of("aws s3 cp", "awscli");
pub(crate) const HUGGINGFACE_HUB: Peer = Peer::of("huggingface_hub", "huggingface_hub");

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

/// The peers of a run: their environment, or the reason why there is none.
pub(crate) struct Peers {
    venv: Result<Venv, String>,
    with_torch: bool,
}

impl Peers {
    /// Creates the environment and installs the packages.
    pub(crate) fn install(python: &Path, with_torch: bool) -> Self {
        let packages = if with_torch { Packages::Torch } else { Packages::Numpy };
        Self { venv: Venv::install(python, packages), with_torch }
    }

    /// Returns the clients of servers: creates the environment and installs the packages, or, without
    /// `installs`, uses those that are there.
    pub(crate) fn of_servers(python: &Path, installs: bool) -> Self {
        let venv = match installs {
            true => Venv::install(python, Packages::Servers),
            false => Venv::open(),
        };
        Self { venv, with_torch: true }
    }

    /// Returns a value without peers, with the reason.
    pub(crate) fn none(why: &str) -> Self {
        Self { venv: Err(why.to_owned()), with_torch: false }
    }

    /// Returns the versions of the installed packages.
    pub(crate) fn versions(&self) -> Option<Value> {
        self.venv.as_ref().ok().map(Venv::versions)
    }

    /// Returns a command that runs `program` in the interpreter that has `peer`.
    pub(crate) fn python(&self, peer: Peer, program: &str) -> Result<Command, String> {
        let venv = self.check(peer)?;
        let mut command = Command::new(venv.python());
        command.args(["-c", program]);
        Ok(command)
    }

    /// Returns a command that runs a program of the package of `peer`.
    pub(crate) fn script(&self, peer: Peer, program: &str) -> Result<Command, String> {
        let venv = self.check(peer)?;
        Ok(Command::new(venv.python().with_file_name(program)))
    }

    /// Returns the driver, to which the caller adds arguments, in the interpreter that has `peer`.
    pub(crate) fn driver(&self, peer: Peer) -> Result<Command, String> {
        self.check(peer).map(Venv::driver)
    }

    /// Returns a command that loads the file of its argument by the numpy `load_file` of `peer`'s
    /// package.
    pub(crate) fn load_file(&self, peer: Peer) -> Result<Command, String> {
        let package = peer.package;
        let load = format!("from {package}.numpy import load_file; load_file(sys.argv[1])");
        self.python(peer, &format!("import sys; {load}"))
    }

    /// Returns `peer` as a candidate. If it cannot run, the candidate gives the reason.
    pub(crate) fn candidate<'a>(
        &'a self,
        peer: Peer,
        (file, rehearsal): (&DataFile, &DataFile),
        folder: &Folder,
        on: (Machine, Start),
    ) -> Candidate<'a> {
        let input = self.check(peer).and_then(|venv| {
            let input = |file| input_for(venv, peer, file, folder);
            let both = input(file).and_then(|path| Ok((path, input(rehearsal)?)));
            both.map(|(path, rehearsal)| (venv, path, rehearsal))
                .map_err(|error| format!("{error:#}"))
        });
        let (venv, path, rehearsal) = match input {
            Err(why) => return Candidate::unable(peer.name, why),
            Ok(input) => input,
        };
        let read = path.clone();
        let command = move || {
            let mut command = venv.driver();
            command.arg("load").arg(peer.name).arg(&read).arg(&rehearsal);
            command
        };
        let candidate = of_program(peer.name, command, (path, file.len_bytes), on);
        if peer.is_ours { candidate.ours() } else { candidate }
    }

    fn check(&self, peer: Peer) -> Result<&Venv, String> {
        let venv = self.venv.as_ref().map_err(Clone::clone)?;
        if peer.needs_torch && !self.with_torch {
            return Err("it needs torch, which is installed only with --peers".to_owned());
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

/// Returns the file that a peer reads, which is converted if necessary.
fn input_for(venv: &Venv, peer: Peer, file: &DataFile, folder: &Folder) -> Result<PathBuf> {
    if !peer.own_format {
        return Ok(file.path.clone());
    }
    let name = file.path.file_name().unwrap_or_default().to_string_lossy();
    let into = folder.place(&format!("{name}.tensors"), file.len_bytes)?;
    if !into.exists() {
        venv.convert(peer.name, &file.path, &into)?;
    }
    Ok(into)
}
