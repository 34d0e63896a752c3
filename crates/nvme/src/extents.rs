//! Where a file is on its disk, told by the kernel while it has the disk, and used when this driver does.
//!
//! ```text
//!   kernel's driver    FILE ──► of_file ──► List ──► JSON
//!   this driver                                        └──► List ──► stretches ──► transfer
//! ```
//!
//! Nothing may write to the file system in between: unmount it.

use std::fs::{self, File};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use longshore_sys::fiemap;
use serde::{Deserialize, Serialize};

use crate::controller::Namespace;
use crate::error::Error;
use crate::stream::Stretch;

/// The extents of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The file, for whoever reads it.
    pub file: String,
    /// The disk, as the kernel called it, for whoever reads it.
    pub disk: String,
    /// How long the file is.
    pub len_bytes: u64,
    /// Its extents, in its order. What no extent has reads as zeros.
    pub extents: Vec<Extent>,
}

/// Bytes of a file that lie side by side on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Where in the file they begin.
    pub file_offset: u64,
    /// Where on the whole disk, not on a partition of it.
    pub disk_offset: u64,
    /// How many.
    pub len_bytes: u64,
}

impl List {
    /// Of a file on a file system that lies on one disk, or on a partition of one.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Extents`] where the file's bytes are not to be found on a disk as they
    /// are.
    pub fn of_file(path: &Path) -> Result<Self, Error> {
        let named = |what: &str| Error::io(format!("{what} {}", path.display()));
        let file = File::open(path).map_err(named("opening"))?;
        let metadata = file.metadata().map_err(named("looking at"))?;
        if !metadata.is_file() {
            return Err(bad(format!("{} is no file", path.display())));
        }
        let device = metadata.st_dev();
        let disk = Disk::find(rustix::fs::major(device), rustix::fs::minor(device))?;
        let found = fiemap::extents(&file).map_err(named("asking for the extents of"))?;
        let mut extents = Vec::new();
        for extent in found {
            let file_offset = extent.file_offset.raw();
            if extent.is_opaque {
                return Err(bad(format!(
                    "the file's bytes at {file_offset:#x} are not on the disk as they are: compressed, \
                     encrypted, or in a block with others"
                )));
            }
            // Blocks behind the file's end hold nothing of it.
            if extent.is_unwritten || file_offset >= metadata.len() {
                continue;
            }
            let disk_offset = extent.disk_offset + disk.start_bytes;
            extents.push(Extent { file_offset, disk_offset, len_bytes: extent.len_bytes });
        }
        Ok(Self {
            file: path.display().to_string(),
            disk: disk.name,
            len_bytes: metadata.len(),
            extents,
        })
    }

    /// How much memory it takes: the file, and the rest of its last block.
    ///
    /// # Errors
    /// [`Error::Extents`] for a length that nothing can have.
    pub fn memory_bytes(&self, namespace: &Namespace) -> Result<u64, Error> {
        let whole = self.len_bytes.checked_next_multiple_of(namespace.block_bytes());
        whole.ok_or_else(|| bad(format!("a file of {:#x} bytes", self.len_bytes)))
    }

    /// What is to be read, and to where. The list may come from anywhere.
    ///
    /// # Errors
    /// [`Error::Extents`] where extents overlap in the file or go past its end.
    pub fn stretches(&self, namespace: &Namespace) -> Result<Vec<Stretch>, Error> {
        let memory_bytes = self.memory_bytes(namespace)?;
        let mut stretches = Vec::with_capacity(self.extents.len());
        let mut end = 0;
        for extent in &self.extents {
            let Extent { file_offset, disk_offset, len_bytes } = *extent;
            if file_offset < end || file_offset >= memory_bytes {
                return Err(bad(format!(
                    "{extent:x?} begins before the end of the one before, or behind the file's end"
                )));
            }
            let offset = file_offset;
            // The file system's last block may be larger than the disk's.
            let len_bytes = len_bytes.min(memory_bytes - offset);
            end = offset + len_bytes;
            stretches.push(Stretch { disk_offset, offset, len_bytes });
        }
        Ok(stretches)
    }
}

/// What a file system lies on.
struct Disk {
    name: String,
    /// Where the file system's device begins on it.
    start_bytes: u64,
}

impl Disk {
    fn find(major: u32, minor: u32) -> Result<Self, Error> {
        Self::find_in(Path::new("/sys/dev/block"), major, minor)
    }

    fn find_in(blocks: &Path, major: u32, minor: u32) -> Result<Self, Error> {
        /// Of sysfs, whatever blocks the disk has.
        const SECTOR_BYTES: u64 = 512;
        let link = blocks.join(format!("{major}:{minor}"));
        let missing = |_| {
            bad(format!(
                "the file system ({major}:{minor}) is on no disk of its own: btrfs, overlayfs and those \
                 in memory do not say where on a disk a file is"
            ))
        };
        let folder: PathBuf = fs::canonicalize(&link).map_err(missing)?;
        let mut below = fs::read_dir(folder.join("slaves")).into_iter().flatten();
        if below.next().is_some() {
            return Err(bad(format!(
                "{} is made of other disks (device mapper or RAID)",
                folder.display()
            )));
        }
        let start = match fs::read_to_string(folder.join("start")) {
            Ok(text) => text.trim().parse::<u64>().ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(0),
            Err(_) => None,
        };
        let start = start.and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
        let start_bytes = start.ok_or_else(|| bad(format!("no start in {}", folder.display())))?;
        let whole = if start_bytes == 0 { Some(folder.as_path()) } else { folder.parent() };
        let name = whole.and_then(Path::file_name).unwrap_or_default();
        Ok(Self { name: name.to_string_lossy().into_owned(), start_bytes })
    }
}

fn bad(reason: String) -> Error {
    Error::Extents { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Namespace = Namespace { id: 1, blocks: 1 << 20, block_log2: 9 };

    fn list(len_bytes: u64, extents: &[(u64, u64, u64)]) -> List {
        let extent = |&(file_offset, disk_offset, len_bytes): &(u64, u64, u64)| Extent {
            file_offset,
            disk_offset,
            len_bytes,
        };
        let extents = extents.iter().map(extent).collect();
        List { file: "f".to_owned(), disk: "d".to_owned(), len_bytes, extents }
    }

    #[test]
    fn the_last_block_is_cut_to_what_memory_has() {
        let list = list(5000, &[(0, 0x10_000, 4096), (4096, 0x40_000, 4096)]);
        assert_eq!(list.memory_bytes(&NAMESPACE).unwrap(), 5120);
        let stretches = list.stretches(&NAMESPACE).unwrap();
        assert_eq!(stretches[0], Stretch { disk_offset: 0x10_000, offset: 0, len_bytes: 4096 });
        assert_eq!(stretches[1], Stretch { disk_offset: 0x40_000, offset: 4096, len_bytes: 1024 });
        let back = serde_json::to_string(&list).unwrap();
        assert_eq!(serde_json::from_str::<List>(&back).unwrap(), list);
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        for bad in [
            list(8192, &[(0, 0, 4096), (2048, 8192, 4096)]),
            list(8192, &[(4096, 0, 4096), (0, 8192, 4096)]),
            list(4096, &[(4096, 0, 4096)]),
            list(u64::MAX, &[]),
        ] {
            let refused = bad.stretches(&NAMESPACE).unwrap_err();
            assert!(matches!(refused, Error::Extents { .. }), "{refused}");
        }
        assert!(serde_json::from_str::<List>(r#"{"file":"a","disk":"b","len_bytes":1}"#).is_err());
    }

    #[test]
    fn a_partition_begins_on_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("devices/nvme0n1");
        fs::create_dir_all(disk.join("nvme0n1p2")).unwrap();
        fs::write(disk.join("nvme0n1p2/start"), "2048\n").unwrap();
        let blocks = folder.path().join("block");
        fs::create_dir(&blocks).unwrap();
        std::os::unix::fs::symlink(disk.join("nvme0n1p2"), blocks.join("259:2")).unwrap();
        std::os::unix::fs::symlink(&disk, blocks.join("259:0")).unwrap();
        let found = Disk::find_in(&blocks, 259, 2).unwrap();
        assert_eq!((found.name.as_str(), found.start_bytes), ("nvme0n1", 1 << 20));
        let found = Disk::find_in(&blocks, 259, 0).unwrap();
        assert_eq!((found.name.as_str(), found.start_bytes), ("nvme0n1", 0));
        assert!(Disk::find_in(&blocks, 0, 33).is_err());
        fs::create_dir_all(disk.join("slaves/sda")).unwrap();
        assert!(Disk::find_in(&blocks, 259, 0).is_err());
    }
}
