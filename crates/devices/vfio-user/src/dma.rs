//! The client's memory, as the client maps and unmaps it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use longshore_mem::{AddrRange, FileOffset, Iova};
use longshore_sys::answering::is_disposable;
use longshore_sys::closing::Disposable;

use crate::Errno;
use crate::link::Link;
use crate::negotiation::Capabilities;
use crate::wire;

/// The owner of the client's memory for the device. The server calls it on the thread that serves the
/// client, with checked ranges only: maps do not overlap, are not empty, do not wrap around and consist
/// of whole pages, and each range to unmap is exactly that of a map.
pub trait DmaTarget {
    /// Called when a client has connected. Memory without a descriptor is accessed through the link.
    fn connected(&mut self, link: &Link) {
        let _ = link;
    }

    /// Called when the client has disconnected and its memory is unmapped. The link no longer works.
    fn disconnected(&mut self) {}

    /// Maps memory of the client.
    ///
    /// # Errors
    /// The error that is sent to the client. Nothing of the map may be left then.
    fn dma_map(&mut self, map: DmaMapping) -> Result<(), Errno>;

    /// Unmaps memory of the client. When this returns, nothing can access it any more.
    ///
    /// # Errors
    /// The error that is sent to the client; the memory must then still be mapped, and the server keeps
    /// the map, too.
    fn dma_unmap(&mut self, range: AddrRange<Iova>) -> Result<(), Errno>;

    /// Returns the log of the pages that the device writes, or `None` if there is no log.
    fn dirty_log(&mut self) -> Option<&mut dyn DirtyLog> {
        None
    }
}

/// A log of the pages that the device writes.
pub trait DirtyLog {
    /// Begins to log writes to `ranges`, or to all addresses if `ranges` is empty. Returns the size of
    /// the log's pages in bytes, which may differ from `page_bytes`.
    ///
    /// # Errors
    /// The error that is sent to the client; nothing is logged then.
    fn start(&mut self, ranges: &[AddrRange<Iova>], page_bytes: u64) -> Result<u64, Errno>;

    /// Stops logging.
    ///
    /// # Errors
    /// The error that is sent to the client.
    fn stop(&mut self) -> Result<(), Errno>;

    /// Sets a bit in `bitmap` for each page of `page_bytes` in `range` that was written since the last
    /// call. The bitmap is all zeros and as long as the range needs.
    ///
    /// # Errors
    /// The error that is sent to the client; a later call must report the pages that were written.
    fn report(
        &mut self,
        range: AddrRange<Iova>,
        page_bytes: u64,
        bitmap: &mut [u64],
    ) -> Result<(), Errno>;
}

/// Memory of the client.
#[derive(Debug)]
#[non_exhaustive]
pub struct DmaMapping {
    /// The range of addresses at which the device accesses it.
    pub range: AddrRange<Iova>,
    /// `true` if the device may read it.
    pub readable: bool,
    /// `true` if the device may write it.
    pub writable: bool,
    /// The way in which the memory is accessed.
    pub backing: DmaBacking,
}

impl DmaMapping {
    /// Describes memory that the device may read and write.
    pub const fn new(range: AddrRange<Iova>, backing: DmaBacking) -> Self {
        Self { range, readable: true, writable: true, backing }
    }
}

/// The way in which memory of the client is accessed.
#[derive(Debug)]
pub enum DmaBacking {
    /// By mapping a file.
    Mmap {
        /// The file. Its type and length have not been checked. A client can delay the last close of a
        /// DMA-buf for ever, and that of another file for long (by a million `fcntl(2)` locks).
        /// Unmapping then takes as long, if the mapping is the last reference
        /// ([`SpaceDma`](crate::SpaceDma) keeps another reference, and closes it on another thread).
        file: OwnedFd,
        /// The offset in the file at which the memory begins; a multiple of the page size.
        offset: FileOffset,
    },
    /// By reading and writing a file; both block while the client holds the lock of its inode.
    FileIo {
        /// The file, as in [`Mmap`](Self::Mmap).
        file: OwnedFd,
        /// The offset in the file at which the memory begins.
        offset: FileOffset,
    },
    /// By messages: [`Link::read`] and [`Link::write`].
    Messages,
}

/// The client's maps, as the server records them.
#[derive(Debug, Default)]
pub(crate) struct DmaMaps {
    /// Keyed by IOVA.
    maps: BTreeMap<u64, AddrRange<Iova>>,
}

impl DmaMaps {
    pub(crate) fn first(&self) -> Option<AddrRange<Iova>> {
        self.maps.values().next().copied()
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = AddrRange<Iova>> {
        self.maps.values().copied()
    }

    /// Returns `true` if `range`, which is not empty, shares a byte with a map.
    fn overlaps(&self, range: AddrRange<Iova>) -> bool {
        let Some(last) = range.last() else { return false };
        let below = self.maps.range(..=last.raw()).next_back();
        below.is_some_and(|(_, other)| other.intersection(range).is_some())
    }

    /// Checks a client's claim against the existing maps, and does not enter it. If the last close of
    /// the file can block, the result has a duplicate of the descriptor, to be dropped after the file
    /// was mapped or refused.
    pub(crate) fn check(
        &self,
        claim: &wire::DmaMap,
        mut files: Vec<Disposable<OwnedFd>>,
        limits: &Capabilities,
    ) -> Result<(DmaMapping, Option<Disposable<OwnedFd>>), Errno> {
        const KNOWN: u32 = wire::DmaMap::READ
            | wire::DmaMap::WRITE
            | wire::DmaMap::BY_MMAP
            | wire::DmaMap::BY_FILE_IO;
        let has = |flag| claim.flags & flag != 0;
        let page_mask = limits.page_bytes() - 1;
        let range =
            AddrRange::new(Iova::new(claim.iova), claim.len_bytes).map_err(|_| Errno::EINVAL)?;
        let (readable, writable) = (has(wire::DmaMap::READ), has(wire::DmaMap::WRITE));
        let (by_mmap, by_file_io) = (has(wire::DmaMap::BY_MMAP), has(wire::DmaMap::BY_FILE_IO));
        if claim.flags & !KNOWN != 0
            || !(readable || writable)
            || (by_mmap && by_file_io)
            || range.is_empty()
            || (claim.iova | claim.len_bytes) & page_mask != 0
            || files.len() > 1
        {
            return Err(Errno::EINVAL);
        }
        let offset = FileOffset::new(claim.offset);
        let file_end = claim.offset.checked_add(claim.len_bytes);
        let file = files.pop();
        let is_wrong = match &file {
            None => by_mmap || by_file_io,
            // Beyond the file offsets that the kernel supports.
            Some(_) if file_end.is_none_or(|end| end > i64::MAX as u64) => true,
            Some(_) => !by_file_io && claim.offset & page_mask != 0,
        };
        if is_wrong {
            return Err(Errno::EINVAL);
        }
        if self.overlaps(range) {
            return Err(Errno::EEXIST);
        }
        if self.maps.len() as u64 >= limits.dma_maps_max.into() {
            return Err(Errno::ENOSPC);
        }
        let copy = match file.as_ref().filter(|file| is_disposable(file)) {
            Some(file) => Some(Disposable::of_user(file.try_clone()?, file.user())),
            None => None,
        };
        let backing = match file.map(Disposable::into_inner) {
            None => DmaBacking::Messages,
            Some(file) if by_file_io => DmaBacking::FileIo { file, offset },
            Some(file) => DmaBacking::Mmap { file, offset },
        };
        Ok((DmaMapping { range, readable, writable, backing }, copy))
    }

    pub(crate) fn enter(&mut self, range: AddrRange<Iova>) {
        self.maps.insert(range.start().raw(), range);
    }

    /// Returns the map that has exactly these addresses.
    pub(crate) fn exact(&self, iova: u64, len_bytes: u64) -> Option<AddrRange<Iova>> {
        self.maps.get(&iova).copied().filter(|range| range.len() == len_bytes)
    }

    pub(crate) fn remove(&mut self, range: AddrRange<Iova>) {
        self.maps.remove(&range.start().raw());
    }
}
