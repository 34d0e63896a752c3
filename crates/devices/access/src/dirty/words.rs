//! Zeroed arrays of words, which take no memory before they are touched.
#![cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "allocates zeroed memory, which Vec cannot for atomics")
)]

#[cfg(loom)]
pub(crate) use explored::Word;

/// A word of a bitmap.
#[cfg(not(loom))]
pub(crate) type Word = longshore_sync::primitives::AtomicU64;

/// Returns `count` words of value zero, or `None` if the allocator has no memory for them.
///
/// A large allocation comes from the kernel, which makes its pages when they are first touched. The
/// alignment is only that of a word: for a larger one, the system's allocator would write the zeros
/// itself.
#[cfg(not(loom))]
pub(crate) fn words(count: usize) -> Option<Box<[Word]>> {
    use std::alloc::{Layout, alloc_zeroed};
    use std::ptr::{self, NonNull};

    if count == 0 {
        return Some(Box::default());
    }
    let layout = Layout::array::<Word>(count).ok()?;
    // SAFETY: the layout is not empty.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast::<Word>();
    let words = ptr::slice_from_raw_parts_mut(start.as_ptr(), count);
    // SAFETY: the memory was allocated by the global allocator with the layout of a box of this slice,
    // and zero bytes are valid atomics of value zero.
    Some(unsafe { Box::from_raw(words) })
}

/// Returns `count` words of value zero. Loom's atomics must be constructed one by one.
#[cfg(loom)]
pub(crate) fn words(count: usize) -> Option<Box<[Word]>> {
    Some((0..count).map(|_| Word::new(0)).collect())
}

/// Words for which loom explores the order of all accesses.
///
/// Loom 0.7 remembers only the last access of an atomic. If a thread loads a word and then changes it,
/// that hides an earlier load by another thread, and loom never tries the order "changed, then loaded by
/// the other thread". Testing a bit and then setting it is exactly this pattern. So each access is
/// preceded by a relaxed read-modify-write of a second atomic, which cannot be hidden and adds no
/// ordering beyond that of the fences around a slot.
#[cfg(loom)]
mod explored {
    use longshore_sync::primitives::{AtomicU64, Ordering};

    pub(crate) struct Word {
        bits: AtomicU64,
        turns: AtomicU64,
    }

    impl Word {
        pub(crate) fn new(bits: u64) -> Self {
            Self { bits: AtomicU64::new(bits), turns: AtomicU64::new(0) }
        }

        fn turn(&self) -> &AtomicU64 {
            self.turns.fetch_add(1, Ordering::Relaxed);
            &self.bits
        }

        pub(crate) fn load(&self, ordering: Ordering) -> u64 {
            self.turn().load(ordering)
        }

        pub(crate) fn swap(&self, bits: u64, ordering: Ordering) -> u64 {
            self.turn().swap(bits, ordering)
        }

        pub(crate) fn fetch_or(&self, bits: u64, ordering: Ordering) -> u64 {
            self.turn().fetch_or(bits, ordering)
        }

        pub(crate) fn fetch_and(&self, bits: u64, ordering: Ordering) -> u64 {
            self.turn().fetch_and(bits, ordering)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use longshore_sync::primitives::Ordering;

    #[test]
    fn words_are_zero_and_what_does_not_fit_is_refused() {
        assert_eq!(words(0).unwrap().len(), 0);
        let some = words(1000).unwrap();
        assert_eq!(some.len(), 1000);
        assert!(some.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        some[999].store(7, Ordering::Relaxed);
        assert!(words(usize::MAX / 4).is_none());
        // The size above is too large for a layout; this one fails in the allocator. Miri's allocator
        // does not fail.
        assert!(cfg!(miri) || words(1 << 57).is_none());
    }
}
