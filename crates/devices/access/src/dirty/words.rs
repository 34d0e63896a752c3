//! Words that are zero and take no memory before they are touched.
#![cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "allocates zeroed memory, which Vec cannot for atomics")
)]

#[cfg(loom)]
pub(crate) use explored::Word;

/// A word of bits.
#[cfg(not(loom))]
pub(crate) type Word = longshore_sync::primitives::AtomicU64;

/// `count` words of value zero, or `None` where the allocator has no room for them.
///
/// A large allocation comes from the kernel, which makes its pages when they are first touched. The
/// alignment stays that of a word: for more, the system's allocator would write the zeros itself.
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
    // SAFETY: allocated by the global allocator with the layout that a box of this slice has, and
    // zero bytes are atomics of value zero.
    Some(unsafe { Box::from_raw(words) })
}

/// Loom's atomics are made one by one.
#[cfg(loom)]
pub(crate) fn words(count: usize) -> Option<Box<[Word]>> {
    Some((0..count).map(|_| Word::new(0)).collect())
}

/// Words whose every access loom takes turns with.
///
/// Loom 0.7 remembers one last access of an atomic. A thread that loads a word and then changes it
/// hides the load that another thread made before, and the order "changed, then loaded by the other"
/// is never tried: exactly what testing a bit and then setting it comes down to. So each access is
/// preceded by a relaxed read-modify-write of an atomic beside the word, which cannot be hidden, and
/// which orders nothing that the fences around a slot do not.
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
        // More than a layout can say is refused above; this is for the allocator, of which Miri has
        // none that fails.
        assert!(cfg!(miri) || words(1 << 57).is_none());
    }
}
