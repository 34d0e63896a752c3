//! Checks that `crates/memory/mem` and `crates/devices/pagetable` build without `std`, because kernels and
//! firmware use them, too.

use anyhow::{Context, Result};

use crate::metadata::cargo;
use crate::repository::Repository;

/// The crates that build without their `std` feature.
const PACKAGES: [&str; 2] = ["longshore-mem", "longshore-pagetable"];

/// Returns the messages of cargo if one of them does not build.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let mut places = Vec::new();
    for package in PACKAGES {
        let output = cargo(&repository.root)
            .args(["check", "--quiet", "--package", package, "--no-default-features"])
            .output()
            .context("starting cargo")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            places.extend(said.lines().map(str::to_owned));
        }
    }
    Ok(places)
}
