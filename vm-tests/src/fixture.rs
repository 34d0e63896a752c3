//! The content of the disks of the guest tests. The host writes it, and the guest compares its reads
//! with it.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use crate::pattern;

/// The length in bytes of the raw disks `virtio` and `nvme`.
pub const RAW_DISK_BYTES: u64 = 4 << 20;
/// The seed of the content of the disk `virtio`.
pub const VIRTIO_SEED: u64 = 1;
/// The seed of the content of the disk `nvme`.
pub const NVME_SEED: u64 = 2;
/// The seed of the content of the raw disk `bad`.
pub const BAD_SEED: u64 = 3;
/// The sector of the disk `bad` that cannot be read.
pub const BAD_SECTOR: u64 = 64;

/// The lengths of the files in every folder of [`write_sized_files`]: around every boundary in the
/// loader (sector, page, huge page, udmabuf's default limit).
pub const FILE_SIZES: [u64; 12] =
    [0, 1, 511, 512, 513, 4095, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (64 << 20) + 1];

/// The length in bytes of the only file on the disks `broken` and `slow`.
pub const LARGE_FILE_BYTES: u64 = 24 << 20;
/// The byte of that file on `broken` that cannot be read, with its sector. It is far from the boundaries
/// of the loader's reads, because the kernel merges adjacent requests.
pub const BROKEN_AT: u64 = (20 << 20) + 4096;
/// The bytes that can be read from `slow` per second.
pub const SLOW_BYTES_PER_SECOND: u64 = 16 << 20;

/// The serial number of the disk that `examples/vhost` serves.
pub const VHOST_SERIAL: &str = "longshore-vhost";
/// The bytes of that disk with the content of [`VHOST_SEED`].
pub const VHOST_CONTENT_BYTES: u64 = 48 << 20;
/// The seed of that content.
pub const VHOST_SEED: u64 = 4;
/// The offset of the block after the content. In it the host tells the guest how often it has migrated:
/// a number of 8 bytes, little-endian. The guest reads it through the disk like everything else.
pub const VHOST_CONTROL_AT: u64 = VHOST_CONTENT_BYTES;
/// The length in bytes of that block.
pub const VHOST_CONTROL_BYTES: u64 = 4096;
/// The length in bytes of the whole disk; the guest writes the part after the block.
pub const VHOST_DISK_BYTES: u64 = 64 << 20;
/// The line that a guest's program prints when every page of its buffer was read, so that the guest may
/// be migrated.
pub const VHOST_READING: &str = "each page was read, and reads go on";

/// The seed of the content of the NVMe driver's disks `nvme-raw` and `nvme-slow`.
pub const DRIVEN_SEED: u64 = 5;
/// The bytes of that content.
pub const DRIVEN_BYTES: u64 = (1 << 30) + (4 << 20);
/// The name of the file with that content on the disk `nvme-file`, where it has many extents.
pub const DRIVEN_FILE: &str = "content";
/// The length of the second file there, and the seed of its content.
pub const DRIVEN_ODD_BYTES: u64 = 70_001;
/// The PCI address of `nvme-raw`.
pub const DRIVEN_RAW: &str = "0000:00:10.0";
/// The PCI address of `nvme-slow`.
pub const DRIVEN_SLOW: &str = "0000:00:11.0";
/// The bytes that can be read from `nvme-slow` per second: so few that reads stay in flight.
pub const DRIVEN_SLOW_BYTES_PER_SECOND: u64 = 128 << 10;
/// The PCI address of `nvme-file`.
pub const DRIVEN_DISK_OF_FILE: &str = "0000:00:12.0";
/// The PCI address of `nvme-small`, a writable disk with blocks of 4096 bytes and at most 16 KiB in a
/// command.
pub const DRIVEN_SMALL: &str = "0000:00:13.0";
/// The seed of the content in the first half of `nvme-small`.
pub const DRIVEN_SMALL_SEED: u64 = 6;
/// The bytes of each half of `nvme-small`; the second half is for writes.
pub const DRIVEN_SMALL_BYTES: u64 = 8 << 20;

/// Returns the name of the file with `len` bytes. The seed of its content is its length.
#[must_use]
pub fn file_name(len: u64) -> String {
    format!("{len}.bin")
}

/// Writes a file for each of [`FILE_SIZES`] into `dir`.
///
/// # Errors
///
/// Returns errors of writing.
pub fn write_sized_files(dir: &Path) -> io::Result<()> {
    FILE_SIZES.iter().try_for_each(|len| write_file(&dir.join(file_name(*len)), *len, *len))
}

/// Writes a file with the first `len` bytes of the content with this seed.
///
/// # Errors
///
/// Returns errors of writing.
pub fn write_file(path: &Path, seed: u64, len: u64) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut chunk = vec![0; 1 << 20];
    let mut done = 0;
    while done < len {
        // At most the length of the chunk, so it fits into a usize.
        let take = (len - done).min(chunk.len() as u64) as usize;
        pattern::fill(seed, done, &mut chunk[..take]);
        out.write_all(&chunk[..take])?;
        done += take as u64;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_has_its_length_and_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for len in [0, 1, (1 << 20) + 3] {
            write_file(&path, 9, len).unwrap();
            let content = fs::read(&path).unwrap();
            assert_eq!(content.len() as u64, len);
            assert_eq!(pattern::first_difference(9, 0, &content), None);
        }
    }
}
