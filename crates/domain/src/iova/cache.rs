//! Ranges that a thread keeps for its next mappings.

use std::fmt;

use longshore_mem::Iova;

use super::{IovaAllocator, IovaError, IovaRange, Placement};

/// Powers of two that are kept: 1 to 64 granules.
const CLASSES: usize = 7;

/// Ranges of one length that are kept at most.
const KEPT: usize = 64;

/// A cache holds at most one of so many parts of all addresses, in each class: what a thread keeps
/// no other can have.
const SHARE: u64 = 1024;

/// One thread's ranges. As long as they suffice, taking and giving back costs no lock; when it is
/// dropped, the allocator has them again.
pub struct IovaCache<'a> {
    allocator: &'a IovaAllocator,
    classes: [Stack; CLASSES],
}

/// Granule numbers of ranges of one length, the last given back on top.
struct Stack {
    starts: [u64; KEPT],
    count: usize,
    /// At most so many; 0 where the addresses are too few to keep any.
    most: usize,
}

impl<'a> IovaCache<'a> {
    /// Without ranges at first.
    pub fn new(allocator: &'a IovaAllocator) -> Self {
        let share = allocator.all / SHARE;
        let stack = |class: usize| {
            let most = (share >> class).min(KEPT as u64) as usize;
            Stack { starts: [0; KEPT], count: 0, most }
        };
        Self { allocator, classes: std::array::from_fn(stack) }
    }

    /// Whose addresses these are.
    pub fn allocator(&self) -> &'a IovaAllocator {
        self.allocator
    }

    /// A range of at least `len_bytes`. A short one is rounded up to a power of two, and aligned to
    /// that.
    ///
    /// # Errors
    /// As [`IovaAllocator::take`].
    #[inline]
    pub fn take(&mut self, len_bytes: u64, placement: Placement) -> Result<IovaRange, IovaError> {
        let granules = self.allocator.granules(Iova::new(0), len_bytes)?;
        let class = class_of(granules);
        if class < CLASSES && placement.last == Placement::ANYWHERE.last {
            let log2 = self.allocator.granule.log2();
            let stack = &mut self.classes[class];
            let is_aligned = u32::from(placement.align.log2()) <= u32::from(log2) + class as u32;
            if is_aligned && (stack.count > 0 || self.refill(class)) {
                let stack = &mut self.classes[class];
                stack.count -= 1;
                let start = Iova::new(stack.starts[stack.count] << log2);
                return Ok(IovaRange { start, granules: 1 << class });
            }
        }
        self.take_elsewhere(granules, placement)
    }

    /// Gives a range back, to this cache or to the allocator.
    #[inline]
    pub fn give(&mut self, range: IovaRange) {
        let class = class_of(range.granules);
        let start = range.start.raw() >> self.allocator.granule.log2();
        let fits = class < CLASSES
            && range.granules.is_power_of_two()
            && start & (range.granules - 1) == 0
            && self.classes[class].most > 0;
        if !fits {
            return self.allocator.give(range);
        }
        if self.classes[class].count == self.classes[class].most {
            self.flush(class, self.classes[class].most / 2);
        }
        let stack = &mut self.classes[class];
        stack.starts[stack.count] = start;
        stack.count += 1;
    }

    /// Gives all that is kept to the allocator.
    pub fn clear(&mut self) {
        for class in 0..CLASSES {
            self.flush(class, 0);
        }
    }

    /// Takes half a stack. Whether there was any.
    #[cold]
    fn refill(&mut self, class: usize) -> bool {
        let granules = 1 << class;
        let wanted = super::Wanted { len: granules, align: granules, last: u64::MAX };
        let stack = &mut self.classes[class];
        let mut free = self.allocator.lock();
        while stack.count < stack.most.div_ceil(2) {
            let Some(start) = free.take(wanted) else { break };
            stack.starts[stack.count] = start;
            stack.count += 1;
        }
        stack.count > 0
    }

    /// Gives back what was given first, until `kept` are left.
    #[cold]
    fn flush(&mut self, class: usize, kept: usize) {
        let stack = &mut self.classes[class];
        let going = stack.count.saturating_sub(kept);
        let log2 = self.allocator.granule.log2();
        let mut free = self.allocator.lock();
        for start in &stack.starts[..going] {
            let range = IovaRange { start: Iova::new(start << log2), granules: 1 << class };
            self.allocator.give_locked(&mut free, &range);
        }
        stack.starts.copy_within(going..stack.count, 0);
        stack.count -= going;
    }

    /// From the allocator; where it is full, after giving it what is kept here.
    #[cold]
    fn take_elsewhere(
        &mut self,
        granules: u64,
        placement: Placement,
    ) -> Result<IovaRange, IovaError> {
        self.allocator.take_granules(granules, placement).or_else(|full| {
            if self.classes.iter().all(|stack| stack.count == 0) {
                return Err(full);
            }
            self.clear();
            self.allocator.take_granules(granules, placement)
        })
    }
}

impl Drop for IovaCache<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for IovaCache<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept: Vec<usize> = self.classes.iter().map(|stack| stack.count).collect();
        f.debug_struct("IovaCache").field("kept", &kept).finish_non_exhaustive()
    }
}

/// The least power of two of granules that `granules` fit into.
#[inline]
fn class_of(granules: u64) -> usize {
    // `granules` is 1 at least.
    (u64::BITS - (granules - 1).leading_zeros()) as usize
}
