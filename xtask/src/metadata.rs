//! The part of `cargo metadata` that the rules use.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The targets that Longshore supports, as in `deny.toml`; dependencies of other targets are ignored.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The packages of the workspace and all their dependencies.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

/// One version of a package.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) license: Option<String>,
    /// Its source, such as a registry; `None` for a package of this repository.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency of a package, of any kind.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Its folder, for a package of this repository.
    pub(crate) path: Option<PathBuf>,
}

impl Metadata {
    /// Runs `cargo metadata` for the workspace at `root`.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut command = cargo(root);
        command.args(["metadata", "--format-version", "1"]);
        for target in TARGETS {
            command.args(["--filter-platform", target]);
        }
        let output = command.output().context("starting cargo")?;
        ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        serde_json::from_slice(&output.stdout).context("parsing the output of cargo metadata")
    }

    /// Returns the packages of this repository.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.source.is_none())
    }
}

/// Returns a command that runs, in `root`, the cargo that started this program.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}
