//! The reference count of one element.
#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom tests"))]

use longshore_sync::primitives::{AtomicU32, Ordering, fence};

/// The number of handles of an element. It is one while the element is free, for the next thread
/// that takes it.
#[derive(Debug)]
pub struct Refs(AtomicU32);

/// The process is aborted at this many handles, as by `Arc`. Only a program that leaks handles gets
/// there, and one more handle from each other thread does not make the count overflow.
const MOST: u32 = i32::MAX as u32;

impl Default for Refs {
    fn default() -> Self {
        Self(AtomicU32::new(1))
    }
}

impl Refs {
    /// Counts one more handle.
    pub fn add(&self) {
        // Relaxed as in `Arc`: the caller has a handle, so all that came before is visible to it.
        if self.0.fetch_add(1, Ordering::Relaxed) >= MOST {
            std::process::abort();
        }
    }

    /// Returns true if the caller's handle is the only one. All accesses through other handles happened
    /// before that.
    pub fn is_only(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }

    /// Ends a handle. Returns true if it was the last: its element is free then, and all accesses
    /// through other handles happened before that.
    #[inline]
    #[must_use = "the caller must give the element back"]
    pub fn end(&self) -> bool {
        // No other thread has a handle to clone, so the count stays 1, without a locked instruction.
        if self.is_only() {
            return true;
        }
        if self.0.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        fence(Ordering::Acquire);
        self.0.store(1, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_any_number_of_handles_frees_the_element() {
        let refs = Refs::default();
        for handles in 1..5 {
            (1..handles).for_each(|_| refs.add());
            (1..handles).for_each(|_| assert!(!refs.is_only() && !refs.end()));
            assert!(refs.is_only() && refs.end());
        }
    }

    #[test]
    fn handles_end_in_any_thread() {
        let refs = Refs::default();
        for _ in 0..if cfg!(miri) { 5 } else { 200 } {
            refs.add();
            refs.add();
            let last = std::thread::scope(|scope| {
                let ends = [(); 3].map(|()| scope.spawn(|| refs.end()));
                ends.map(|end| u32::from(end.join().unwrap())).iter().sum::<u32>()
            });
            assert_eq!(last, 1);
        }
    }
}
