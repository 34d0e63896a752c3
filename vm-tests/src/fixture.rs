//! What is on the disks of the guest tests: the host writes it, the guest holds what it reads
//! against it.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use crate::pattern;

/// The raw disks `virtio` and `nvme` have this many bytes ...
pub const RAW_DISK_BYTES: u64 = 4 << 20;
/// ... of the content with this seed on virtio-blk,
pub const VIRTIO_SEED: u64 = 1;
/// and with this one on NVMe.
pub const NVME_SEED: u64 = 2;
/// The raw disk `bad` has the content with this seed,
pub const BAD_SEED: u64 = 3;
/// except for this sector, which cannot be read.
pub const BAD_SECTOR: u64 = 64;

/// The lengths of the files in every folder of [`write_sized_files`]: around every boundary that
/// the loader knows (sector, page, huge page, udmabuf's default limit).
pub const FILE_SIZES: [u64; 12] =
    [0, 1, 511, 512, 513, 4095, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (64 << 20) + 1];

/// The one file on the disks `broken` and `slow` has this many bytes.
pub const LARGE_FILE_BYTES: u64 = 24 << 20;
/// On `broken` this byte of it cannot be read, nor the sector around it. It is far from where one of
/// the loader's reads ends and the next begins: the kernel makes one request of two that touch.
pub const BROKEN_AT: u64 = (20 << 20) + 4096;
/// On `slow` so many bytes can be read in a second.
pub const SLOW_BYTES_PER_SECOND: u64 = 16 << 20;

/// The disk that `examples/vhost` serves has this serial,
pub const VHOST_SERIAL: &str = "longshore-vhost";
/// and so many bytes of the content with this seed.
pub const VHOST_CONTENT_BYTES: u64 = 48 << 20;
/// See [`VHOST_CONTENT_BYTES`].
pub const VHOST_SEED: u64 = 4;
/// Behind them is a block by which the host tells the guest how often it has moved: a number of 8
/// bytes, little-endian. The guest reads it through the disk, as everything else.
pub const VHOST_CONTROL_AT: u64 = VHOST_CONTENT_BYTES;
/// Length of that block.
pub const VHOST_CONTROL_BYTES: u64 = 4096;
/// The guest writes what is behind that, to the end of the disk.
pub const VHOST_DISK_BYTES: u64 = 64 << 20;
/// What a guest's program prints when each page of its buffer was read, so that it may be moved.
pub const VHOST_READING: &str = "each page was read, and reads go on";

/// Disks of the NVMe driver's tests, and where each is on the bus. On `nvme-raw` and `nvme-slow` is the
/// content with this seed,
pub const DRIVEN_SEED: u64 = 5;
/// of so many bytes;
pub const DRIVEN_BYTES: u64 = (1 << 30) + (4 << 20);
/// `nvme-file` has it as a file of this name, in many pieces.
pub const DRIVEN_FILE: &str = "content";
/// It has a second file, of so many bytes, whose content's seed is its length.
pub const DRIVEN_ODD_BYTES: u64 = 70_001;
/// Where `nvme-raw` is.
pub const DRIVEN_RAW: &str = "0000:00:10.0";
/// Where `nvme-slow` is, which reads no faster than [`DRIVEN_SLOW_BYTES_PER_SECOND`].
pub const DRIVEN_SLOW: &str = "0000:00:11.0";
/// So slow that what is in flight stays there.
pub const DRIVEN_SLOW_BYTES_PER_SECOND: u64 = 128 << 10;
/// Where `nvme-file` is.
pub const DRIVEN_DISK_OF_FILE: &str = "0000:00:12.0";
/// Where `nvme-small` is: it has blocks of 4096 bytes, takes 16 KiB a command, and can be written.
pub const DRIVEN_SMALL: &str = "0000:00:13.0";
/// So many of its bytes are the content with this seed, ...
pub const DRIVEN_SMALL_SEED: u64 = 6;
/// ... and as many behind them are there to be written.
pub const DRIVEN_SMALL_BYTES: u64 = 8 << 20;

/// The name of the file with `len` bytes. Its content is the one whose seed is its length.
#[must_use]
pub fn file_name(len: u64) -> String {
    format!("{len}.bin")
}

/// Writes a file for each of [`FILE_SIZES`] into `dir`.
///
/// # Errors
///
/// Those of writing.
pub fn write_sized_files(dir: &Path) -> io::Result<()> {
    FILE_SIZES.iter().try_for_each(|len| write_file(&dir.join(file_name(*len)), *len, *len))
}

/// Writes a file with the first `len` bytes of the content with this seed.
///
/// # Errors
///
/// Those of writing.
pub fn write_file(path: &Path, seed: u64, len: u64) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut chunk = vec![0; 1 << 20];
    let mut done = 0;
    while done < len {
        // No more than the chunk, so it fits.
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
