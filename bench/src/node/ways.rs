//! The ways in which a model gets to the processes that use it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::place::Place;
use crate::harness::Trouble;
use crate::harness::program::{self, Ended};
use crate::load::tools;

pub(super) const FROM_DISK: &str = "mmap from the disk";
pub(super) const COPIED: &str = "cp to the tmpfs, mmap";
pub(super) const PUBLISHED: &str = "longshore published, mmap";
pub(super) const ATTACHED: &str = "longshore attached, mmap";
/// The memory of a program besides the content.
pub(super) const OTHER_BYTES: u64 = 256 << 20;

/// Publishes a model, and returns the program's end and the path of the file.
pub(super) fn publish(source: &Path, place: &Place) -> Result<(Ended, PathBuf), Trouble> {
    let mut command = tools::own_command().map_err(Trouble::NotRun)?;
    let name = source.file_name().context("a model has a name")?;
    command.arg("publish").arg(source).arg("--to").arg(place.path()).args(["--name", "model"]);
    let ended = program::run(&mut command)?;
    Ok((ended, place.path().join("model").join(name)))
}

/// Copies a model, and returns the program's end and the path of the file.
pub(super) fn copy(source: &Path, place: &Place) -> Result<(Ended, PathBuf), Trouble> {
    let name = source.file_name().context("a model has a name")?;
    let path = place.path().join(name);
    let ended = program::run(Command::new("cp").arg(source).arg(&path))?;
    Ok((ended, path))
}

/// Brings a model to the place for a candidate, outside of the time, and returns the path to map.
pub(super) fn bring(name: &str, model: &Path, place: &Place) -> Result<PathBuf, Trouble> {
    place.clear()?;
    let path = match name {
        PUBLISHED => publish(model, place)?.1,
        COPIED => copy(model, place)?.1,
        _ => return Ok(model.to_owned()),
    };
    // The copy has filled the page cache.
    longshore_sys::page_cache::evict(std::fs::File::open(model)?)?;
    let (whole, found) = (std::fs::metadata(model)?.len(), std::fs::metadata(&path)?.len());
    ensure_same(whole, found)?;
    Ok(path)
}

fn ensure_same(whole: u64, found: u64) -> Result<()> {
    ensure!(whole == found, "the model has {whole} bytes, but its copy has {found}");
    Ok(())
}
