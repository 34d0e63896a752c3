//! The memory table, the IOTLB and the dirty log of a front-end.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use longshore_access::client::{MappingPermit, MappingQuota};
use longshore_access::dirty::{BeyondLog, ExternalLog, Log};
use longshore_access::{Error, Logs, Region, RegionAccess, Space};
use longshore_mem::{AddrRange, FileOffset, GuestPhys, Iova};
use longshore_pagetable::Prot;
use longshore_sys::answering::is_disposable;

/// The most regions that a memory table may have: as many as the message holds.
pub const REGIONS_MAX: usize = 8;

/// The most translations that are kept. If there is one more, all earlier ones are dropped, which an
/// IOTLB may do at any time. As many pages of 4 KiB are 256 MiB.
pub const IOTLB_ENTRIES_MAX: usize = 1 << 16;

/// The most bytes that the regions of a memory table may have in all: 16 TiB of the 128 TiB of addresses
/// that a process has.
pub const TABLE_BYTES_MAX: u64 = 1 << 44;

/// A translation that is longer than this is attached as a region of its own, so that large leaves map
/// it ([`Space::attach_for`]). A shorter one needs at most two tables of the lowest level.
const SMALL_BYTES: u64 = 2 << 20;

/// The length of a log that has a bit for every page of 4 KiB below [`ADDRESS_END`].
const LOG_BYTES_MAX: u64 = ADDRESS_END / PAGE_BYTES / 8;

const PAGE_BYTES: u64 = 4096;
/// The end of the addresses of a space, and of a machine that is mapped one to one.
const ADDRESS_END: u64 = 1 << 48;

/// An address in the front-end's process. This process never accesses memory by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserAddr(u64);

impl UserAddr {
    /// Returns the address with this number.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns its number.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::LowerHex for UserAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A region of `VHOST_USER_SET_MEM_TABLE`. All numbers are the front-end's claims.
#[derive(Clone, Copy, Debug)]
pub struct TableRegion<'f> {
    /// The guest-physical address.
    pub guest_phys: GuestPhys,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The address in the front-end's process.
    pub user: UserAddr,
    /// The file that has the memory.
    pub file: BorrowedFd<'f>,
    /// The offset at which it begins in the file.
    pub offset: FileOffset,
}

/// The kind of addresses by which the device accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Guest-physical addresses.
    Identity,
    /// Addresses that the front-end translates: `VIRTIO_F_ACCESS_PLATFORM`.
    Iotlb,
}

/// The reason why a front-end's message about memory failed. It has changed nothing, unless documented
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// More regions than a table may have.
    #[error("a memory table of {regions} regions (expected at most {REGIONS_MAX})")]
    TooManyRegions {
        /// The number of regions.
        regions: usize,
    },
    /// More memory than a table may have.
    #[error(
        "a memory table with regions of {len_bytes:#x} bytes in all (expected at most \
         {TABLE_BYTES_MAX:#x})"
    )]
    TooLong {
        /// The number of bytes.
        len_bytes: u64,
    },
    /// A range that is empty, does not consist of whole pages of 4 KiB, or exceeds its address space.
    #[error(
        "{what} of {len_bytes:#x} bytes at {start:#x} does not consist of whole pages of 4 KiB \
         within its address space"
    )]
    BadRange {
        /// The kind of range: a region, a translation, …
        what: &'static str,
        /// Its first address.
        start: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// Two regions share addresses.
    #[error("the regions at guest-physical {first:#x} and {second:#x} overlap")]
    Overlap {
        /// One of them.
        first: GuestPhys,
        /// The other.
        second: GuestPhys,
    },
    /// A translation to memory that no region has.
    #[error(
        "{len_bytes:#x} bytes at the front-end's address {user:#x} are in no region of its table"
    )]
    NoRegion {
        /// The address in the front-end's process.
        user: UserAddr,
        /// The number of bytes.
        len_bytes: u64,
    },
    /// A translation that permits nothing.
    #[error("the translation at {iova:#x} permits neither reads nor writes")]
    NoAccess {
        /// The address to translate.
        iova: Iova,
    },
    /// A translation while the device uses guest-physical addresses.
    #[error("an IOTLB message, but VIRTIO_F_ACCESS_PLATFORM was not negotiated")]
    NotTranslated,
    /// Writes are to be logged, and no log was given.
    #[error("writes are to be logged, but no log was given (SET_LOG_BASE)")]
    NoLog,
    /// The log's memory cannot be mapped.
    #[error("a dirty log of {len_bytes:#x} bytes at offset {offset:#x} of its file: {source}")]
    Log {
        /// The offset of the log in its file.
        offset: FileOffset,
        /// The length of the log in bytes.
        len_bytes: u64,
        /// The error.
        source: io::Error,
    },
    /// The log has no bits for all memory.
    #[error(transparent)]
    BeyondLog(#[from] BeyondLog),
    /// The space returned an error. After [`SpaceMemory::set_table`] and
    /// [`set_translation`](SpaceMemory::set_translation), no memory may be mapped.
    #[error(transparent)]
    Space(#[from] Error),
}

/// A front-end's memory, in a space for the device's sessions.
///
/// * Each region is mapped shared, and guarded against truncation of its file. Writes are logged by the
///   region's guest-physical address, also those to the used rings.
/// * Unmapping returns when no session can access the memory any more. A session of the calling
///   thread must hold neither a pin nor a lease then.
#[derive(Debug)]
pub struct SpaceMemory {
    space: Space,
    table: Vec<Placed>,
    translation: Translation,
    /// Each range that is mapped, keyed by its IOVA. Nothing else is mapped in the space.
    mapped: BTreeMap<u64, Mapped>,
    log: Option<GivenLog>,
    is_logging: bool,
    /// The quota of the user for whom files are mapped.
    quota: MappingQuota,
}

/// The log of the front-end.
#[derive(Debug)]
struct GivenLog {
    log: Arc<ExternalLog>,
    /// Returned to the quota when this is dropped.
    _permit: MappingPermit,
}

/// A region of the table.
#[derive(Debug)]
struct Placed {
    region: Arc<Region>,
    guest_phys: GuestPhys,
    user: u64,
    len_bytes: u64,
}

/// A range that is mapped.
#[derive(Debug)]
struct Mapped {
    len_bytes: u64,
    /// The region that is attached only for this range.
    part: Option<Arc<Region>>,
}

impl SpaceMemory {
    /// Keeps a front-end's memory in `space`, in which nothing else may be mapped. There is no memory
    /// yet, and the device uses guest-physical addresses.
    ///
    /// From here on the space frees page tables when they are empty, and they take at most
    /// [`CLIENT_TABLE_BYTES_MAX`](longshore_access::CLIENT_TABLE_BYTES_MAX) unless the space has a limit
    /// ([`SpaceConfig::table_bytes_max`](longshore_access::SpaceConfig::table_bytes_max)). If a
    /// translation would exceed it, all earlier translations are dropped, as if there were too many.
    pub fn new(space: Space) -> Self {
        space.limit_for_client();
        Self {
            space,
            table: Vec::new(),
            translation: Translation::Identity,
            mapped: BTreeMap::new(),
            log: None,
            is_logging: false,
            quota: MappingQuota::of_process(),
        }
    }

    /// Counts the memory that is mapped from here on for the user with id `uid`: the peer of the
    /// connection (`SO_PEERCRED`). The mapped files of one user, and those of all users, are limited;
    /// without this call they are counted for the user of this process.
    #[must_use]
    pub fn with_uid(self, uid: u32) -> Self {
        let quota = self.quota.with_uid(uid);
        self.with_quota(quota)
    }

    pub(crate) fn with_quota(mut self, quota: MappingQuota) -> Self {
        self.quota = quota;
        self
    }

    /// Returns the space, of which clones are handles.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the kind of addresses by which the device accesses memory.
    pub fn translation(&self) -> Translation {
        self.translation
    }

    /// Returns the number of ranges that are mapped: regions, or translations.
    pub fn mapped_count(&self) -> usize {
        self.mapped.len()
    }

    /// Replaces the memory table by `regions`. All translations are dropped, because they lead to the
    /// former table.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn set_table(&mut self, regions: &[TableRegion<'_>]) -> Result<(), MemoryError> {
        check_table(regions)?;
        let new = regions.iter().map(|claim| place(self.quota, claim));
        let new: Vec<_> = new.collect::<Result<_, _>>()?;
        for (at, placed) in new.iter().enumerate() {
            let iova = Iova::new(placed.guest_phys.raw());
            if let Err(error) = self.space.attach_for(&placed.region, iova) {
                detach(&self.space, regions_of(&new[..at]));
                return Err(error.into());
            }
        }
        if let Err(error) = self.clear() {
            detach(&self.space, regions_of(&new));
            return Err(error);
        }
        detach(&self.space, regions_of(&self.table));
        self.table = new;
        self.map_table()
    }

    /// Sets the kind of addresses that the device uses, as the negotiated features say.
    ///
    /// # Errors
    /// [`MemoryError::Space`].
    pub fn set_translation(&mut self, translation: Translation) -> Result<(), MemoryError> {
        if translation != self.translation {
            self.clear()?;
            self.translation = translation;
            self.map_table()?;
        }
        Ok(())
    }

    /// Maps `len_bytes` from `iova` to the front-end's memory at `user`: `VHOST_IOTLB_UPDATE`. Earlier
    /// translations that share addresses with the range are dropped.
    ///
    /// # Errors
    /// [`MemoryError`]; earlier translations in the range may be dropped nevertheless.
    pub fn iotlb_update(
        &mut self,
        iova: Iova,
        len_bytes: u64,
        user: UserAddr,
        prot: Prot,
    ) -> Result<(), MemoryError> {
        self.check_translated()?;
        check_range("a translation", iova.raw(), len_bytes, ADDRESS_END)?;
        check_range("memory", user.raw(), len_bytes, u64::MAX)?;
        if !prot.intersects(Prot::READ_WRITE) {
            return Err(MemoryError::NoAccess { iova });
        }
        let (placed, offset) = self.find(user, len_bytes)?;
        let region = Arc::clone(&placed.region);
        self.forget(iova.raw(), iova.raw() + (len_bytes - 1))?;
        if self.mapped.len() >= IOTLB_ENTRIES_MAX {
            self.clear()?;
        }
        let mapped = match self.map_part(iova, &region, offset, len_bytes, prot) {
            Err(Error::TableLimit { .. } | Error::NoWindow { .. }) if !self.mapped.is_empty() => {
                self.clear()?;
                self.map_part(iova, &region, offset, len_bytes, prot)
            }
            mapped => mapped,
        }?;
        self.mapped.insert(iova.raw(), mapped);
        Ok(())
    }

    /// Maps a part of a region of the table, with few page tables for any length.
    fn map_part(
        &self,
        iova: Iova,
        region: &Arc<Region>,
        offset: u64,
        len_bytes: u64,
        prot: Prot,
    ) -> Result<Mapped, Error> {
        let part = match len_bytes > SMALL_BYTES {
            true => Region::part(region, offset, len_bytes).map(Arc::new),
            false => None,
        };
        let Some(part) = part else {
            self.space.map(iova, region, offset, len_bytes, prot)?;
            return Ok(Mapped { len_bytes, part: None });
        };
        self.space.attach_for(&part, iova)?;
        if let Err(error) = self.space.map(iova, &part, 0, len_bytes, prot) {
            detach(&self.space, [&part]);
            return Err(error);
        }
        Ok(Mapped { len_bytes, part: Some(part) })
    }

    /// Drops the translations that share addresses with `len_bytes` from `iova`:
    /// `VHOST_IOTLB_INVALIDATE`. When this returns, no session can access memory by them. A range that
    /// exceeds the address space is cut off at its end, and a range without translations is no error.
    ///
    /// # Errors
    /// [`MemoryError::NotTranslated`], [`MemoryError::Space`].
    pub fn iotlb_invalidate(&mut self, iova: Iova, len_bytes: u64) -> Result<(), MemoryError> {
        self.check_translated()?;
        match len_bytes.checked_sub(1) {
            Some(more) => self.forget(iova.raw(), iova.raw().saturating_add(more)),
            None => Ok(()),
        }
    }

    /// Returns the address at which the device finds the front-end's memory at `user`, of which
    /// `len_bytes` must lie in one region. This is for rings, whose addresses are the front-end's if
    /// nothing is translated.
    ///
    /// # Errors
    /// [`MemoryError::NoRegion`].
    pub fn guest_phys_of(&self, user: UserAddr, len_bytes: u64) -> Result<GuestPhys, MemoryError> {
        let (placed, offset) = self.find(user, len_bytes)?;
        // The region was checked to end within the address space.
        Ok(GuestPhys::new(placed.guest_phys.raw() + offset))
    }

    /// Uses `len_bytes` of a file from `offset` on as the log: `VHOST_USER_SET_LOG_BASE`. If writes are
    /// being logged, the new log has all writes from the return of this call on.
    ///
    /// # Errors
    /// [`MemoryError::Log`], [`MemoryError::BeyondLog`], [`MemoryError::Space`].
    pub fn set_log(
        &mut self,
        file: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
    ) -> Result<(), MemoryError> {
        // Call `as_fd` once: the file that is checked must be the one that is mapped.
        let file = file.as_fd();
        let permit = self.quota.acquire(len_bytes.min(LOG_BYTES_MAX)).map_err(Error::from)?;
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let log = if len_bytes > LOG_BYTES_MAX {
            refused("it is longer than a log of all addresses")
        } else if is_disposable(file) {
            // Unmapping a DMA-buf can block for ever.
            refused("it is neither a memfd nor a regular file")
        } else {
            ExternalLog::map_file(file, offset, len_bytes)
        };
        let log = log.map_err(|source| MemoryError::Log { offset, len_bytes, source })?;
        for placed in &self.table {
            if let Ok(range) = AddrRange::new(placed.guest_phys, placed.len_bytes) {
                log.check(range)?;
            }
        }
        let log = Arc::new(log);
        if self.is_logging {
            self.space.set_logs(logs(&log))?;
        }
        self.log = Some(GivenLog { log, _permit: permit });
        Ok(())
    }

    /// Switches the log on or off: `VHOST_F_LOG_ALL`. If it is switched on, each write after the return
    /// of this call is logged.
    ///
    /// # Errors
    /// [`MemoryError::NoLog`], [`MemoryError::Space`].
    pub fn log_writes(&mut self, are_logged: bool) -> Result<(), MemoryError> {
        if are_logged == self.is_logging {
            return Ok(());
        }
        let logs = match &self.log {
            _ if !are_logged => Logs::default(),
            Some(given) => logs(&given.log),
            None => return Err(MemoryError::NoLog),
        };
        self.space.set_logs(logs)?;
        self.is_logging = are_logged;
        Ok(())
    }

    /// Returns the log, for writes that a device marks itself: those to a used ring, by the ring's log
    /// address.
    pub fn log(&self) -> Option<&Arc<ExternalLog>> {
        self.log.as_ref().map(|given| &given.log)
    }

    /// Returns the number of writes since the space was made that were not logged although they should
    /// have been, because the front-end has truncated the log's file.
    pub fn unlogged_count(&self) -> u64 {
        self.space.counters().unlogged
    }

    /// Drops all memory, because the front-end has disconnected.
    ///
    /// # Errors
    /// [`MemoryError::Space`], if the calling thread would wait for itself.
    pub fn reset(&mut self) -> Result<(), MemoryError> {
        self.log_writes(false)?;
        self.log = None;
        self.set_table(&[])?;
        self.translation = Translation::Identity;
        Ok(())
    }

    /// Returns the region that has `len_bytes` of the front-end's memory from `user` on, and the offset
    /// in it.
    fn find(&self, user: UserAddr, len_bytes: u64) -> Result<(&Placed, u64), MemoryError> {
        let found = self.table.iter().find_map(|placed| {
            let offset = user.raw().checked_sub(placed.user)?;
            let room = placed.len_bytes.checked_sub(offset)?;
            (len_bytes <= room).then_some((placed, offset))
        });
        found.ok_or(MemoryError::NoRegion { user, len_bytes })
    }

    fn check_translated(&self) -> Result<(), MemoryError> {
        match self.translation {
            Translation::Iotlb => Ok(()),
            Translation::Identity => Err(MemoryError::NotTranslated),
        }
    }

    /// Unmaps all ranges that have a byte from `first` to `last`, with one grace period.
    fn forget(&mut self, first: u64, last: u64) -> Result<(), MemoryError> {
        // A range that begins before `first` may extend beyond it.
        let before = self.mapped.range(..first).next_back();
        let before = before.filter(|(start, mapped)| **start + (mapped.len_bytes - 1) >= first);
        let inside = self.mapped.range(first..=last);
        let starts: Vec<_> = before.into_iter().chain(inside).map(|(start, _)| *start).collect();
        if starts.is_empty() {
            return Ok(());
        }
        let mut batch = self.space.batch();
        let mut parts = Vec::new();
        for start in starts {
            let Some(mapped) = self.mapped.get(&start) else { continue };
            batch.unmap(Iova::new(start), mapped.len_bytes)?;
            parts.extend(self.mapped.remove(&start).and_then(|mapped| mapped.part));
        }
        batch.finish()?;
        detach(&self.space, &parts);
        Ok(())
    }

    fn clear(&mut self) -> Result<(), MemoryError> {
        self.forget(0, u64::MAX)
    }

    /// Maps the table one to one, if the device uses it like that.
    fn map_table(&mut self) -> Result<(), MemoryError> {
        if self.translation == Translation::Iotlb {
            return Ok(());
        }
        for placed in &self.table {
            let iova = Iova::new(placed.guest_phys.raw());
            self.space.map(iova, &placed.region, 0, placed.len_bytes, Prot::READ_WRITE)?;
            let mapped = Mapped { len_bytes: placed.len_bytes, part: None };
            self.mapped.insert(iova.raw(), mapped);
        }
        Ok(())
    }
}

impl Drop for SpaceMemory {
    fn drop(&mut self) {
        // This fails only on a thread that would wait for itself; the space then keeps the memory.
        let _ = self.reset();
    }
}

fn logs(log: &Arc<ExternalLog>) -> Logs {
    Logs::default().with_guest_phys(Log::External(Arc::clone(log)))
}

fn place(quota: MappingQuota, claim: &TableRegion<'_>) -> Result<Placed, MemoryError> {
    let &TableRegion { guest_phys, len_bytes, user, file, offset } = claim;
    let io = |source| Error::Io { operation: "keep a descriptor of a file", source };
    let file = file.try_clone_to_owned().map_err(io)?;
    let region = quota.map_file(file, offset, len_bytes, RegionAccess::ReadWrite)?;
    let region = Arc::new(region.at_guest_phys(guest_phys));
    Ok(Placed { region, guest_phys, user: user.raw(), len_bytes })
}

fn regions_of(placed: &[Placed]) -> impl Iterator<Item = &Arc<Region>> {
    placed.iter().map(|placed| &placed.region)
}

/// Detaches regions of which no part is mapped.
fn detach<'r>(space: &Space, regions: impl IntoIterator<Item = &'r Arc<Region>>) {
    for region in regions {
        let detached = space.detach(region);
        debug_assert!(detached.is_ok(), "nothing of it is mapped: {detached:?}");
    }
}

fn check_table(regions: &[TableRegion<'_>]) -> Result<(), MemoryError> {
    if regions.len() > REGIONS_MAX {
        return Err(MemoryError::TooManyRegions { regions: regions.len() });
    }
    let len_bytes = regions.iter().fold(0, |sum: u64, region| sum.saturating_add(region.len_bytes));
    if len_bytes > TABLE_BYTES_MAX {
        return Err(MemoryError::TooLong { len_bytes });
    }
    for (at, region) in regions.iter().enumerate() {
        let len_bytes = region.len_bytes;
        check_range("a region", region.guest_phys.raw(), len_bytes, ADDRESS_END)?;
        check_range("a region's user memory", region.user.raw(), len_bytes, u64::MAX)?;
        check_range("a region's file", region.offset.raw(), len_bytes, i64::MAX as u64)?;
        let overlaps =
            |(a, a_len): (u64, u64), (b, b_len): (u64, u64)| a < b + b_len && b < a + a_len;
        for other in &regions[..at] {
            let guest = |of: &TableRegion<'_>| (of.guest_phys.raw(), of.len_bytes);
            let user = |of: &TableRegion<'_>| (of.user.raw(), of.len_bytes);
            if overlaps(guest(region), guest(other)) || overlaps(user(region), user(other)) {
                let (first, second) = (other.guest_phys, region.guest_phys);
                return Err(MemoryError::Overlap { first, second });
            }
        }
    }
    Ok(())
}

/// Checks that a range consists of whole pages and ends at `end` or before.
fn check_range(
    what: &'static str,
    start: u64,
    len_bytes: u64,
    end: u64,
) -> Result<(), MemoryError> {
    let is_good = len_bytes != 0
        && (start | len_bytes).is_multiple_of(PAGE_BYTES)
        && start.checked_add(len_bytes).is_some_and(|its_end| its_end <= end);
    if is_good { Ok(()) } else { Err(MemoryError::BadRange { what, start, len_bytes }) }
}
