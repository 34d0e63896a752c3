//! The Python environment of the peers, which the bench creates.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::environment::disk_of;
use crate::harness::program::last_lines;
use crate::load::data::cache;

const BASE: &str = include_str!("../../../peers/requirements.txt");
const WITH_TORCH: &str = include_str!("../../../peers/requirements-torch.txt");
const OF_SERVERS: &str = include_str!("../../../peers/requirements-servers.txt");
const DRIVER: &str = include_str!("../../../peers/driver.py");

const OURS: &str = "longshore";
const OURS_SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bindings/python");

/// The index of torch without CUDA, a twentieth of the size in the Python Package Index.
const TORCH_INDEX: &str = "https://download.pytorch.org/whl/cpu";
/// The disk space of torch from the Python Package Index with its dependencies, and some reserve.
const TORCH_BYTES: u64 = 12 << 30;

/// Returns the packages and versions of a requirements file, which has one a line: `name==version`.
fn requirements(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once("=="))
}

/// The packages that a bench uses. All are installed in one environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packages {
    /// Those that need only numpy.
    Numpy,
    /// Also those that need torch.
    Torch,
    /// The clients of servers.
    Servers,
}

impl Packages {
    fn requirements(self) -> Vec<(&'static str, &'static str)> {
        let files: &[&'static str] = match self {
            Self::Numpy => &[BASE],
            Self::Torch => &[BASE, WITH_TORCH],
            Self::Servers => &[OF_SERVERS],
        };
        files.iter().flat_map(|text| requirements(text)).collect()
    }
}

/// The environment.
pub(crate) struct Venv {
    root: PathBuf,
    driver: PathBuf,
    /// The option of the bench that installs a missing package, if it was not given.
    option: Option<&'static str>,
    installed: BTreeMap<String, String>,
    failures: BTreeMap<&'static str, String>,
}

impl Venv {
    /// Creates the environment if there is none, and installs missing packages. A package that cannot be
    /// installed does not prevent the others.
    pub(crate) fn install(python: &Path, packages: Packages) -> Result<Self, String> {
        Self::try_install(python, packages).map_err(|error| format!("{error:#}"))
    }

    /// Opens the environment of an earlier run, and installs nothing.
    pub(crate) fn open() -> Result<Self, String> {
        let open = || -> Result<Self> {
            let root = cache()?.join("venv");
            ensure!(runs(&root), "the peers are not installed; run with --peers");
            let _lock = lock()?;
            let mut venv = Self::at(root)?;
            venv.option = Some("--peers");
            Ok(venv)
        };
        open().map_err(|error| format!("{error:#}"))
    }

    fn try_install(python: &Path, packages: Packages) -> Result<Self> {
        let _lock = lock()?;
        let root = cache()?.join("venv");
        if !runs(&root) {
            eprintln!("creating a Python environment for the peers");
            let mut make = Command::new(python);
            make.args(["-m", "venv", "--clear"]).arg(&root);
            output(&mut make).context("creating a Python environment")?;
        }
        let mut venv = Self::at(root)?;
        for (package, version) in packages.requirements() {
            if !venv.has(package, version)
                && let Err(error) = venv.install_one(package, version)
            {
                venv.failures.insert(package, format!("{error:#}"));
            }
        }
        if packages != Packages::Servers
            && let Err(error) = venv.install_ours()
        {
            venv.failures.insert(OURS, format!("{error:#}"));
        }
        venv.look()?;
        Ok(venv)
    }

    /// Writes the driver, and asks for the installed packages.
    fn at(root: PathBuf) -> Result<Self> {
        let driver = root.join("driver.py");
        fs::write(&driver, DRIVER)?;
        let (installed, failures) = (BTreeMap::new(), BTreeMap::new());
        let mut venv = Self { root, driver, option: None, installed, failures };
        venv.look()?;
        Ok(venv)
    }

    /// Returns the reason why a package is missing; `None` if it is installed.
    pub(super) fn why_missing(&self, package: &str) -> Option<String> {
        if let Some(why) = self.failures.get(package) {
            return Some(why.clone());
        }
        let hint = self.option.map_or(String::new(), |option| format!("; run with {option}"));
        let is_missing = !self.installed.contains_key(package);
        is_missing.then(|| format!("{package} is not installed{hint}"))
    }

    pub(super) fn versions(&self) -> Value {
        serde_json::json!(self.installed)
    }

    pub(super) fn python(&self) -> PathBuf {
        python_in(&self.root)
    }

    /// Returns the driver, to which the caller adds arguments.
    pub(super) fn driver(&self) -> Command {
        let mut command = Command::new(self.python());
        command.arg(&self.driver);
        command
    }

    /// Converts a file to a peer's own format.
    pub(super) fn convert(&self, peer: &str, from: &Path, into: &Path) -> Result<()> {
        eprintln!("converting the file for {peer}");
        let partial = into.with_extension("partial");
        let mut command = self.driver();
        command.arg("convert").arg(peer).arg(from).arg(&partial);
        output(&mut command).with_context(|| format!("converting the file for {peer}"))?;
        File::open(&partial)?.sync_all()?;
        Ok(fs::rename(&partial, into)?)
    }

    /// Builds and installs this project's own package as a user would. Later builds are incremental and
    /// take seconds.
    fn install_ours(&self) -> Result<()> {
        ensure!(
            Path::new(OURS_SOURCE).is_dir(),
            "its source folder is not where this program was built"
        );
        eprintln!("building this project's own package");
        let mut pip = self.pip_install(&["--no-deps", "--force-reinstall"]);
        output(pip.arg(OURS_SOURCE)).map(drop).context("pip: longshore")
    }

    /// Returns `true` if this version is installed, in any build of it (`2.15.0+cpu`).
    fn has(&self, package: &str, version: &str) -> bool {
        let installed = self.installed.get(package);
        installed.is_some_and(|installed| installed.split('+').next() == Some(version))
    }

    fn look(&mut self) -> Result<()> {
        let answer = output(self.driver().arg("versions"))?;
        self.installed = serde_json::from_slice(&answer.stdout)?;
        Ok(())
    }

    fn install_one(&self, package: &str, version: &str) -> Result<()> {
        let requirement = &format!("{package}=={version}");
        eprintln!("installing {requirement}");
        if package != "torch" {
            return self.pip(requirement, &[]);
        }
        // With its default settings, pip would try an unreachable index for a minute.
        let index = ["--index-url", TORCH_INDEX, "--retries", "1", "--timeout", "15"];
        if self.pip(requirement, &index).is_ok() {
            return Ok(());
        }
        let free_bytes = disk_of(&self.root)?.free_bytes;
        ensure!(
            free_bytes >= TORCH_BYTES,
            "torch needs {} GiB of disk, but only {} GiB are free",
            TORCH_BYTES >> 30,
            free_bytes >> 30
        );
        eprintln!("torch's own index could not be used; installing torch with CUDA (5 GB)");
        self.pip(requirement, &[])
    }

    fn pip(&self, requirement: &str, options: &[&str]) -> Result<()> {
        let mut pip = self.pip_install(options);
        output(pip.arg(requirement)).map(drop).with_context(|| format!("pip: {requirement}"))
    }

    fn pip_install(&self, options: &[&str]) -> Command {
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
        pip.args(options);
        pip
    }
}

/// Locks the environment: two benches must not install into one folder at once.
fn lock() -> Result<File> {
    let cache = cache()?;
    fs::create_dir_all(&cache)?;
    let lock = File::create(cache.join("venv.lock"))?;
    lock.lock()?;
    Ok(lock)
}

fn python_in(root: &Path) -> PathBuf {
    root.join("bin/python")
}

fn runs(root: &Path) -> bool {
    let python = python_in(root);
    python.exists() && output(Command::new(python).args(["-m", "pip", "--version"])).is_ok()
}

/// Runs a program to its end. If it fails, the error has the last lines of its output.
fn output(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let answer = command.output().with_context(|| format!("starting {name}"))?;
    let said = String::from_utf8_lossy(&answer.stderr);
    ensure!(answer.status.success(), "{name}: {}", last_lines(&said));
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_committed_line_is_a_pin() {
        for text in [BASE, WITH_TORCH, OF_SERVERS] {
            let is_pin = |line: &&str| !line.is_empty() && !line.starts_with('#');
            assert_eq!(requirements(text).count(), text.lines().filter(is_pin).count());
        }
    }

    #[test]
    fn the_files_agree_on_versions() {
        // They are installed into one environment.
        let torch = Packages::Torch.requirements();
        for (package, version) in Packages::Servers.requirements() {
            let other = torch.iter().find(|(name, _)| *name == package);
            assert!(other.is_none_or(|(_, other)| *other == version), "{package}");
        }
    }
}
