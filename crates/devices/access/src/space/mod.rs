//! The translations of one address space ([`Space`]).
#![expect(unsafe_code, reason = "maps addresses that the caller vouches for")]

mod batch;
mod dirty_bits;
mod inner;
mod logging;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use longshore_mem::{AddrRange, BusAddr, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{Format, VtdSecond, VtdSecondConfig};
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Error as TableError, Image, PageTable, Prot, TlbGather, Walker};

use crate::config::CLIENT_TABLE_BYTES_MAX;
use crate::config::SpaceConfig;
use crate::error::Error;
use crate::lease::Leases;
use crate::logs::Current;
use crate::region::Region;
use crate::windows::{WINDOWS_START, Windows};
use longshore_sync::Barrier;
use longshore_sync::grace::GracePeriods;

pub use batch::Batch;
use inner::{Inner, Kept, check_log, key_of};
pub(crate) use inner::{Table, thread_token};

/// The size of a page table of a space.
const TABLE_BYTES: u64 = 4096;

impl Default for SpaceConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Counters of the costly operations of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// The number of grace periods that needed a barrier, because a session was not parked.
    pub barriers: u64,
    /// The number of times that a grace period waited for a session in the middle of an access.
    pub waited: u64,
    /// The number of times that a lock was taken: by the safe methods, and for leases and remote
    /// regions.
    pub locks: u64,
    /// The number of writes that a log did not cover.
    pub unlogged: u64,
}

/// The translations of one address space. Clones share the same space.
///
/// There are two ways to change them:
///
/// * [`map`](Self::map) and [`unmap`](Self::unmap) are safe. The space keeps attached regions alive, and
///   a region cannot be detached while any of it is mapped.
/// * [`map_raw`](Self::map_raw) and [`unmap_raw`](Self::unmap_raw) take no lock and allocate nothing but
///   page tables. The caller keeps the memory alive, and never makes calls with overlapping ranges at
///   the same time.
#[derive(Clone)]
pub struct Space {
    pub(crate) inner: Arc<Inner>,
}

impl Space {
    /// Makes an empty space of 48 bits.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new() -> Result<Self, Error> {
        Self::with_config(SpaceConfig::new())
    }

    /// Makes an empty space with the given configuration.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::OutOfMemory`]; [`Error::Io`] if `membarrier` was asked for and the
    /// kernel refuses it.
    pub fn with_config(config: SpaceConfig) -> Result<Self, Error> {
        Self::build(config, true)
    }

    /// Makes a space in which unmapping does not wait for sessions, to show why it has to.
    ///
    /// # Errors
    /// The same as for [`with_config`](Self::with_config).
    ///
    /// # Safety
    /// Unmapped memory may still be accessed at any later time, so it must never be freed.
    #[doc(hidden)]
    pub unsafe fn without_grace_periods(config: SpaceConfig) -> Result<Self, Error> {
        Self::build(config, false)
    }

    fn build(config: SpaceConfig, waits: bool) -> Result<Self, Error> {
        let input_bits = config.input_bits;
        let format = VtdSecond::new(
            VtdSecondConfig::new()
                .with_input_bits(input_bits)
                .with_output_bits(52)
                .with_snoop_control(false)
                .with_dirty_tracking(config.dirty_bits),
        );
        let format = format.map_err(|source| Error::Config { input_bits, source })?;
        let table_bytes_max = config.table_bytes_max.unwrap_or(u64::MAX);
        let table = PageTable::new(format, HostPages::with_limit(table_bytes_max), Coherent);
        let inner = Inner {
            table: table.map_err(|_| Error::OutOfMemory)?,
            grace: GracePeriods::new(choose_barrier(config.barrier)?, waits),
            windows: Windows::new(),
            leases: Leases::default(),
            logs: Current::default(),
            state: Mutex::default(),
            locks: AtomicU64::new(0),
            raw_only: config.raw_only,
            table_bytes_max: AtomicU64::new(table_bytes_max),
            frees_tables: AtomicBool::new(config.frees_tables),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Maps `len_bytes` from `iova` to memory of this process at `bus`, its exposed address
    /// (`expose_provenance`), below 2^48. All three are multiples of 4 KiB. Leaves of 2 MiB and 1 GiB
    /// are used where they fit.
    ///
    /// Takes no lock, and allocates nothing but page tables.
    ///
    /// # Errors
    /// [`Error::Table`] if a part of the range is mapped already, an argument is misaligned or out of
    /// range, or there is no memory for tables; [`Error::TableLimit`]; [`Error::HostAddress`].
    ///
    /// # Safety
    /// * Until the range is unmapped, the memory must stay mapped, and be readable and writable as
    ///   `prot` permits. Accesses must not conflict with any reference to it.
    /// * No other call that maps or unmaps any of the range may run at the same time. In a space that
    ///   frees its tables ([`SpaceConfig::frees_tables`], which servers of clients turn on), no
    ///   [`unmap`](Self::unmap) of any range may run at the same time.
    pub unsafe fn map_raw(
        &self,
        iova: Iova,
        bus: BusAddr,
        len_bytes: u64,
        prot: Prot,
    ) -> Result<(), Error> {
        let end = bus.checked_add(len_bytes);
        if end.is_none_or(|end| end.raw() > WINDOWS_START) {
            return Err(Error::HostAddress { bus, len_bytes });
        }
        self.map_leaves(iova, bus, len_bytes, prot)
    }

    /// Unmaps a range that one or several calls of [`map_raw`](Self::map_raw) mapped, and returns when
    /// no session can access it any more. Takes no lock and allocates nothing. Makes one system call, a
    /// `membarrier`, if a session is not parked.
    ///
    /// # Errors
    /// [`Error::Table`] if part of the range is not mapped or a leaf lies only partly in it;
    /// [`Error::PinnedByCaller`]. Nothing has changed then.
    ///
    /// # Safety
    /// All of the range must have been mapped by [`map_raw`](Self::map_raw). The same calls as for
    /// [`map_raw`](Self::map_raw) may not run at the same time.
    pub unsafe fn unmap_raw(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        let mut gather = TlbGather::new();
        self.inner.clear(iova, len_bytes, &mut gather, |_| {})?;
        self.inner.finish(gather, &[(iova.raw(), iova.raw() + (len_bytes - 1))]);
        Ok(())
    }

    /// Unmaps several ranges like [`unmap_raw`](Self::unmap_raw), with one grace period.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`], before anything is unmapped. [`Error::Table`] for the first range that
    /// cannot be unmapped; the ranges before it are unmapped then.
    ///
    /// # Safety
    /// The same as for [`unmap_raw`](Self::unmap_raw), for each range.
    pub unsafe fn unmap_raw_each(&self, ranges: &[AddrRange<Iova>]) -> Result<(), Error> {
        self.inner.check_pins_of_each(ranges)?;
        let mut gather = TlbGather::new();
        let (mut done, mut refused) = (0, None);
        for range in ranges {
            let (iova, len_bytes) = (range.start(), range.len());
            let cleared = self.inner.clear_checked(iova, len_bytes, &mut gather, |_| {});
            if let Err(error) = cleared {
                refused = Some(error);
                break;
            }
            done += 1;
        }
        if done > 0 {
            self.inner.finish(gather, &&ranges[..done]);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Frees page tables that map nothing, and returns their number. Unmapping frees only tables that
    /// its own range covers, so unmapping a large range in small parts leaves empty tables.
    ///
    /// `each_unused` calls its argument with ranges that are multiples of 4 KiB. Each table that maps
    /// nothing and lies entirely in one such range is freed, after a grace period that begins when
    /// `each_unused` has returned. The count is exact if nothing else is mapped or unmapped meanwhile.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`]; nothing has changed then. [`Error::Table`] for a range that is
    /// misaligned or not in the address space; the tables of the ranges before it are freed.
    ///
    /// # Safety
    /// From the moment that `each_unused` passes a range on until it returns, no other call may map or
    /// unmap any of that range. In a space that frees its tables, no [`unmap`](Self::unmap) of any range
    /// may run, as for [`map_raw`](Self::map_raw).
    pub unsafe fn reclaim_raw(
        &self,
        each_unused: impl FnOnce(&mut dyn FnMut(AddrRange<Iova>)),
    ) -> Result<u64, Error> {
        let operation = "reclaiming tables";
        if self.inner.grace.is_busy_in(thread_token()) {
            return Err(Error::PinnedByCaller { operation, iova: Iova::new(0) });
        }
        let before = self.tables();
        let (mut gather, mut refused) = (TlbGather::new(), None);
        each_unused(&mut |range| {
            let (iova, len_bytes) = (range.start(), range.len());
            if refused.is_none()
                && let Err(source) = self.inner.table.reclaim(iova, len_bytes, &mut gather)
            {
                refused = Some(Error::Table { operation, iova, len_bytes, source });
            }
        });
        // No translation has changed, so no lease needs to end.
        const NONE: [(u64, u64); 0] = [];
        self.inner.finish(gather, &NONE);
        refused.map_or(Ok(before.saturating_sub(self.tables())), Err)
    }

    /// Returns the number of page tables, the root included.
    pub fn tables(&self) -> u64 {
        self.inner.table.memory().used()
    }

    /// Attaches `region`, so that parts of it can be mapped. The space keeps it alive until it is
    /// detached.
    ///
    /// # Errors
    /// [`Error::AlreadyAttached`], [`Error::NoWindow`], [`Error::BeyondLog`], [`Error::RawOnly`].
    pub fn attach(&self, region: &Arc<Region>) -> Result<(), Error> {
        self.attach_for(region, Iova::new(0))
    }

    /// Attaches `region` so that mapping its first byte at `iova` takes the largest leaves: the mapping
    /// needs a few page tables for its two ends, and one for each 512 GiB.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach); [`Error::RegionAlignment`] if `iova` is not a multiple of 4
    /// KiB.
    pub fn attach_for(&self, region: &Arc<Region>, iova: Iova) -> Result<(), Error> {
        self.inner.check_door()?;
        if !iova.raw().is_multiple_of(TABLE_BYTES) {
            let len_bytes = region.len();
            return Err(Error::RegionAlignment { start: iova.raw(), len_bytes });
        }
        let mut state = self.inner.lock();
        let key = key_of(region);
        if state.attached.contains_key(&key) {
            return Err(Error::AlreadyAttached);
        }
        check_log(&self.inner.logs.get(), region)?;
        let attached = self.inner.windows.attach(region, iova);
        let attached = attached.ok_or(Error::NoWindow { region_bytes: region.len() })?;
        state.attached.insert(key, Kept { attached, mapped_bytes: 0 });
        Ok(())
    }

    /// Removes `region` from the space.
    ///
    /// # Errors
    /// [`Error::NotAttached`]; [`Error::StillMapped`] if any of it is mapped, or a call that unmaps it
    /// has not returned yet.
    pub fn detach(&self, region: &Arc<Region>) -> Result<(), Error> {
        let mut state = self.inner.lock();
        let key = key_of(region);
        let kept = state.attached.get(&key).ok_or(Error::NotAttached)?;
        if kept.mapped_bytes != 0 {
            return Err(Error::StillMapped { mapped_bytes: kept.mapped_bytes });
        }
        self.inner.windows.detach(&kept.attached);
        state.attached.remove(&key);
        Ok(())
    }

    /// Maps `len_bytes` from `iova` to `region`, from `offset` on. All three numbers are multiples of 4
    /// KiB.
    ///
    /// # Errors
    /// [`Error::NotAttached`], [`Error::OutsideRegion`], [`Error::ReadOnlyRegion`], [`Error::Table`],
    /// [`Error::TableLimit`].
    pub fn map(
        &self,
        iova: Iova,
        region: &Arc<Region>,
        offset: u64,
        len_bytes: u64,
        prot: Prot,
    ) -> Result<(), Error> {
        if region.is_read_only() && prot.contains(Prot::WRITE) {
            return Err(Error::ReadOnlyRegion);
        }
        let region_bytes = region.len();
        if offset.checked_add(len_bytes).is_none_or(|end| end > region_bytes) {
            return Err(Error::OutsideRegion { offset, len_bytes, region_bytes });
        }
        let mut state = self.inner.lock();
        let kept = state.attached.get_mut(&key_of(region)).ok_or(Error::NotAttached)?;
        let bus = BusAddr::new(kept.attached.bus + offset);
        self.map_leaves(iova, bus, len_bytes, prot)?;
        kept.mapped_bytes += len_bytes;
        Ok(())
    }

    /// Returns the size of the page tables in bytes, which
    /// [`table_bytes_max`](SpaceConfig::table_bytes_max) limits: 4 KiB for each of
    /// [`tables`](Self::tables).
    pub fn table_bytes(&self) -> u64 {
        self.tables() * TABLE_BYTES
    }

    /// Prepares the space for an untrusted client that maps in it: unmapping frees empty page tables
    /// from here on, and if page tables have no limit yet, they get [`CLIENT_TABLE_BYTES_MAX`].
    pub fn limit_for_client(&self) {
        let inner = &*self.inner;
        let (none, limit_bytes) = (u64::MAX, CLIENT_TABLE_BYTES_MAX);
        let relaxed = Ordering::Relaxed;
        if inner.table_bytes_max.compare_exchange(none, limit_bytes, relaxed, relaxed).is_ok() {
            inner.table.memory().set_limit(limit_bytes);
        }
        inner.frees_tables.store(true, Ordering::Relaxed);
    }

    /// Unmaps `len_bytes` from `iova`, and returns when no session can access the memory any more. The
    /// range may be mapped to any regions. Its dirty bits are lost; [`unmap_dirty`](Self::unmap_dirty)
    /// reports them.
    ///
    /// # Errors
    /// Those of [`unmap_raw`](Self::unmap_raw); [`Error::RawOnly`].
    pub fn unmap(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        let mut batch = self.batch();
        batch.unmap(iova, len_bytes)?;
        batch.finish()
    }

    /// Returns counters of the costly operations so far.
    pub fn counters(&self) -> Counters {
        let grace = &self.inner.grace;
        let (barriers, waited) = (grace.barriers(), grace.waited());
        let locks = self.inner.locks.load(Ordering::Relaxed) + self.inner.leases.locks();
        let unlogged = self.inner.logs.unlogged();
        Counters { barriers, waited, locks, unlogged }
    }

    /// Returns the barrier with which unmapping makes sure that sessions see the change.
    pub fn barrier(&self) -> Barrier {
        self.inner.grace.barrier()
    }

    /// Returns a walker that reads the page tables, for tools. Its results are unspecified for a range
    /// that is being unmapped.
    pub fn walker(&self) -> Walker<'_, VtdSecond, impl Image + use<>> {
        self.inner.table.walker()
    }

    /// Returns an error if the calling thread cannot unmap `len_bytes` at `iova` now, because it is in
    /// the middle of an access (a pin for example) or has made a lease of some of these bytes.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`], with `iova`.
    pub fn check_unmap(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.inner.check_pins(iova, len_bytes)
    }

    /// Returns the number of bits of an IOVA that are translated.
    pub fn input_bits(&self) -> u32 {
        self.inner.table.format().geometry().input_bits()
    }

    fn map_leaves(
        &self,
        iova: Iova,
        bus: BusAddr,
        len_bytes: u64,
        prot: Prot,
    ) -> Result<(), Error> {
        let failed = |source| match self.inner.table_bytes_max.load(Ordering::Relaxed) {
            limit_bytes if source == TableError::OutOfMemory && limit_bytes != u64::MAX => {
                Error::TableLimit { iova, len_bytes, limit_bytes }
            }
            _ => Error::Table { operation: "mapping", iova, len_bytes, source },
        };
        self.inner.table.map(iova, bus, len_bytes, prot).map_err(failed)
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("barrier", &self.barrier()).finish_non_exhaustive()
    }
}

fn choose_barrier(asked: Option<Barrier>) -> Result<Barrier, Error> {
    match asked {
        None => Ok(Barrier::best()),
        // Miri makes no system calls.
        Some(Barrier::Expedited) if !cfg!(miri) => Barrier::expedited()
            .map_err(|source| Error::Io { operation: "registering for membarrier", source }),
        Some(_) => Ok(Barrier::Fence),
    }
}
