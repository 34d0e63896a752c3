//! The client's memory in a [`Space`], where sessions find it by IOVA.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use longshore_mem::{AddrRange, Iova, VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::file;

use crate::Errno;
use crate::dma::{DirtyLog, DmaBacking, DmaMapping, DmaTarget};
use crate::link::{DmaError, DmaErrorKind, Link};
use crate::space_log::SpaceLog;
use longshore_access::client::MappingQuota;
use longshore_access::{Error, Reason, Region, RegionAccess, RemoteFault, RemoteMemory, Space};

/// The maximum number of files that are mapped for a client at a time. Each mapping is an area of the
/// process's address space, and the kernel allows 65,530 areas by default (`vm.max_map_count`), for all
/// purposes.
///
/// All clients of one user together can have a quarter of these, and those of all users a half. They can also
/// have at most an eighth and a quarter of the descriptors of this process (`RLIMIT_NOFILE`), because the
/// descriptor of each mapped file is kept.
pub const MAPPED_FILES_MAX: usize = 16_384;

/// The maximum number of bytes of addresses that the mapped files of a client take in all: 16 TiB of the
/// 128 TiB that a process has, unless [`SpaceDma::with_mapped_bytes_max`] sets another limit. All
/// clients of one user together can have 32 TiB, and those of all users 64 TiB.
///
/// The kernel's own page tables take up to 1/512 of the addresses that are touched, and it charges them
/// to this process: if clients are not trusted, choose a limit that suits the machine's memory.
pub const MAPPED_BYTES_MAX: u64 = 1 << 44;

/// A [`DmaTarget`] that keeps the client's memory in a space, for the device's sessions.
///
/// * Memory with a descriptor is mapped, read-only if the device may only read, and guarded against
///   truncation of its file, also if the client asks for reads and writes of the file
///   ([`DmaBacking::FileIo`]). It must lie inside its file and begin at a multiple of the page size.
/// * Memory without a descriptor is remote: it can be copied and not pinned. Accesses fail with
///   [`Reason::Permission`] if the client refuses, [`Reason::Revoked`] if the client unmaps the memory
///   meanwhile, [`Reason::TimedOut`] if the client does not answer, and [`Reason::BackingLost`] if it
///   has disconnected.
/// * Unmapping returns when no session can access the memory any more. A session of the server's own
///   thread must hold neither a pin nor a lease then.
/// * The client may have writes logged by IOVA, unless the owner of the space logs them already. The
///   log has a bit for each page from the lowest address to the highest that the client names, at
///   most 2^31 bits; if the pages that the client asks for are too small for that, larger ones are used.
/// * The page tables of the space, the number of files ([`MAPPED_FILES_MAX`]) and their addresses
///   ([`MAPPED_BYTES_MAX`]) are limited for each client. The files and addresses are also limited for all
///   clients of a user together and for all users. A map beyond a limit is refused with [`Errno::ENOSPC`].
///   The user is the one that connected to the [`Server`](crate::Server); without a connection it is the
///   user of this process.
#[derive(Debug)]
pub struct SpaceDma {
    space: Space,
    link: Option<Link>,
    /// Keyed by the IOVA at which they are mapped.
    regions: BTreeMap<u64, Held>,
    used: Cost,
    mapped_bytes_max: u64,
    /// The quota of the user for whom files are mapped.
    quota: MappingQuota,
    log: SpaceLog,
}

/// A region that is mapped.
#[derive(Debug)]
struct Held {
    region: Arc<Region>,
    cost: Cost,
}

/// The resources of this process that the memory of a client takes.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    mapped_files: usize,
    mapped_bytes: u64,
}

impl Cost {
    /// The cost of a region that has no descriptor.
    const NONE: Self = Self { mapped_files: 0, mapped_bytes: 0 };

    /// Returns the sum, or `None` if it is beyond a limit.
    fn checked_add(self, more: Self, mapped_bytes_max: u64) -> Option<Self> {
        let both = Self {
            mapped_files: self.mapped_files + more.mapped_files,
            mapped_bytes: self.mapped_bytes.saturating_add(more.mapped_bytes),
        };
        let fits = both.mapped_files <= MAPPED_FILES_MAX && both.mapped_bytes <= mapped_bytes_max;
        fits.then_some(both)
    }

    fn remove(&mut self, less: Self) {
        self.mapped_files -= less.mapped_files;
        self.mapped_bytes -= less.mapped_bytes;
    }
}

impl SpaceDma {
    /// Makes a target that keeps the client's memory in `space`. Nothing else may be mapped at the
    /// client's addresses.
    ///
    /// From here on the space frees page tables when they are empty, and they take at most
    /// [`CLIENT_TABLE_BYTES_MAX`](longshore_access::CLIENT_TABLE_BYTES_MAX) unless the space has a limit
    /// ([`SpaceConfig::table_bytes_max`](longshore_access::SpaceConfig::table_bytes_max)).
    pub fn new(space: Space) -> Self {
        space.limit_for_client();
        let log = SpaceLog::new(space.clone());
        let (regions, used) = (BTreeMap::new(), Cost::NONE);
        let (mapped_bytes_max, quota) = (MAPPED_BYTES_MAX, MappingQuota::of_process());
        Self { space, link: None, regions, used, mapped_bytes_max, quota, log }
    }

    /// Sets the limit of the addresses that the mapped files of a client take in all, instead of
    /// [`MAPPED_BYTES_MAX`].
    #[must_use]
    pub fn with_mapped_bytes_max(self, bytes: u64) -> Self {
        Self { mapped_bytes_max: bytes, ..self }
    }

    /// Returns the space, of which clones are handles.
    pub fn space(&self) -> &Space {
        &self.space
    }

    fn region(&self, map: DmaMapping) -> Result<(Region, Cost), Errno> {
        let len_bytes = map.range.len();
        let is_by_io = matches!(map.backing, DmaBacking::FileIo { .. });
        match map.backing {
            // Files that the client asks to be read and written are mapped, too: a write waits for the
            // lock of the file, which the client can hold for ever, and a page fault does not.
            DmaBacking::Mmap { file, offset } | DmaBacking::FileIo { file, offset } => {
                // The next steps may fail, and closing the file may block.
                let user = self.link.as_ref().map_or_else(User::own, Link::user);
                let file = Disposable::of_user(file, user);
                if is_by_io && file::status(&file)?.kind != file::Kind::Regular {
                    return Err(Errno::EINVAL);
                }
                let cost = Cost { mapped_files: 1, mapped_bytes: len_bytes };
                self.used.checked_add(cost, self.mapped_bytes_max).ok_or(Errno::ENOSPC)?;
                let access =
                    if map.writable { RegionAccess::ReadWrite } else { RegionAccess::ReadOnly };
                let region = self.quota.map_file(file.into_inner(), offset, len_bytes, access)?;
                let mapped_bytes = region.address_bytes();
                Ok((region, Cost { mapped_bytes, ..cost }))
            }
            DmaBacking::Messages => {
                let link = self.link.clone().ok_or(Errno::EIO)?;
                let memory = LinkMemory { link, start: map.range.start() };
                Ok((Region::remote(Arc::new(memory), len_bytes)?, Cost::NONE))
            }
        }
    }
}

impl DmaTarget for SpaceDma {
    fn connected(&mut self, link: &Link) {
        self.link = Some(link.clone());
        self.quota = self.quota.with_uid(link.user().uid());
    }

    fn disconnected(&mut self) {
        self.link = None;
    }

    fn dma_map(&mut self, map: DmaMapping) -> Result<(), Errno> {
        let prot = match (map.readable, map.writable) {
            (true, true) => Prot::READ_WRITE,
            (false, true) => Prot::WRITE,
            _ => Prot::READ,
        };
        let range = map.range;
        let (region, cost) = self.region(map)?;
        let used = self.used.checked_add(cost, self.mapped_bytes_max).ok_or(Errno::ENOSPC)?;
        let region = Arc::new(region);
        self.space.attach_for(&region, range.start())?;
        let mapped = self.space.map(range.start(), &region, 0, range.len(), prot);
        if let Err(error) = mapped {
            self.space.detach(&region)?;
            return Err(error.into());
        }
        self.regions.insert(range.start().raw(), Held { region, cost });
        self.used = used;
        Ok(())
    }

    fn dma_unmap(&mut self, range: AddrRange<Iova>) -> Result<(), Errno> {
        let start = range.start().raw();
        let held = self.regions.get(&start).ok_or(Errno::ENOENT)?;
        self.space.unmap(range.start(), range.len())?;
        self.space.detach(&held.region)?;
        self.used.remove(held.cost);
        self.regions.remove(&start);
        Ok(())
    }

    fn dirty_log(&mut self) -> Option<&mut dyn DirtyLog> {
        Some(&mut self.log)
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::Io { source, .. } => source.into(),
            Error::PinnedByCaller { .. } => Self::EBUSY,
            Error::OutOfMemory | Error::NoWindow { .. } => Self::ENOMEM,
            Error::TableLimit { .. } | Error::ClientLimit(_) => Self::ENOSPC,
            // Most often an IOVA that the space does not translate.
            _ => Self::EINVAL,
        }
    }
}

/// Memory of the client that is accessed by messages.
#[derive(Debug)]
struct LinkMemory {
    link: Link,
    start: Iova,
}

impl LinkMemory {
    fn at(&self, offset: u64) -> Iova {
        // The range was validated, and offsets are within it.
        Iova::new(self.start.raw().wrapping_add(offset))
    }
}

impl RemoteMemory for LinkMemory {
    fn read(&self, offset: u64, into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        fill(into, |at, part| {
            let read = self.link.read(self.at(offset + at), part);
            read.map_err(|failed| partial(&failed))
        })
    }

    fn write(&self, offset: u64, from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        drain(from, |at, part| {
            let written = self.link.write(self.at(offset + at), part);
            written.map_err(|failed| partial(&failed))
        })
    }

    fn cancel(&self, range: Range<u64>) {
        self.link.cancel(&(self.at(range.start).raw()..self.at(range.end).raw()));
    }
}

fn partial(failed: &DmaError) -> RemoteFault {
    let reason = match failed.kind {
        DmaErrorKind::Refused(_) => Reason::Permission,
        DmaErrorKind::Cancelled => Reason::Revoked,
        DmaErrorKind::TimedOut => Reason::TimedOut,
        _ => Reason::BackingLost,
    };
    RemoteFault::new(failed.done_bytes, reason)
}

/// The length of the private buffer that bytes are copied through.
const BOUNCE_BYTES: usize = 64 << 10;

/// Fills foreign memory with parts that `read` provides, each with its offset.
fn fill(
    mut into: VolatileSliceMut<'_>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), RemoteFault>,
) -> Result<(), RemoteFault> {
    let len_bytes = into.len();
    let mut bounce = vec![0; BOUNCE_BYTES.min(len_bytes)];
    for at in (0..len_bytes).step_by(BOUNCE_BYTES) {
        let part = &mut bounce[..BOUNCE_BYTES.min(len_bytes - at)];
        let read = read(at as u64, part);
        let done = read.map_or_else(|partial| partial.done.min(part.len()), |()| part.len());
        // The part is within `into`.
        let copied = into.write(at, &part[..done]);
        let lost = |_| RemoteFault::new(at, Reason::BackingLost);
        copied.map_err(lost)?;
        read.map_err(|partial| RemoteFault::new(at + done, partial.reason))?;
    }
    Ok(())
}

/// Passes foreign memory to `write`, in parts with their offsets.
fn drain(
    from: VolatileSlice<'_>,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), RemoteFault>,
) -> Result<(), RemoteFault> {
    let len_bytes = from.len();
    let mut bounce = vec![0; BOUNCE_BYTES.min(len_bytes)];
    for at in (0..len_bytes).step_by(BOUNCE_BYTES) {
        let part = &mut bounce[..BOUNCE_BYTES.min(len_bytes - at)];
        let lost = |_| RemoteFault::new(at, Reason::BackingLost);
        from.read(at, part).map_err(lost)?;
        write(at as u64, part)
            .map_err(|partial| RemoteFault::new(at + partial.done, partial.reason))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use longshore_access::client::MappingAccounts;
    use longshore_mem::FileOffset;
    use longshore_sys::memfd;

    use super::*;

    const PAGE: u64 = 4096;

    /// Returns a quota from new accounts, which allow this much to one user and twice as much to all
    /// users.
    fn quota(files: u64, bytes: u64) -> MappingQuota {
        let accounts = Box::leak(Box::new(MappingAccounts::new(files, bytes)));
        MappingQuota::new(accounts, User::own().uid())
    }

    fn file(len_bytes: u64) -> OwnedFd {
        let file = memfd::create("client", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&file, len_bytes).unwrap();
        file
    }

    fn range(page: u64) -> AddrRange<Iova> {
        AddrRange::new(Iova::new(page * PAGE), PAGE).unwrap()
    }

    fn map(file: &OwnedFd, page: u64) -> DmaMapping {
        let (file, offset) = (file.try_clone().unwrap(), FileOffset::new(0));
        let backing = DmaBacking::Mmap { file, offset };
        DmaMapping::new(range(page), backing)
    }

    fn dma_of(quota: MappingQuota) -> SpaceDma {
        SpaceDma { quota, ..SpaceDma::new(Space::new().unwrap()) }
    }

    #[test]
    fn files_of_a_client_are_limited() {
        // The user's limit is larger. As many descriptors may not be free.
        let (mut dma, one) = (dma_of(quota(1 << 20, 1 << 46)), file(PAGE));
        dma.used = Cost { mapped_files: MAPPED_FILES_MAX - 2, mapped_bytes: 0 };
        for page in [7, 8] {
            dma.dma_map(map(&one, page)).unwrap();
        }
        let page = 9;
        assert_eq!(dma.dma_map(map(&one, page)), Err(Errno::ENOSPC));
        let backing =
            DmaBacking::FileIo { file: one.try_clone().unwrap(), offset: FileOffset::new(0) };
        let by_file_io = DmaMapping { backing, ..map(&one, page) };
        assert_eq!(dma.dma_map(by_file_io), Err(Errno::ENOSPC));
        dma.dma_unmap(range(7)).unwrap();
        dma.dma_map(map(&one, page)).unwrap();
    }

    #[test]
    fn files_of_all_clients_of_a_user_are_limited_and_return() {
        let (quota, one) = (quota(3, 1 << 46), file(PAGE));
        let (mut first, mut second) = (dma_of(quota), dma_of(quota));
        first.dma_map(map(&one, 1)).unwrap();
        first.dma_map(map(&one, 2)).unwrap();
        // Refused by the space, after the file was mapped and counted.
        assert!(first.dma_map(map(&one, 2)).is_err());
        second.dma_map(map(&one, 1)).unwrap();
        for dma in [&mut first, &mut second] {
            assert_eq!(dma.dma_map(map(&one, 9)), Err(Errno::ENOSPC));
        }
        first.dma_unmap(range(1)).unwrap();
        second.dma_map(map(&one, 2)).unwrap();
        assert_eq!(first.dma_map(map(&one, 1)), Err(Errno::ENOSPC));
        drop(second);
        first.dma_map(map(&one, 1)).unwrap();
        first.dma_map(map(&one, 3)).unwrap();
        assert_eq!(first.dma_map(map(&one, 4)), Err(Errno::ENOSPC));
    }
}
