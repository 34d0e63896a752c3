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

/// Publishes a model, and returns the program's end and the path of the file or directory.
pub(super) fn publish(source: &Path, place: &Place) -> Result<(Ended, PathBuf), Trouble> {
    let mut command = tools::own_command().map_err(Trouble::NotRun)?;
    let name = source.file_name().context("a model has a name")?;
    command.arg("publish").arg(source).arg("--to").arg(place.path()).args(["--name", "model"]);
    let ended = program::run(&mut command)?;
    let directory = place.path().join("model");
    Ok((ended, if source.is_dir() { directory } else { directory.join(name) }))
}

/// Copies a model, and returns the program's end and the path of the file or directory.
pub(super) fn copy(source: &Path, place: &Place) -> Result<(Ended, PathBuf), Trouble> {
    let name = source.file_name().context("a model has a name")?;
    let path = place.path().join(name);
    let ended = program::run(Command::new("cp").arg("-r").arg(source).arg(&path))?;
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
    let (whole, copy) = (weights(model), weights(&path));
    // The copy has filled the page cache.
    longshore_sys::page_cache::evict(std::fs::File::open(&whole)?)?;
    ensure_same(std::fs::metadata(whole)?.len(), std::fs::metadata(copy)?.len())?;
    Ok(path)
}

/// Returns the file with the weights of a model.
fn weights(model: &Path) -> PathBuf {
    if model.is_dir() { model.join("model.safetensors") } else { model.to_owned() }
}

fn ensure_same(whole: u64, found: u64) -> Result<()> {
    ensure!(whole == found, "the model has {whole} bytes, but its copy has {found}");
    Ok(())
}
