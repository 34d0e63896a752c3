//! A thread's cache of ranges.

use std::fmt;

use longshore_mem::Iova;

use super::{IovaAllocator, IovaError, IovaRange, Placement};

/// The number of lengths that are cached: the powers of two from 1 to 64 granules.
const CLASSES: usize = 7;

/// The maximum number of ranges of one length.
const KEPT: usize = 64;

/// A cache holds at most 1/1024 of all addresses in each class, because no other thread can use them.
const SHARE: u64 = 1024;

/// A thread's ranges of one allocator, which is passed to each call. While the cache is neither empty
/// nor full, taking and giving back take no lock. The ranges must be given back
/// ([`clear`](Self::clear)) before the cache is dropped.
pub(crate) struct IovaCache {
    classes: [Stack; CLASSES],
}

/// A stack of ranges of one length, by the numbers of their first granules.
struct Stack {
    starts: [u64; KEPT],
    count: usize,
    /// The maximum of `count`: 0 if there are too few addresses to cache any.
    most: usize,
}

impl IovaCache {
    /// Returns an empty cache.
    pub(crate) fn new(allocator: &IovaAllocator) -> Self {
        let share = allocator.all / SHARE;
        let stack = |class: usize| {
            let most = (share >> class).min(KEPT as u64) as usize;
            Stack { starts: [0; KEPT], count: 0, most }
        };
        Self { classes: std::array::from_fn(stack) }
    }

    /// Takes a range of at least `len_bytes` out of the cache, or returns `None`. Its length is a power
    /// of two of granules, and its start is a multiple of that.
    #[inline(always)]
    pub(crate) fn take_kept(
        &mut self,
        allocator: &IovaAllocator,
        len_bytes: u64,
        placement: Placement,
    ) -> Option<IovaRange> {
        let log2 = allocator.granule.log2();
        let granules = allocator.granules(Iova::new(0), len_bytes).ok()?;
        let class = class_of(granules);
        if class >= CLASSES || placement.last != Placement::ANYWHERE.last {
            return None;
        }
        let is_aligned = u32::from(placement.align.log2()) <= u32::from(log2) + class as u32;
        let stack = &mut self.classes[class];
        if !is_aligned || stack.count == 0 {
            return None;
        }
        stack.count -= 1;
        let start = Iova::new(stack.starts[stack.count] << log2);
        Some(IovaRange { start, granules: 1 << class })
    }

    /// Takes a range as [`take_kept`](Self::take_kept) does, or from the allocator.
    ///
    /// # Errors
    /// As [`IovaAllocator::take`].
    pub(crate) fn take(
        &mut self,
        allocator: &IovaAllocator,
        len_bytes: u64,
        placement: Placement,
    ) -> Result<IovaRange, IovaError> {
        let granules = allocator.granules(Iova::new(0), len_bytes)?;
        let class = class_of(granules);
        if class < CLASSES && placement.last == Placement::ANYWHERE.last {
            if self.classes[class].count == 0 {
                self.refill(allocator, class);
            }
            if let Some(range) = self.take_kept(allocator, len_bytes, placement) {
                return Ok(range);
            }
        }
        self.take_elsewhere(allocator, granules, placement)
    }

    /// Gives a range back, to this cache or to the allocator.
    #[inline]
    pub(crate) fn give(&mut self, allocator: &IovaAllocator, range: IovaRange) {
        let class = class_of(range.granules);
        let start = range.start.raw() >> allocator.granule.log2();
        let fits = class < CLASSES
            && range.granules.is_power_of_two()
            && start & (range.granules - 1) == 0
            && self.classes[class].most > 0;
        if !fits {
            return allocator.give(range);
        }
        if self.classes[class].count == self.classes[class].most {
            self.flush(allocator, class, self.classes[class].most / 2);
        }
        let stack = &mut self.classes[class];
        stack.starts[stack.count] = start;
        stack.count += 1;
    }

    /// Gives all ranges back to the allocator.
    pub(crate) fn clear(&mut self, allocator: &IovaAllocator) {
        for class in 0..CLASSES {
            self.flush(allocator, class, 0);
        }
    }

    /// Fills a stack to half of its maximum, as far as the allocator has room.
    #[cold]
    fn refill(&mut self, allocator: &IovaAllocator, class: usize) {
        let granules = 1 << class;
        let wanted = super::Wanted { len: granules, align: granules, last: u64::MAX };
        let stack = &mut self.classes[class];
        let mut free = allocator.lock();
        while stack.count < stack.most.div_ceil(2) {
            let Some(start) = free.take(wanted) else { break };
            stack.starts[stack.count] = start;
            stack.count += 1;
        }
    }

    /// Gives the oldest ranges back to the allocator, until `kept` are left.
    #[cold]
    fn flush(&mut self, allocator: &IovaAllocator, class: usize, kept: usize) {
        let stack = &mut self.classes[class];
        let going = stack.count.saturating_sub(kept);
        let log2 = allocator.granule.log2();
        let mut free = allocator.lock();
        for start in &stack.starts[..going] {
            let range = IovaRange { start: Iova::new(start << log2), granules: 1 << class };
            allocator.give_locked(&mut free, &range);
        }
        stack.starts.copy_within(going..stack.count, 0);
        stack.count -= going;
    }

    /// Takes a range from the allocator. If that is full, gives it all cached ranges and tries again.
    #[cold]
    fn take_elsewhere(
        &mut self,
        allocator: &IovaAllocator,
        granules: u64,
        placement: Placement,
    ) -> Result<IovaRange, IovaError> {
        allocator.take_granules(granules, placement).or_else(|full| {
            if self.classes.iter().all(|stack| stack.count == 0) {
                return Err(full);
            }
            self.clear(allocator);
            allocator.take_granules(granules, placement)
        })
    }
}

impl fmt::Debug for IovaCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept: Vec<usize> = self.classes.iter().map(|stack| stack.count).collect();
        f.debug_struct("IovaCache").field("kept", &kept).finish_non_exhaustive()
    }
}

/// Returns the exponent of the smallest power of two that is not less than `granules`.
#[inline]
fn class_of(granules: u64) -> usize {
    // `granules` is at least 1.
    (u64::BITS - (granules - 1).leading_zeros()) as usize
}
