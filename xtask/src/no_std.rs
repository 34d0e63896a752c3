//! `crates/mem` is for kernels and firmware too.

use anyhow::{Context, Result};

use crate::metadata::cargo;
use crate::repository::Repository;

/// What cargo says where the crate does not build without its `std` feature.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let output = cargo(&repository.root)
        .args(["check", "--quiet", "--package", "longshore-mem", "--no-default-features"])
        .output()
        .context("starting cargo")?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    Ok(String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect())
}
