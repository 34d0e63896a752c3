//! The folder for data files, on a real disk.

use std::cell::RefCell;
use std::env;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{DataFile, fill, safetensors};
use crate::harness::environment::{Disk, disk_of};

const CHUNK_BYTES: usize = 8 << 20;
/// The bytes of the disk that stay free.
const RESERVE_BYTES: u64 = 1 << 30;

/// The folder. Dropping it removes its files, unless they are to be kept.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    disk: Disk,
    keep: bool,
    made: RefCell<Vec<PathBuf>>,
    _lock: File,
}

impl Folder {
    /// Opens `dir`, or the bench's folder in the user's cache. A second bench waits, because two would
    /// disturb each other.
    pub(crate) fn open(dir: Option<&Path>, keep: bool) -> Result<Self> {
        let root = match dir {
            Some(dir) => dir.join("longshore-bench"),
            None => cache()?.join("data"),
        };
        fs::create_dir_all(&root).with_context(|| format!("creating {}", root.display()))?;
        let disk =
            disk_of(&root).with_context(|| format!("finding the disk of {}", root.display()))?;
        if disk.is_memory() {
            bail!(
                "{} is on {}, which is memory: name a folder on a disk with --dir",
                root.display(),
                disk.file_system
            );
        }
        let lock = File::create(root.join("lock"))?;
        if lock.try_lock().is_err() {
            eprintln!("another bench is using {}; waiting for it", root.display());
            lock.lock()?;
        }
        Ok(Self { root, disk, keep, made: RefCell::default(), _lock: lock })
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Returns a file of `len_bytes` of data without a header.
    pub(crate) fn raw_file(&self, len_bytes: u64) -> Result<DataFile> {
        self.file(&format!("{len_bytes}.raw"), len_bytes, &[])
    }

    /// Returns a safetensors file of `len_bytes`, rounded down to an even number.
    pub(crate) fn safetensors_file(&self, len_bytes: u64) -> Result<DataFile> {
        ensure!(len_bytes >= 64 << 10, "a model must have at least 64 KiB");
        let len_bytes = len_bytes & !1;
        let name = format!("{len_bytes}.safetensors");
        self.file(&name, len_bytes, &safetensors::header(len_bytes))
    }

    /// Returns the path for a file that the caller creates; dropping the folder removes it, too.
    pub(crate) fn place(&self, name: &str, len_bytes: u64) -> Result<PathBuf> {
        let path = self.root.join(name);
        if !path.exists() {
            self.require_room(len_bytes)?;
        }
        self.made.borrow_mut().push(path.clone());
        Ok(path)
    }

    /// Removes a file early to free disk space, unless it is to be kept.
    pub(crate) fn discard(&self, path: &Path) {
        if !self.keep {
            // If that fails, dropping the folder tries again.
            let _ = fs::remove_file(path);
        }
    }

    fn file(&self, name: &str, len_bytes: u64, header: &[u8]) -> Result<DataFile> {
        let path = self.root.join(name);
        let data_start = header.len() as u64;
        let file = DataFile { path, len_bytes, data_start, seed: len_bytes };
        // A file under its final name is complete.
        let kept = fs::metadata(&file.path).is_ok_and(|found| found.len() == len_bytes);
        if !kept {
            self.require_room(len_bytes)?;
            write(&file, header).with_context(|| format!("writing {}", file.path.display()))?;
        }
        self.made.borrow_mut().push(file.path.clone());
        Ok(file)
    }

    /// Returns `true` if a file of `len_bytes` would fit.
    pub(crate) fn has_room(&self, len_bytes: u64) -> bool {
        self.require_room(len_bytes).is_ok()
    }

    fn require_room(&self, len_bytes: u64) -> Result<()> {
        let free_bytes = disk_of(&self.root)?.free_bytes;
        ensure!(
            free_bytes >= len_bytes + RESERVE_BYTES,
            "{} has {free_bytes} bytes free, but a file of {len_bytes} bytes is needed",
            self.root.display()
        );
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            for path in self.made.borrow().iter() {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Returns the bench's folder in the user's cache: in `$LONGSHORE_CACHE`, else
/// `$XDG_CACHE_HOME/longshore`, else `~/.cache/longshore`.
pub(crate) fn cache() -> Result<PathBuf> {
    let set = |key| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = set("LONGSHORE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("longshore")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/longshore")))
        .context("no cache folder: set LONGSHORE_CACHE, XDG_CACHE_HOME or HOME, or give --dir")?;
    Ok(root.join("bench"))
}

/// Writes a safetensors file of `len_bytes`, an even number. If `has_data` is `false`, the file has a
/// header and a hole.
pub(crate) fn write_safetensors(path: &Path, len_bytes: u64, has_data: bool) -> Result<()> {
    let header = safetensors::header(len_bytes);
    if !has_data {
        let mut file = File::create(path)?;
        file.write_all(&header)?;
        return Ok(file.set_len(len_bytes)?);
    }
    let data_start = header.len() as u64;
    write(&DataFile { path: path.to_owned(), len_bytes, data_start, seed: len_bytes }, &header)
}

/// Writes the file under a temporary name, so that a file with the final name is always complete.
fn write(file: &DataFile, header: &[u8]) -> Result<()> {
    eprintln!("creating a file of {} bytes", file.len_bytes);
    let partial = file.path.with_extension("partial");
    let mut out = File::create(&partial)?;
    // Contiguous if the file system supports it; an error is ignored.
    let _ = rustix::fs::fallocate(&out, rustix::fs::FallocateFlags::empty(), 0, file.len_bytes);
    out.write_all(header)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = file.data_start;
    while at < file.len_bytes {
        let len = (file.len_bytes - at).min(CHUNK_BYTES as u64) as usize;
        fill(file.seed, at, &mut chunk[..len]);
        out.write_all(&chunk[..len])?;
        at += len as u64;
    }
    ensure!(out.stream_position()? == file.len_bytes, "the file is too short");
    out.sync_all()?;
    Ok(fs::rename(&partial, &file.path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_created_once_and_removed_with_their_folder() {
        // `/var/tmp` is usually on a disk, and `/tmp` may not be.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let kept = Folder::open(Some(dir.path()), true).unwrap();
        let file = kept.safetensors_file(100_001).unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().len(), 100_000);
        let bytes = fs::read(&file.path).unwrap();
        let mut meant = vec![0; bytes.len() - file.data_start as usize];
        fill(file.seed, file.data_start, &mut meant);
        assert_eq!(bytes[file.data_start as usize..], meant);
        drop(kept);
        let folder = Folder::open(Some(dir.path()), false).unwrap();
        let written = fs::metadata(&file.path).unwrap().modified().unwrap();
        assert_eq!(folder.safetensors_file(100_000).unwrap(), file);
        assert_eq!(fs::metadata(&file.path).unwrap().modified().unwrap(), written);
        drop(folder);
        assert!(!file.path.exists());
    }

    #[test]
    fn a_folder_in_memory_is_refused() {
        let shm = Path::new("/dev/shm");
        if !disk_of(shm).is_ok_and(|disk| disk.is_memory()) {
            eprintln!("SKIPPED: /dev/shm is not memory here");
            return;
        }
        let dir = tempfile::tempdir_in(shm).unwrap();
        let refused = Folder::open(Some(dir.path()), false).unwrap_err();
        assert!(refused.to_string().contains("which is memory"), "{refused}");
    }
}
