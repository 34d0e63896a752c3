//! `crates/memory/mem` and `crates/devices/pagetable` are for kernels and firmware too.

use anyhow::{Context, Result};

use crate::metadata::cargo;
use crate::repository::Repository;

/// The crates that build without their `std` feature.
const PACKAGES: [&str; 2] = ["longshore-mem", "longshore-pagetable"];

/// What cargo says where one of them does not.
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
