//! The place of a file on its disk. The kernel reports it while its own driver uses the disk, and this
//! driver uses it afterwards.
//!
//! ```text
//!   kernel's driver    FILE ──► from_file ──► ExtentList ──► JSON
//!   this driver                                        └──► ExtentList ──► ranges ──► transfer
//! ```
//!
//! The file system must be unmounted in between, so that nothing writes to it.

use std::fs::{self, File};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use longshore_sys::fiemap;
use serde::{Deserialize, Serialize};

use crate::controller::Namespace;
use crate::error::{Error, ExtentsError};
use crate::stream::DiskRange;

/// The extents of a file. It is serialized as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtentList {
    /// The path of the file, for people.
    pub file: String,
    /// The kernel's name of the disk, for people.
    pub disk: String,
    /// The length of the file, in bytes.
    pub len_bytes: u64,
    /// The extents, in the order of the file. Bytes outside the extents are zeros.
    pub extents: Vec<Extent>,
}

/// A range of a file that is contiguous on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// The start in the file, in bytes.
    pub file_offset: u64,
    /// The start on the whole disk, not on a partition, in bytes.
    pub disk_offset: u64,
    /// The length, in bytes.
    pub len_bytes: u64,
}

impl ExtentList {
    /// Returns the extents of a file on a file system on one disk or on a partition of one.
    ///
    /// # Errors
    /// Returns [`Error::File`] if the file cannot be opened or the kernel refuses to list its extents, and
    /// [`Error::Extents`] if the bytes of the file are not on one disk in plain form.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let failed =
            |operation| move |source| Error::File { operation, path: path.to_owned(), source };
        let file = File::open(path).map_err(failed("opening"))?;
        let metadata = file.metadata().map_err(failed("reading the metadata of"))?;
        if !metadata.is_file() {
            return Err(ExtentsError::NotAFile { path: path.to_owned() }.into());
        }
        let device = metadata.st_dev();
        let disk = Disk::find(rustix::fs::major(device), rustix::fs::minor(device))?;
        let found = fiemap::extents(&file).map_err(failed("reading the extents of"))?;
        let mut extents = Vec::new();
        for extent in found {
            let file_offset = extent.file_offset.raw();
            if extent.is_opaque {
                return Err(ExtentsError::Opaque { file_offset }.into());
            }
            // Blocks beyond the end of the file have none of its bytes.
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

    /// Returns the length of the memory for the file, in bytes: whole blocks.
    ///
    /// # Errors
    /// Returns [`ExtentsError::TooLong`] if the length is not valid.
    pub fn memory_bytes(&self, namespace: &Namespace) -> Result<u64, ExtentsError> {
        let whole = self.len_bytes.checked_next_multiple_of(namespace.block_bytes());
        whole.ok_or(ExtentsError::TooLong { len_bytes: self.len_bytes })
    }

    /// Returns the ranges of the disk to read, with their place in memory. The list is not trusted.
    ///
    /// # Errors
    /// Returns [`ExtentsError::Order`] if extents overlap in the file or start beyond its end, and
    /// [`ExtentsError::TooLong`] as [`memory_bytes`](Self::memory_bytes) does.
    pub fn disk_ranges(&self, namespace: &Namespace) -> Result<Vec<DiskRange>, ExtentsError> {
        let memory_bytes = self.memory_bytes(namespace)?;
        let mut ranges = Vec::with_capacity(self.extents.len());
        let mut end = 0;
        for extent in &self.extents {
            let Extent { file_offset, disk_offset, len_bytes } = *extent;
            if file_offset < end || file_offset >= memory_bytes {
                return Err(ExtentsError::Order { file_offset, len_bytes });
            }
            let offset = file_offset;
            // The last block of the file system may be larger than the last block of the disk.
            let len_bytes = len_bytes.min(memory_bytes - offset);
            end = offset + len_bytes;
            ranges.push(DiskRange { disk_offset, offset, len_bytes });
        }
        Ok(ranges)
    }
}

/// The disk of a file system.
struct Disk {
    name: String,
    /// The start of the file system's device on the disk, in bytes.
    start_bytes: u64,
}

impl Disk {
    fn find(major: u32, minor: u32) -> Result<Self, ExtentsError> {
        Self::find_in(Path::new("/sys/dev/block"), major, minor)
    }

    fn find_in(blocks: &Path, major: u32, minor: u32) -> Result<Self, ExtentsError> {
        /// The unit of sysfs, for every block size of the disk.
        const SECTOR_BYTES: u64 = 512;
        let link = blocks.join(format!("{major}:{minor}"));
        let disk = fs::canonicalize(link).map_err(|_| ExtentsError::NoDisk { major, minor })?;
        let mut below = fs::read_dir(disk.join("slaves")).into_iter().flatten();
        if below.next().is_some() {
            return Err(ExtentsError::Stacked { disk });
        }
        let start = match fs::read_to_string(disk.join("start")) {
            Ok(text) => text.trim().parse::<u64>().ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(0),
            Err(_) => None,
        };
        let start = start.and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
        let Some(start_bytes) = start else { return Err(ExtentsError::NoStart { disk }) };
        let whole = if start_bytes == 0 { Some(disk.as_path()) } else { disk.parent() };
        let name = whole.and_then(Path::file_name).unwrap_or_default();
        Ok(Self { name: name.to_string_lossy().into_owned(), start_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Namespace = Namespace { id: 1, blocks: 1 << 20, block_log2: 9 };

    fn list(len_bytes: u64, extents: &[(u64, u64, u64)]) -> ExtentList {
        let extent = |&(file_offset, disk_offset, len_bytes): &(u64, u64, u64)| Extent {
            file_offset,
            disk_offset,
            len_bytes,
        };
        let extents = extents.iter().map(extent).collect();
        ExtentList { file: "f".to_owned(), disk: "d".to_owned(), len_bytes, extents }
    }

    #[test]
    fn the_last_block_is_cut_to_the_length_of_the_memory() {
        let list = list(5000, &[(0, 0x10_000, 4096), (4096, 0x40_000, 4096)]);
        assert_eq!(list.memory_bytes(&NAMESPACE).unwrap(), 5120);
        let ranges = list.disk_ranges(&NAMESPACE).unwrap();
        assert_eq!(ranges[0], DiskRange { disk_offset: 0x10_000, offset: 0, len_bytes: 4096 });
        assert_eq!(ranges[1], DiskRange { disk_offset: 0x40_000, offset: 4096, len_bytes: 1024 });
        let back = serde_json::to_string(&list).unwrap();
        assert_eq!(serde_json::from_str::<ExtentList>(&back).unwrap(), list);
    }

    #[test]
    fn lists_that_are_not_valid_are_refused() {
        for bad in [
            list(8192, &[(0, 0, 4096), (2048, 8192, 4096)]),
            list(8192, &[(4096, 0, 4096), (0, 8192, 4096)]),
            list(4096, &[(4096, 0, 4096)]),
            list(u64::MAX, &[]),
        ] {
            let refused = bad.disk_ranges(&NAMESPACE).unwrap_err();
            let is_typed =
                matches!(refused, ExtentsError::Order { .. } | ExtentsError::TooLong { .. });
            assert!(is_typed, "{refused}");
        }
        assert!(
            serde_json::from_str::<ExtentList>(r#"{"file":"a","disk":"b","len_bytes":1}"#).is_err()
        );
    }

    #[test]
    fn the_start_of_a_partition_is_read() {
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
