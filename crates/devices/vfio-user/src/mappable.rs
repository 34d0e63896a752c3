//! Memory of a device that a client can map.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use longshore_sys::memfd::{self, Backing, Seals};
use longshore_sys::{file, memory};

use crate::description::RegionDescription;
use crate::wire::{MappableArea, RegionInfo};

/// The memory of a region, for one client.
#[derive(Debug)]
pub struct MappableFile {
    /// The file: a memfd that is sealed against shrinking and growing (`F_SEAL_SHRINK`, `F_SEAL_GROW`), as
    /// [`new`](Self::new) makes it. A device that keeps the file takes a duplicate (`try_clone`), or maps it.
    pub file: OwnedFd,
    /// The offset in bytes at which the region begins in the file.
    pub offset: u64,
    /// The parts that may be mapped; if empty, the whole region may be mapped.
    pub areas: Vec<MappableArea>,
}

impl MappableFile {
    /// Makes a file of `len_bytes` zero bytes, all of which may be mapped.
    ///
    /// # Errors
    /// Those of `memfd_create(2)`, for example if descriptors are exhausted; `FileTooLarge` beyond the
    /// limit of this process (`RLIMIT_FSIZE`).
    pub fn new(len_bytes: u64) -> io::Result<Self> {
        if memory::file_size_limit().is_some_and(|limit| len_bytes > limit) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = memfd::create("vfio-user-region", Backing::Shmem)?;
        memfd::set_len(&file, len_bytes)?;
        memfd::add_seals(&file, Seals { shrink: true, grow: true, ..Seals::default() })?;
        Ok(Self { file, offset: 0, areas: Vec::new() })
    }

    /// Checks the file for region `index`, and seals it for one client.
    pub(crate) fn give(self, index: u32, region: &RegionDescription) -> io::Result<Mappable> {
        let Self { file, offset, areas } = self;
        let refused = |reason| {
            let reason = format!("clients cannot map region {index}: {reason}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
        };
        let seals = memfd::seals(&file).unwrap_or_default();
        if !seals.shrink || !seals.grow {
            return refused(
                "its file is not a memfd that is sealed against shrinking and growing, so a client \
                 could cut it off; use `MappableFile::new`",
            );
        }
        if seals.seal {
            return refused(
                "its file was given to a client before, which still has it, or has `F_SEAL_SEAL`; \
                 make a new one for each client and each region",
            );
        }
        let (file_bytes, _) = memfd::look_at(&file)?;
        if offset.checked_add(region.len_bytes).is_none_or(|end| end > file_bytes) {
            return refused("its file ends before the region does");
        }
        // Also marks the file as given: this seal cannot be taken back.
        memfd::add_seals(&file, Seals { seal: true, ..Seals::default() })?;
        let file = if region.writable { file } else { read_only(&file)? };
        Ok(Mappable { file: Arc::new(file), offset, areas })
    }
}

/// Opens a memfd read-only. From then on other users cannot open it for writing.
fn read_only(memfd: &OwnedFd) -> io::Result<OwnedFd> {
    memfd::set_permissions(memfd, 0o400)?;
    file::reopen_read_only(memfd.as_fd())
}

/// The memory of a region that belongs to the client of this connection, and to no other.
#[derive(Debug)]
pub(crate) struct Mappable {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) offset: u64,
    pub(crate) areas: Vec<MappableArea>,
}

impl Mappable {
    /// Adds the offset and the areas that can be mapped to the description of a region.
    pub(crate) fn describe(&self, info: &mut RegionInfo) {
        info.flags |= RegionInfo::MMAP;
        info.offset = self.offset;
        info.areas.clone_from(&self.areas);
    }
}
