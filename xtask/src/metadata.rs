//! What `cargo metadata` says, as far as the rules look at it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Where Longshore runs; what other systems would need is not looked at. As in `deny.toml`.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The packages of the workspace and all that they depend on.
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
    /// Where it comes from; `None` for a package of this tree.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A line of a package's `[dependencies]`, of whichever kind.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Its folder, for a package of this tree.
    pub(crate) path: Option<PathBuf>,
}

impl Metadata {
    /// Asks cargo about the workspace at `root`.
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
        serde_json::from_slice(&output.stdout).context("reading what cargo metadata wrote")
    }

    /// The packages of this tree.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.source.is_none())
    }
}

/// The cargo that runs this program, to be run in `root`.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}
