//! The translations of one address space, and the two doors to them.
//!
//! * [`Space::map_raw`] and [`Space::unmap_raw`] take no lock and allocate nothing; the caller keeps
//!   the memory, and keeps calls whose ranges overlap apart.
//! * [`Space::map`] and [`Space::unmap`] are safe: regions are kept alive while they are attached, and
//!   stay attached while anything of them is mapped.
#![expect(unsafe_code, reason = "maps addresses that the caller vouches for")]

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_mem::{AddrRange, BusAddr, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::VtdSecond;
use longshore_pagetable::format::vtd_second::VtdSecondConfig;
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Format, Image, Invalidate, PageTable, Prot, TlbGather, Walker};

use crate::batch::Batch;
use crate::error::Error;
use crate::lease::{Leases, Ranges};
use crate::logs::{Current, Logs};
use crate::region::Region;
use crate::session::{Private, Session};
use crate::windows::{Attached, WINDOWS_START, Windows};
use longshore_sync::Barrier;
use longshore_sync::grace::Grace;

/// Page tables of a space: VT-d's second stage, walked by the sessions of this process.
pub(crate) type Table = PageTable<VtdSecond, HostPages, Coherent>;

/// How a space is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceConfig {
    /// Bits of an IOVA that are translated: 31 to 57. More than 48 cost a fifth level.
    pub input_bits: u32,
    /// How unmapping makes sure that sessions see it; `None` for `membarrier` where the kernel has
    /// it, and else fences.
    pub barrier: Option<Barrier>,
    /// Whether the page tables have dirty bits, which sessions set as hardware does
    /// ([`Space::read_dirty`]). A write that finds its page clean costs a walk; unmapping takes each
    /// entry by an exchange.
    pub dirty_bits: bool,
    /// Whether only the raw door maps and unmaps: for whoever lends out sessions of a space whose
    /// mappings are his alone.
    pub raw_only: bool,
}

impl SpaceConfig {
    /// Of 48 bits, with the best barrier there is, without dirty bits, with both doors.
    pub const fn new() -> Self {
        Self { input_bits: 48, barrier: None, dirty_bits: false, raw_only: false }
    }
}

impl Default for SpaceConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// What a space has done that costs time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Grace periods that needed a barrier, because a session was not parked.
    pub barriers: u64,
    /// Sessions that were in the middle of an access then, and were waited for.
    pub waited: u64,
    /// Times a lock was taken: by the safe door, and for leases and remote regions.
    pub locks: u64,
    /// Writes that a log had no bits for.
    pub unlogged: u64,
}

/// The translations of one address space. Clones are the same space.
#[derive(Clone)]
pub struct Space {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) table: Table,
    pub(crate) grace: Grace<Private>,
    pub(crate) windows: Windows,
    pub(crate) leases: Leases,
    pub(crate) logs: Current,
    state: Mutex<State>,
    locks: AtomicU64,
    raw_only: bool,
}

/// What the safe door keeps.
#[derive(Default)]
struct State {
    /// By the region's address.
    attached: HashMap<usize, Kept>,
}

struct Kept {
    attached: Arc<Attached>,
    /// What is mapped of it, or was until the grace period that is going on.
    mapped_bytes: u64,
}

impl Space {
    /// An empty space of 48 bits.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new() -> Result<Self, Error> {
        Self::with_config(SpaceConfig::new())
    }

    /// An empty space, set up as asked.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::OutOfMemory`]; [`Error::Io`] where `membarrier` was asked for and
    /// the kernel refuses it.
    pub fn with_config(config: SpaceConfig) -> Result<Self, Error> {
        Self::build(config, true)
    }

    /// A space whose unmapping does not wait for sessions, to show what the waiting is for.
    ///
    /// # Errors
    /// As [`with_config`](Self::with_config).
    ///
    /// # Safety
    /// What was unmapped may be accessed at any later time: it must never be freed.
    #[doc(hidden)]
    pub unsafe fn without_grace_periods(config: SpaceConfig) -> Result<Self, Error> {
        Self::build(config, false)
    }

    fn build(config: SpaceConfig, waits: bool) -> Result<Self, Error> {
        let input_bits = config.input_bits;
        let format = VtdSecond::new(VtdSecondConfig {
            input_bits,
            output_bits: 52,
            snoop_control: false,
            dirty: config.dirty_bits,
            ..VtdSecondConfig::new()
        });
        let format = format.map_err(|source| Error::Config { input_bits, source })?;
        let table = PageTable::new(format, HostPages::new(), Coherent);
        let inner = Inner {
            table: table.map_err(|_| Error::OutOfMemory)?,
            grace: Grace::new(choose_barrier(config.barrier)?, waits),
            windows: Windows::new(),
            leases: Leases::default(),
            logs: Current::default(),
            state: Mutex::default(),
            locks: AtomicU64::new(0),
            raw_only: config.raw_only,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A session of the calling thread. It is parked until its first access.
    pub fn session(&self) -> Session {
        Session::new(self)
    }

    /// Maps `len_bytes` from `iova` to memory of this process at `bus`: its
    /// exposed address (`expose_provenance`), below 2^48. All three are multiples of 4 KiB.
    /// Leaves of 2 MiB and 1 GiB are used where they fit.
    ///
    /// Takes no lock, and allocates nothing but page tables.
    ///
    /// # Errors
    /// [`Error::Table`], where something is mapped already, nothing fits or memory is short;
    /// [`Error::HostAddress`].
    ///
    /// # Safety
    /// * Until the range was unmapped, the memory must stay mapped, readable where `prot` says so and
    ///   writable where it says so; and no reference to it may exist that an access would contradict.
    /// * No other call that maps or unmaps any of the range may run at the same time.
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

    /// Unmaps what [`map_raw`](Self::map_raw) mapped, in one piece or several, and returns when no
    /// session can reach it any more. Takes no lock and allocates nothing; makes one system call, a
    /// `membarrier`, where a session is not parked.
    ///
    /// # Errors
    /// [`Error::Table`], where part of the range is not mapped or a leaf lies only partly in it;
    /// [`Error::PinnedByCaller`]. Nothing has changed then.
    ///
    /// # Safety
    /// All that is mapped in the range must have been mapped by [`map_raw`](Self::map_raw); and no
    /// other call that maps or unmaps any of it may run at the same time.
    pub unsafe fn unmap_raw(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        let mut gather = TlbGather::new();
        self.inner.clear(iova, len_bytes, &mut gather, |_| {})?;
        self.inner.finish(gather, &[(iova.raw(), iova.raw() + (len_bytes - 1))]);
        Ok(())
    }

    /// The same of several ranges, with one grace period.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`] before anything is unmapped; [`Error::Table`] for the first range that
    /// is refused, and those before it are unmapped then.
    ///
    /// # Safety
    /// As [`unmap_raw`](Self::unmap_raw), for each of them.
    pub unsafe fn unmap_raw_each(&self, ranges: &[AddrRange<Iova>]) -> Result<(), Error> {
        for range in ranges {
            self.inner.check_pins(range.start(), range.len_bytes())?;
        }
        let mut gather = TlbGather::new();
        let (mut done, mut refused) = (0, None);
        for range in ranges {
            let cleared = self.inner.clear(range.start(), range.len_bytes(), &mut gather, |_| {});
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

    /// Many unmappings with one grace period.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// Lets parts of `region` be mapped. The space keeps it alive until it is detached.
    ///
    /// # Errors
    /// [`Error::AlreadyAttached`], [`Error::NoWindow`], [`Error::BeyondLog`], [`Error::RawOnly`].
    pub fn attach(&self, region: &Arc<Region>) -> Result<(), Error> {
        self.inner.check_door()?;
        let mut state = self.inner.lock();
        let key = key_of(region);
        if state.attached.contains_key(&key) {
            return Err(Error::AlreadyAttached);
        }
        check_log(&self.inner.logs.get(), region)?;
        let attached = self.inner.windows.attach(region);
        let attached = attached.ok_or(Error::NoWindow { region_bytes: region.len_bytes() })?;
        state.attached.insert(key, Kept { attached, mapped_bytes: 0 });
        Ok(())
    }

    /// Takes `region` out of the space.
    ///
    /// # Errors
    /// [`Error::NotAttached`]; [`Error::StillMapped`] where any of it is mapped, or its unmapping has
    /// not returned yet.
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

    /// Maps `len_bytes` from `iova` to `region`, from `offset` on. All three are multiples of 4 KiB.
    ///
    /// # Errors
    /// [`Error::NotAttached`], [`Error::OutsideRegion`], [`Error::ReadOnlyRegion`], [`Error::Table`].
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
        let region_bytes = region.len_bytes();
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

    /// Unmaps `len_bytes` from `iova`, whatever is mapped there, and returns when no session can reach
    /// it any more. Dirty bits are lost with it, unless [`unmap_dirty`](Self::unmap_dirty) does it.
    ///
    /// # Errors
    /// As [`unmap_raw`](Self::unmap_raw); [`Error::RawOnly`].
    pub fn unmap(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        let mut batch = self.batch();
        batch.unmap(iova, len_bytes)?;
        batch.finish()
    }

    /// What has been done so far that costs time.
    pub fn counters(&self) -> Counters {
        let (barriers, waited) = self.inner.grace.counts();
        let locks = self.inner.locks.load(Ordering::Relaxed) + self.inner.leases.locks();
        let unlogged = self.inner.logs.unlogged();
        Counters { barriers, waited, locks, unlogged }
    }

    /// How sessions are made to see what was unmapped.
    pub fn barrier(&self) -> Barrier {
        self.inner.grace.barrier()
    }

    /// Reads the page tables, as a tool does. While something is unmapped what it finds there is
    /// unspecified.
    pub fn walker(&self) -> Walker<'_, VtdSecond, impl Image + use<>> {
        self.inner.table.walker()
    }

    /// Returns an error if the calling thread cannot unmap `len_bytes` at `iova` now: it is in the
    /// middle of an access, a pin for example, or it made a lease of some of these bytes.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`], with `iova`.
    pub fn check_unmap(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.inner.check_pins(iova, len_bytes)
    }

    /// Returns how many bits of an IOVA are translated.
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
        let failed = |source| Error::Table { operation: "mapping", iova, len_bytes, source };
        self.inner.table.map(iova, bus, len_bytes, prot).map_err(failed)
    }
}

/// The operation that errors name.
const UNMAPPING: &str = "unmapping";

impl Inner {
    /// Refuses to unmap a range if the calling thread itself keeps it from being unmapped.
    fn check_pins(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        let last = iova.raw().saturating_add(len_bytes.saturating_sub(1));
        let me = thread_token();
        if self.grace.is_busy_in(me) || self.leases.is_held_by(me, iova.raw(), last) {
            return Err(Error::PinnedByCaller { operation: UNMAPPING, iova });
        }
        Ok(())
    }

    /// Takes entries out, without waiting, and tells of those that were dirty.
    pub(crate) fn clear(
        &self,
        iova: Iova,
        len_bytes: u64,
        gather: &mut TlbGather,
        dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        self.check_pins(iova, len_bytes)?;
        let failed = |source| Error::Table { operation: UNMAPPING, iova, len_bytes, source };
        self.table.unmap_dirty(iova, len_bytes, gather, dirty).map_err(failed)
    }

    /// Waits until nobody can use what was taken out of `ranges`, and frees tables.
    pub(crate) fn finish(&self, gather: TlbGather, ranges: &dyn Ranges) {
        let Ok(()) = self.table.finish(gather, &Flush { inner: self, ranges });
    }

    /// That the safe door is open.
    pub(crate) fn check_door(&self) -> Result<(), Error> {
        if self.raw_only { Err(Error::RawOnly) } else { Ok(()) }
    }

    /// Returns when no session is in the middle of an access that was going on, and none has anything
    /// in its TLB. What keeps one busy meanwhile is made to end where that can be done, and so are
    /// leases of `ranges`, which may be what a session waits for.
    pub(crate) fn wait_for_sessions(&self, ranges: &dyn Ranges) {
        self.grace.wait_asking(|owner| self.leases.ask(ranges, Some(owner)));
    }

    /// The safe door.
    pub(crate) fn lock_windows(&self) -> Locked<'_> {
        Locked { inner: self, state: self.lock() }
    }

    /// That `logs` have bits for each region that is attached, while this is held.
    pub(crate) fn check_attached(&self, logs: &Logs) -> Result<Locked<'_>, Error> {
        let state = self.lock();
        state.attached.values().try_for_each(|kept| check_log(logs, &kept.attached.region))?;
        Ok(Locked { inner: self, state })
    }

    /// Gives back what a finished unmapping had of each region.
    pub(crate) fn forget_mapped(&self, taken: &mut Vec<Taken>) {
        if taken.is_empty() {
            return;
        }
        let mut state = self.lock();
        for taken in taken.drain(..) {
            if let Some(kept) = state.attached.get_mut(&taken.region) {
                kept.mapped_bytes -= taken.len_bytes;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.locks.fetch_add(1, Ordering::Relaxed);
        // What is done under the lock does not panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an unmapping has taken of a region.
#[derive(Debug)]
pub(crate) struct Taken {
    region: usize,
    len_bytes: u64,
}

/// The safe door, held.
pub(crate) struct Locked<'a> {
    inner: &'a Inner,
    #[expect(dead_code, reason = "held, not looked at")]
    state: MutexGuard<'a, State>,
}

impl Locked<'_> {
    /// Takes entries out, without waiting, notes what they had of each region, and tells of those that
    /// were dirty.
    pub(crate) fn clear(
        &self,
        iova: Iova,
        len_bytes: u64,
        gather: &mut TlbGather,
        taken: &mut Vec<Taken>,
        dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let before = taken.len();
        // A range that is not translated is refused below.
        let _ = self.inner.table.walk(iova, len_bytes, |leaf| {
            // SAFETY: the leaf is mapped and the door is held, so its region is attached.
            if let Some(attached) = unsafe { self.inner.windows.get(leaf.bus.raw()) } {
                let (region, len_bytes) = (key_of(&attached.region), 1 << leaf.page_log2);
                match taken[before..].last_mut().filter(|last| last.region == region) {
                    Some(last) => last.len_bytes += len_bytes,
                    None => taken.push(Taken { region, len_bytes }),
                }
            }
            ControlFlow::<()>::Continue(())
        });
        let cleared = self.inner.clear(iova, len_bytes, gather, dirty);
        if cleared.is_err() {
            taken.truncate(before);
        }
        cleared
    }
}

/// A flush of all sessions, with a grace period.
struct Flush<'a> {
    inner: &'a Inner,
    ranges: &'a dyn Ranges,
}

impl Invalidate for Flush<'_> {
    type Error = std::convert::Infallible;

    fn flush(&self, _gather: &TlbGather) -> Result<(), Self::Error> {
        self.inner.wait_for_sessions(self.ranges);
        self.inner.leases.revoke(self.ranges);
        Ok(())
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("barrier", &self.barrier()).finish_non_exhaustive()
    }
}

/// A number that no other thread has, and never had: a lease may outlive the thread that made it. Not
/// zero.
pub(crate) fn thread_token() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static TOKEN: Cell<usize> = const { Cell::new(0) });
    TOKEN.with(|token| {
        if token.get() == 0 {
            token.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        token.get()
    })
}

fn check_log(logs: &Logs, region: &Region) -> Result<(), Error> {
    let region_bytes = region.len_bytes();
    logs.check(region).map_err(|source| Error::BeyondLog { region_bytes, source })
}

fn key_of(region: &Arc<Region>) -> usize {
    Arc::as_ptr(region).addr()
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
