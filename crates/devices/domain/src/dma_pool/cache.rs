//! A thread's cache of one pool. The thread uses it without a lock; other threads empty it by a claim
//! ([`OwnerBiased`]) when the pool is dropped, shrunk or exhausted.
#![expect(unsafe_code, reason = "only the owning thread may call some functions")]

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use longshore_sync::{Barrier, OwnerBiased};

/// The elements of one pool that a thread keeps.
pub(super) struct Cache<T> {
    /// Never longer than its capacity, so the owner allocates nothing.
    elements: OwnerBiased<Vec<T>>,
    len_max: usize,
    /// The number of elements, for other threads.
    len: AtomicU32,
    /// `true` if the pool was dropped: the cache keeps no elements then. Only a claim changes it.
    is_closed: AtomicBool,
}

impl<T> Cache<T> {
    pub(super) fn new(len_max: usize) -> Self {
        Self {
            elements: OwnerBiased::new(Vec::with_capacity(len_max), Barrier::best()),
            len_max,
            len: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Takes an element out of the cache.
    ///
    /// # Safety
    /// Only the thread whose cache this is may call it.
    #[inline]
    pub(super) unsafe fn pop(&self) -> Option<T> {
        let pop = |elements: &mut Vec<T>| {
            let element = elements.pop();
            self.len.store(elements.len() as u32, Ordering::Relaxed);
            element
        };
        // SAFETY: the caller's promise.
        unsafe { self.elements.own(pop) }?
    }

    /// Takes the element out of `from`, unless there is no room, or the pool was dropped.
    ///
    /// # Safety
    /// As [`pop`](Self::pop).
    #[inline]
    pub(super) unsafe fn push(&self, from: &mut Option<T>) {
        let push = |elements: &mut Vec<T>| {
            if elements.len() < self.len_max && !self.is_closed() {
                elements.extend(from.take());
                self.len.store(elements.len() as u32, Ordering::Relaxed);
            }
        };
        // SAFETY: the caller's promise.
        let _within_itself = unsafe { self.elements.own(push) }.is_none();
    }

    /// Moves all elements to `to`. Any thread may call it. If `closes`, the cache keeps no elements from
    /// then on.
    pub(super) fn empty(&self, closes: bool, to: &mut Vec<T>) {
        // Allocated before the claim: an allocator that uses the pool itself would wait for the claim.
        let mut taken = Vec::with_capacity(self.len_max);
        self.elements.claim(|elements| {
            self.is_closed.fetch_or(closes, Ordering::Relaxed);
            mem::swap(elements, &mut taken);
            self.len.store(0, Ordering::Relaxed);
        });
        to.append(&mut taken);
    }

    /// Returns true if the pool was dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Returns the number of elements, which may be out of date.
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }
}
