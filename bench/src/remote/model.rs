//! The model that the servers send, in a tmpfs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::harness::{Trouble, program};
use crate::load::data::write_safetensors;

/// The name of the model on every server.
pub(super) const NAME: &str = "model.safetensors";
/// The name of a small model, for a first load that is not timed.
pub(super) const SMALL: &str = "small.safetensors";
const SMALL_BYTES: u64 = 1 << 20;
/// The name of a model whose header is inspected. It has no data.
pub(super) const SPARSE: &str = "sparse.safetensors";
const SPARSE_BYTES: u64 = 3_000_000_000;
/// The bucket of the models.
pub(super) const BUCKET: &str = "models";

/// The folder of the models, which is removed with this value.
pub(super) struct Model {
    dir: TempDir,
    pub(super) len_bytes: u64,
}

impl Model {
    /// Writes a model of this length, a small one, and a sparse one.
    pub(super) fn make(len_bytes: u64) -> Result<Self> {
        let dir = tempfile::tempdir_in("/dev/shm").context("making a directory in /dev/shm")?;
        // The workers of nginx are another user, if this one is root.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let model = Self { dir, len_bytes };
        fs::create_dir_all(model.root())?;
        let files =
            [(NAME, len_bytes, true), (SMALL, SMALL_BYTES, true), (SPARSE, SPARSE_BYTES, false)];
        for (name, len_bytes, has_data) in files {
            write_safetensors(&model.root().join(name), len_bytes, has_data)?;
        }
        Ok(model)
    }

    /// Returns the folder of the models, which is also the bucket.
    pub(super) fn root(&self) -> PathBuf {
        self.buckets().join(BUCKET)
    }

    /// Returns the folder whose folders are buckets.
    pub(super) fn buckets(&self) -> PathBuf {
        self.dir.path().join("buckets")
    }

    /// Returns a folder for the files of a server.
    pub(super) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.root().join(NAME)
    }

    /// Compares a received file with the model.
    pub(super) fn check(&self, received: &Path) -> Result<(), Trouble> {
        let mut command = Command::new("cmp");
        program::run(command.arg(received).arg(self.path())).map(drop)
    }
}
