//! A tmpfs with huge pages, in a mount namespace of this process.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use longshore_sys::{directory, namespace, tmpfs};

/// The tmpfs. It ends with this process and the programs that it started.
pub(crate) struct Place {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Place {
    /// Mounts the tmpfs for the calling thread and the programs that it starts.
    ///
    /// # Errors
    /// Without root, namespaces are permitted only to a process with one thread.
    pub(crate) fn mount() -> Result<Self> {
        namespace::enter().context("making a mount namespace")?;
        let folder = tempfile::tempdir()?;
        let path = folder.path().canonicalize()?.join("tmpfs");
        fs::create_dir(&path)?;
        tmpfs::mount(directory::open(&path)?, Some(0)).context("mounting a tmpfs")?;
        Ok(Self { path, _folder: folder })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes all that is in the tmpfs.
    pub(crate) fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }

    /// Compares the one file in the tmpfs with its source.
    pub(crate) fn check(&self, source: &Path) -> Result<()> {
        let name = source.file_name().context("a model has a name")?;
        let found = [self.path.join(name), self.path.join("model").join(name)];
        let found = found.iter().find(|path| path.exists()).context("the file is missing")?;
        let (mut one, mut other) = (File::open(source)?, File::open(found)?);
        ensure!(one.metadata()?.len() == other.metadata()?.len(), "the lengths differ");
        let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        // The rest would take as long as the run. A wrong offset or a hole shows in the beginning.
        for _ in 0..16 {
            let len = one.read(&mut left)?;
            other.read_exact(&mut right[..len])?;
            ensure!(left[..len] == right[..len], "the contents differ");
        }
        longshore_sys::page_cache::evict(&one).context("evicting the compared part")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The mount keeps its folder from being removed.
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
    }
}
