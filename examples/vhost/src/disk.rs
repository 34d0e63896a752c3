//! The disk: a file, in sectors of 512 bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The unit of addresses and lengths in requests.
pub const SECTOR_BYTES: u64 = 512;
/// The length of the serial number in bytes.
pub const SERIAL_BYTES: usize = 20;

/// A raw disk image.
#[derive(Debug)]
pub struct Disk {
    file: File,
    sectors: u64,
    is_read_only: bool,
    serial: [u8; SERIAL_BYTES],
}

impl Disk {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// The errors of `open(2)`, and of [`from_file`](Self::from_file).
    pub fn open(path: &Path, is_read_only: bool, serial: &str) -> io::Result<Self> {
        let file = File::options().read(true).write(!is_read_only).open(path)?;
        Self::from_file(file, is_read_only, serial)
    }

    /// Returns a disk in an open file, which can be a memfd.
    ///
    /// # Errors
    /// `InvalidInput` if the length is zero or not a multiple of the sector size, or if the serial is
    /// longer than [`SERIAL_BYTES`].
    pub fn from_file(file: File, is_read_only: bool, serial: &str) -> io::Result<Self> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        let len_bytes = file.metadata()?.len();
        if len_bytes == 0 || !len_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(invalid("the disk's file does not consist of whole sectors of 512 bytes"));
        }
        let mut padded = [0; SERIAL_BYTES];
        let room = padded.get_mut(..serial.len());
        room.ok_or_else(|| invalid("the serial has more than 20 bytes"))?
            .copy_from_slice(serial.as_bytes());
        let sectors = len_bytes / SECTOR_BYTES;
        Ok(Self { file, sectors, is_read_only, serial: padded })
    }

    /// Returns the length in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns `true` if the disk cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the serial number, padded with zeros.
    pub fn serial(&self) -> [u8; SERIAL_BYTES] {
        self.serial
    }

    /// Returns the offset of `sector` in bytes, or `None` if `len_bytes` from there on are not whole
    /// sectors of the disk.
    pub(crate) fn place(&self, sector: u64, len_bytes: u64) -> Option<u64> {
        let end = sector.checked_add(len_bytes / SECTOR_BYTES)?;
        let is_there = len_bytes.is_multiple_of(SECTOR_BYTES) && end <= self.sectors;
        is_there.then(|| sector * SECTOR_BYTES)
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    pub(crate) fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        if self.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.file.write_all_at(from, at)
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
