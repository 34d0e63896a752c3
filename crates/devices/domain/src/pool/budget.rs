//! A common limit for the memory of the pools of all domains of the process.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number of bytes with a limit.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicU64,
    taken: AtomicU64,
}

/// The budget of the process.
pub(crate) static PROCESS: Budget = Budget::new(u64::MAX);

impl Budget {
    pub(crate) const fn new(limit: u64) -> Self {
        Self { limit: AtomicU64::new(limit), taken: AtomicU64::new(0) }
    }

    /// Takes this many bytes. Returns false if the limit does not allow it.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit. If more bytes are taken already, they stay taken until they are given back.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }
}

/// Limits the total memory of the bounce buffers and DMA pools of all domains of this process. Without
/// this call, there are only the limits of each domain and each pool. If the pools have more memory
/// already, they do not grow.
pub fn set_process_budget(bytes: u64) {
    PROCESS.set_limit(bytes);
}

/// Returns how many bytes the bounce buffers and DMA pools of all domains of this process have.
pub fn process_pool_bytes() -> u64 {
    PROCESS.taken()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_the_limit() {
        let budget = Budget::new(100);
        assert!(budget.take(60) && !budget.take(41) && budget.take(40));
        assert!(!budget.take(u64::MAX));
        budget.give(50);
        budget.set_limit(40);
        assert!(!budget.take(1));
        assert_eq!((budget.taken(), budget.limit()), (50, 40));
    }
}
