//! The allocator of IOVAs.
//!
//! ```text
//!   a thread          IovaCache ── one stack for each power of two of granules
//!                        │  ▲       up to 64; no lock, no allocation
//!            half a stack │  │ half a stack
//!                        ▼  │
//!   the domain        IovaAllocator ── a lock
//!                        │             best fit, aligned, below a limit
//!                        ▼
//!                     free ranges, in granules
//! ```
//!
//! As in Linux's IOVA allocator, short ranges are rounded up to a power of two and cached by threads
//! (Bonwick and Adams, "Magazines and Vmem", USENIX 2001). Long ranges, and those below a limit, always
//! come from the free ranges.

mod cache;
mod ranges;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longshore_mem::{AddrRange, Granule, Iova};

pub(crate) use cache::IovaCache;
use ranges::{FreeRanges, Wanted};

/// The requirements for a range of IOVAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The alignment of its start, if it is more than the allocator's granule.
    pub align: Granule,
    /// The last address that may be in it, for devices with few address bits.
    pub last: Iova,
}

impl Placement {
    /// No requirements.
    pub const ANYWHERE: Self = Self { align: Granule::SIZE_4K, last: Iova::new(u64::MAX) };

    /// Returns the same requirements with this alignment.
    #[must_use]
    pub const fn aligned(self, align: Granule) -> Self {
        Self { align, ..self }
    }

    /// Returns the same requirements for addresses of at most this many bits, such as 32.
    #[must_use]
    pub const fn address_bits(self, bits: u32) -> Self {
        let last = if bits < 64 { (1 << bits) - 1 } else { u64::MAX };
        Self { last: Iova::new(last), ..self }
    }
}

/// The reason that a range of IOVAs could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IovaError {
    /// No free range has room.
    #[error(
        "no room for {len_bytes:#x} bytes of IOVAs at a multiple of {align}, up to {last:#x}: \
         {free_bytes:#x} bytes are free, at most {longest_bytes:#x} of them in one piece; unmap \
         something, or give the domain a wider range of addresses"
    )]
    Full {
        /// The length that was requested, with the guard gap, rounded up to granules; `u64::MAX` if
        /// it is more.
        len_bytes: u64,
        /// The alignment that was requested.
        align: Granule,
        /// The last address that was allowed.
        last: Iova,
        /// The number of free bytes.
        free_bytes: u64,
        /// The length of the longest free range in bytes.
        longest_bytes: u64,
    },
    /// The range is in use, or cannot be used at all.
    #[error(
        "the IOVAs {start:#x} to {last:#x} are not free: they are in use, reserved by the IOMMU, or \
         beyond its addresses"
    )]
    NotFree {
        /// The first address that was requested.
        start: Iova,
        /// The last address that was requested.
        last: Iova,
    },
    /// The range has no bytes.
    #[error("a range of zero bytes of IOVAs was requested; a range has at least one byte")]
    Empty,
    /// The range ends beyond all addresses, or its start is not a multiple of the granule.
    #[error(
        "{len_bytes:#x} bytes from IOVA {start:#x} cannot be mapped: the start is not a multiple of \
         {granule}, or the end is beyond all addresses"
    )]
    Claim {
        /// The first address that was requested.
        start: Iova,
        /// The length in bytes.
        len_bytes: u64,
        /// The allocator's granule.
        granule: Granule,
    },
}

/// A range of IOVAs that belongs to its owner until it is given back. If it is dropped, the addresses
/// stay in use for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "if dropped, the addresses are in use for ever"]
pub struct IovaRange {
    start: Iova,
    /// The length, with the guard gap.
    granules: u64,
}

impl IovaRange {
    /// Returns the first address.
    pub fn start(&self) -> Iova {
        self.start
    }
}

/// The usage of a domain's addresses. Cached addresses count as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IovaUsage {
    /// The number of all addresses, in bytes.
    pub all_bytes: u64,
    /// The number of free addresses, in bytes.
    pub free_bytes: u64,
    /// The length of the longest free range in bytes.
    pub longest_free_bytes: u64,
}

/// A view of the IOVAs of a [`Domain`](crate::Domain).
///
/// It is read-only: a program that could take and give back the addresses of a domain could free those
/// of a mapping.
///
/// ```compile_fail,E0599
/// use longshore_domain::Domain;
/// use longshore_domain::iova::IovaRange;
///
/// fn free_the_addresses_of_a_mapping(domain: &Domain, range: IovaRange) {
///     domain.iovas().give(range);
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Iovas<'d>(&'d IovaAllocator);

impl<'d> Iovas<'d> {
    pub(crate) fn new(allocator: &'d IovaAllocator) -> Self {
        Self(allocator)
    }

    /// Returns the unit of all ranges.
    pub fn granule(&self) -> Granule {
        self.0.granule()
    }

    /// Returns the number of free bytes, without those in caches of threads.
    pub fn free_bytes(&self) -> u64 {
        self.0.free_bytes()
    }

    /// Returns the number of all bytes, in use or not.
    pub fn all_bytes(&self) -> u64 {
        self.0.all_bytes()
    }

    /// Returns the numbers of all and of free bytes, and the length of the longest free range.
    pub fn usage(&self) -> IovaUsage {
        self.0.usage()
    }
}

/// The IOVAs of one domain.
///
/// All lengths are rounded up to granules. If the allocator has a guard gap, it follows each range and
/// is never mapped, so that a device faults that runs past the end of a mapping.
pub struct IovaAllocator {
    granule: Granule,
    guard: u64,
    /// The number of all granules, free or not.
    all: u64,
    /// The ranges that are free if nothing is in use, in order: the first granule of each, and the one
    /// after its last.
    usable: Vec<(u64, u64)>,
    free: Mutex<FreeRanges>,
}

impl IovaAllocator {
    /// Returns an allocator of the addresses in `usable` that are not in `reserved`. Only whole granules
    /// are used. `guard_bytes`, rounded up to granules, stay unmapped after each range.
    pub fn new(
        granule: Granule,
        usable: &[AddrRange<Iova>],
        reserved: &[AddrRange<Iova>],
        guard_bytes: u64,
    ) -> Self {
        let log2 = granule.log2();
        let mut free = FreeRanges::default();
        for range in usable {
            let Some(last) = range.last() else { continue };
            let first = range.start().raw().div_ceil(granule.bytes());
            // One past the last whole granule. A range up to 2^64 loses its last granule.
            let end = (last.raw().saturating_add(1)) >> log2;
            free.add(first, end);
        }
        // IOVA zero is never handed out: drivers and devices use it as "no address".
        free.subtract(0, 1);
        for range in reserved {
            if let Some(last) = range.last() {
                free.subtract(range.start().raw() >> log2, (last.raw() >> log2).saturating_add(1));
            }
        }
        let guard = guard_bytes.div_ceil(granule.bytes());
        let usable = free.ranges().collect();
        Self { granule, guard, all: free.free(), usable, free: Mutex::new(free) }
    }

    /// Returns the unit of all ranges.
    pub fn granule(&self) -> Granule {
        self.granule
    }

    /// Returns the number of free bytes, without those in caches.
    pub fn free_bytes(&self) -> u64 {
        self.lock().free() << self.granule.log2()
    }

    /// Returns the numbers of all and of free bytes, and the length of the longest free range.
    pub fn usage(&self) -> IovaUsage {
        let log2 = self.granule.log2();
        let free = self.lock();
        IovaUsage {
            all_bytes: self.all << log2,
            free_bytes: free.free() << log2,
            longest_free_bytes: free.longest() << log2,
        }
    }

    /// Returns the number of all bytes, in use or not.
    pub fn all_bytes(&self) -> u64 {
        self.all << self.granule.log2()
    }

    /// Takes a range of at least `len_bytes`.
    ///
    /// # Errors
    /// [`IovaError::Full`], [`IovaError::Empty`].
    pub fn take(&self, len_bytes: u64, placement: Placement) -> Result<IovaRange, IovaError> {
        let granules = self.granules(Iova::new(0), len_bytes)?;
        self.take_granules(granules, placement)
    }

    /// Takes exactly this range, with the guard gap after it.
    ///
    /// # Errors
    /// [`IovaError::NotFree`], [`IovaError::Claim`], [`IovaError::Empty`].
    pub fn take_at(&self, start: Iova, len_bytes: u64) -> Result<IovaRange, IovaError> {
        let granules = self.granules(start, len_bytes)?;
        if self.lock().take_at(start.raw() >> self.granule.log2(), granules) {
            return Ok(IovaRange { start, granules });
        }
        Err(IovaError::NotFree { start, last: Iova::new(start.raw() + (len_bytes - 1)) })
    }

    /// Gives a range back.
    ///
    /// # Panics
    /// If the range came from another allocator and is free in this one: two owners of one range would
    /// write to each other's memory.
    #[expect(clippy::needless_pass_by_value, reason = "the caller gives its range up")]
    pub fn give(&self, range: IovaRange) {
        self.give_locked(&mut self.lock(), &range);
    }

    /// Calls `each` with the longest possible ranges below `end` that are not in use: they are free, or
    /// cannot be used at all. `end` is a multiple of the granule. No address can be taken before this
    /// returns.
    pub(crate) fn each_unused(&self, end: u64, each: &mut dyn FnMut(AddrRange<Iova>)) {
        let log2 = self.granule.log2();
        // The end of the last range in use.
        let mut at = 0;
        let mut used = |start: u64, behind: u64| {
            if start == behind {
                return;
            }
            if at < start {
                let len_bytes = (start - at) << log2;
                each(AddrRange::new(Iova::new(at << log2), len_bytes).expect("below a used one"));
            }
            at = behind;
        };
        let free = self.lock();
        let mut free_ranges = free.ranges().peekable();
        for &(start, behind) in &self.usable {
            let mut start = start;
            // A free range lies in one usable range.
            while let Some((first, last)) = free_ranges.next_if(|range| range.0 < behind) {
                used(start, first);
                start = last;
            }
            used(start, behind);
        }
        let end = end >> log2;
        used(end, end + 1);
    }

    fn take_granules(&self, granules: u64, placement: Placement) -> Result<IovaRange, IovaError> {
        let log2 = self.granule.log2();
        let wanted = Wanted {
            len: granules,
            align: (placement.align.bytes() >> log2).max(1),
            last: self.last_granule(placement.last),
        };
        let mut free = self.lock();
        let start = free.take(wanted).ok_or_else(|| IovaError::Full {
            len_bytes: granules.saturating_mul(self.granule.bytes()),
            align: placement.align.max(self.granule),
            last: placement.last,
            free_bytes: free.free() << log2,
            longest_bytes: free.longest() << log2,
        })?;
        Ok(IovaRange { start: Iova::new(start << log2), granules })
    }

    fn give_locked(&self, free: &mut FreeRanges, range: &IovaRange) {
        let given = free.give(range.start.raw() >> self.granule.log2(), range.granules);
        assert!(given, "{range:?} is given back, and free already");
    }

    /// Returns the number of granules of a range with its gap.
    #[inline(always)]
    fn granules(&self, start: Iova, len_bytes: u64) -> Result<u64, IovaError> {
        if len_bytes == 0 {
            return Err(IovaError::Empty);
        }
        let claim = IovaError::Claim { start, len_bytes, granule: self.granule };
        // A shift, because a division takes longer than all the rest of a map.
        let before_last = (len_bytes - 1) >> self.granule.log2();
        let len = before_last.checked_add(1).and_then(|len| len.checked_add(self.guard));
        let is_aligned = self.granule.is_aligned(start.raw());
        let last = start.checked_add(len_bytes - 1);
        match len {
            Some(len) if is_aligned && last.is_some() => Ok(len),
            _ => Err(claim),
        }
    }

    /// Returns the last granule whose last byte is not above `last`.
    fn last_granule(&self, last: Iova) -> u64 {
        match last.raw().checked_add(1) {
            Some(end) => (end >> self.granule.log2()).saturating_sub(1),
            None => u64::MAX >> self.granule.log2(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FreeRanges> {
        // Code under the lock does not panic halfway.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for IovaAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IovaAllocator")
            .field("granule", &self.granule)
            .field("all_bytes", &self.all_bytes())
            .field("free_bytes", &self.free_bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
