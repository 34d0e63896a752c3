//! A raw memory image in a file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::Context;
use longshore::pagetable::Image;
use longshore::pagetable::table_memory::TableAddr;

use super::args::ImageArgs;
use crate::exit::failure;

/// The bytes of one read.
const BLOCK_BYTES: u64 = 4096;
/// The most blocks in the cache: 16 MiB. A tree is walked table by table, so few are read twice.
const BLOCKS_MAX: usize = 4096;

/// A memory image. Blocks are read on demand, so it may be larger than memory. If the file shrinks
/// while it is read, tables are reported as missing.
pub(crate) struct FileImage {
    path: PathBuf,
    file: File,
    base: u64,
    len_bytes: u64,
    blocks: RefCell<HashMap<u64, Box<[u8]>>>,
    failed: RefCell<Option<io::Error>>,
}

impl FileImage {
    pub(crate) fn open(args: &ImageArgs) -> anyhow::Result<Self> {
        let path = args.image.clone();
        let name = path.display();
        let mut file = File::open(&path).map_err(|error| {
            let code = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => 10,
                io::ErrorKind::PermissionDenied => 12,
                _ => 1,
            };
            failure(code, format!("opening {name}: {error}"))
        })?;
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(failure(11, format!("{name} is a directory, not an image of memory")));
        }
        // Seeking also works for block devices, whose metadata has no length.
        let len_bytes = file
            .seek(SeekFrom::End(0))
            .map_err(|error| failure(11, format!("{name} is not an image of memory: {error}")))?;
        let base = args.base.0;
        if !base.is_multiple_of(8) {
            return Err(failure(2, format!("--base: {base:#x} is not a multiple of 8")));
        }
        if len_bytes == 0 {
            return Err(failure(17, format!("{name} is empty")));
        }
        if base.checked_add(len_bytes - 1).is_none() {
            let message = format!("--base: {len_bytes} bytes from {base:#x} end above 2^64");
            return Err(failure(2, message));
        }
        let (blocks, failed) = (RefCell::default(), RefCell::default());
        Ok(Self { path, file, base, len_bytes, blocks, failed })
    }

    /// Returns the address range of the image, for messages.
    pub(crate) fn extent(&self) -> String {
        let last = self.base + (self.len_bytes - 1);
        format!("{} has {:#x} to {last:#x}", self.path.display(), self.base)
    }

    /// Returns the first read error, if there was one.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.failed.borrow_mut().take() {
            Some(error) => Err(error).with_context(|| format!("reading {}", self.path.display())),
            None => Ok(()),
        }
    }

    fn read(&self, offset: u64) -> Option<u64> {
        let (block, at) = (offset / BLOCK_BYTES, (offset % BLOCK_BYTES) as usize);
        let mut blocks = self.blocks.borrow_mut();
        if !blocks.contains_key(&block) {
            if blocks.len() >= BLOCKS_MAX {
                blocks.clear();
            }
            let start = block * BLOCK_BYTES;
            let mut bytes = vec![0; BLOCK_BYTES.min(self.len_bytes - start) as usize];
            if let Err(error) = self.file.read_exact_at(&mut bytes, start) {
                self.failed.borrow_mut().get_or_insert(error);
                return None;
            }
            blocks.insert(block, bytes.into());
        }
        // Eight bytes at a multiple of eight are in one block.
        let bytes = blocks.get(&block)?.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

impl Image for FileImage {
    fn entry(&self, table: TableAddr, index: usize) -> Option<u64> {
        let address = table.raw().checked_add((index as u64).checked_mul(8)?)?;
        let offset = address.checked_sub(self.base)?;
        (offset % 8 == 0 && offset < self.len_bytes && self.len_bytes - offset >= 8)
            .then(|| self.read(offset))
            .flatten()
    }
}
