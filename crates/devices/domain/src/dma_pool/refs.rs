//! The count of the handles of one element.
#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom tests"))]

use longshore_sync::primitives::{AtomicU32, Ordering, fence};

/// The number of handles of an element. It is one while the element is free, for the next thread
/// that takes it.
#[derive(Debug)]
pub struct Refs(AtomicU32);

/// So many handles end the process, as `Arc` does: they can only be had by forgetting them, and one
/// more for each other thread does not make the count overflow.
const MOST: u32 = i32::MAX as u32;

impl Default for Refs {
    fn default() -> Self {
        Self(AtomicU32::new(1))
    }
}

impl Refs {
    /// One more handle.
    pub fn add(&self) {
        // A thread with a handle to clone has seen everything that came before it.
        if self.0.fetch_add(1, Ordering::Relaxed) >= MOST {
            std::process::abort();
        }
    }

    /// `true` if the caller's handle is the only one. Everything done through the others has been done
    /// then.
    pub fn is_only(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }

    /// Ends a handle. Returns true if it was the last: its element is free then, and what was done
    /// through the others has been done.
    #[inline]
    #[must_use = "the element is the caller's to give back"]
    pub fn end(&self) -> bool {
        // No other thread has a handle to clone, so it stays one, and spares a locked instruction.
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
