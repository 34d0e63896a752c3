//! The client's memory, as it comes and goes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use longshore_mem::{AddrRange, FileOffset, Iova};
use longshore_sys::answering::is_disposable;
use longshore_sys::closing::Disposable;

use crate::Errno;
use crate::link::Link;
use crate::negotiation::Capabilities;
use crate::wire;

/// What keeps the client's memory for the device. The server calls it from the thread that serves
/// the client, and calls it only with what it has checked: maps do not overlap, are not empty, do
/// not wrap around and consist of whole pages, and what is unmapped was mapped just so.
pub trait DmaTarget {
    /// A client has come. Memory without a descriptor is reached through the link.
    fn connected(&mut self, link: &Link) {
        let _ = link;
    }

    /// The client is gone, and its memory has been unmapped. The link leads nowhere any more.
    fn disconnected(&mut self) {}

    /// Makes memory of the client reachable.
    ///
    /// # Errors
    /// What the client is told. Nothing must be left of the map then.
    fn dma_map(&mut self, map: DmaMapping) -> Result<(), Errno>;

    /// Takes it back. When this returns, nothing reaches it any more.
    ///
    /// # Errors
    /// What the client is told; the map then stays, as it does for the server.
    fn dma_unmap(&mut self, range: AddrRange<Iova>) -> Result<(), Errno>;

    /// The log of what the device writes; `None` where there is none.
    fn dirty_log(&mut self) -> Option<&mut dyn DirtyLog> {
        None
    }
}

/// A log of the pages that the device writes.
pub trait DirtyLog {
    /// Begins to log writes into `ranges`, or all where there are none; the size of the pages that
    /// it logs, which may be another than wanted.
    ///
    /// # Errors
    /// What the client is told; nothing is logged then.
    fn start(&mut self, ranges: &[AddrRange<Iova>], page_bytes: u64) -> Result<u64, Errno>;

    /// Ends it.
    ///
    /// # Errors
    /// What the client is told.
    fn stop(&mut self) -> Result<(), Errno>;

    /// Sets a bit in `bitmap` for each page of `page_bytes` in `range` that was written since this
    /// was last called. The bitmap is all zeros and as long as the range needs.
    ///
    /// # Errors
    /// What the client is told; what was written stays to be told later.
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
    /// Where the device sees it.
    pub range: AddrRange<Iova>,
    /// Whether the device may read it.
    pub readable: bool,
    /// Whether the device may write it.
    pub writable: bool,
    /// Where it is.
    pub backing: DmaBacking,
}

impl DmaMapping {
    /// Describes memory that the device may read and write.
    pub const fn new(range: AddrRange<Iova>, backing: DmaBacking) -> Self {
        Self { range, readable: true, writable: true, backing }
    }
}

/// How memory of the client is reached.
#[derive(Debug)]
pub enum DmaBacking {
    /// By mapping a file.
    Mmap {
        /// The file. What it is and how long it is has not been looked at. The client can have the last
        /// close of a DMA-buf wait for ever, and that of another file for long (by a million locks of
        /// `fcntl(2)`), and so its unmapping if that is the last reference
        /// ([`SpaceDma`](crate::SpaceDma) keeps one, and closes it on another thread).
        file: OwnedFd,
        /// Where in it the memory begins; a multiple of the page size.
        offset: FileOffset,
    },
    /// By reading and writing a file, which waits if the client holds the lock of its inode.
    FileIo {
        /// The file, as above.
        file: OwnedFd,
        /// Where in it the memory begins.
        offset: FileOffset,
    },
    /// By messages: [`Link::read`] and [`Link::write`].
    Messages,
}

/// Which memory is mapped, as the server knows it.
#[derive(Debug, Default)]
pub(crate) struct DmaMaps {
    /// By IOVA.
    maps: BTreeMap<u64, AddrRange<Iova>>,
}

impl DmaMaps {
    pub(crate) fn first(&self) -> Option<AddrRange<Iova>> {
        self.maps.values().next().copied()
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = AddrRange<Iova>> {
        self.maps.values().copied()
    }

    /// Whether `range`, which is not empty, shares a byte with a map.
    fn overlaps(&self, range: AddrRange<Iova>) -> bool {
        let Some(last) = range.last() else { return false };
        let below = self.maps.range(..=last.raw()).next_back();
        below.is_some_and(|(_, other)| other.intersection(range).is_some())
    }

    /// What a client claims, checked against what is mapped. Nothing is entered. If the last close of the
    /// file can wait, there is a copy of the descriptor, to be dropped when the file was mapped or refused.
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
            // What the kernel can address in a file.
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

    /// The map that has exactly these addresses.
    pub(crate) fn exact(&self, iova: u64, len_bytes: u64) -> Option<AddrRange<Iova>> {
        self.maps.get(&iova).copied().filter(|range| range.len() == len_bytes)
    }

    pub(crate) fn remove(&mut self, range: AddrRange<Iova>) {
        self.maps.remove(&range.start().raw());
    }
}
