//! A queue of parts of pages that can grow while it is walked.
#![expect(unsafe_code, reason = "keeps parts of pages under another lifetime")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::kind::Kind;
use super::list::Item;
use super::page_segment::PageSegment;
use super::walk::{Key, Walk};
use crate::direction::{Dest, Direction, Source};
use crate::segment::Segment;

/// The number of slots in a batch, which takes about 800 bytes.
const BATCH_SLOTS: usize = 31;

/// A queue of parts of pages, in linked batches. Its [`PageAppender`] can append to the end, from
/// any thread, while a cursor walks.
///
/// A slot is written once, before it is published, so walking takes no lock.
#[derive(Debug)]
pub struct PageQueue<'m, D> {
    first: Arc<Batch<D>>,
    appended_bytes: Arc<AtomicUsize>,
    memory: PhantomData<PageSegment<'m, D>>,
}

/// The appending end of a [`PageQueue`].
#[derive(Debug)]
pub struct PageAppender<'m, D> {
    last: Arc<Batch<D>>,
    filled: usize,
    appended_bytes: Arc<AtomicUsize>,
    /// Invariant in `'m`: pages with a shorter life than the queue must not be appended.
    memory: PhantomData<fn(PageSegment<'m, D>) -> PageSegment<'m, D>>,
}

/// A batch of slots. Its type does not have the lifetime of its pages; the queue and the appender
/// do, and a batch is only accessible through them.
#[derive(Debug)]
struct Batch<D> {
    slots: [OnceLock<PageSegment<'static, D>>; BATCH_SLOTS],
    next: OnceLock<Arc<Self>>,
    /// The batch whose `next` is this one. It lives as long as its queue, because the queue owns
    /// the batches from the first one on.
    previous: Option<Weak<Self>>,
}

impl<D: Direction> Batch<D> {
    fn after(previous: Option<&Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            slots: [const { OnceLock::new() }; BATCH_SLOTS],
            next: OnceLock::new(),
            previous: previous.map(Arc::downgrade),
        })
    }
}

impl<D> Drop for Batch<D> {
    /// Frees the batches in a loop: for a long queue, recursion would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut batch) = next.and_then(Arc::into_inner) {
            next = batch.next.take();
        }
    }
}

impl<'m, D: Direction> PageQueue<'m, D> {
    /// Returns an empty queue and its appender.
    pub fn new() -> (PageAppender<'m, D>, Self) {
        let first = Batch::after(None);
        let appended_bytes = Arc::new(AtomicUsize::new(0));
        let last = Arc::clone(&first);
        let appender = PageAppender {
            last,
            filled: 0,
            appended_bytes: Arc::clone(&appended_bytes),
            memory: PhantomData,
        };
        (appender, Self { first, appended_bytes, memory: PhantomData })
    }

    /// Returns the number of bytes appended so far.
    pub fn len_bytes(&self) -> usize {
        self.appended_bytes.load(Ordering::Acquire)
    }

    /// Returns `true` if no bytes were appended so far.
    pub fn is_empty(&self) -> bool {
        self.len_bytes() == 0
    }
}

impl<'m, D: Direction> PageAppender<'m, D> {
    /// Appends `part` to the end of the queue.
    pub fn append(&mut self, part: PageSegment<'m, D>) {
        if self.filled == BATCH_SLOTS {
            let next = Batch::after(Some(&self.last));
            let link = self.last.next.get_or_init(|| Arc::clone(&next));
            debug_assert!(Arc::ptr_eq(link, &next), "there is one appender");
            self.last = next;
            self.filled = 0;
        }
        let len_bytes = part.len();
        // SAFETY: only cursors of the queue access it, and the queue has the same `'m` as this
        // appender.
        let part = unsafe { part.erase_lifetime() };
        let was_free = self.last.slots[self.filled].set(part).is_ok();
        debug_assert!(was_free, "there is one appender");
        self.filled += 1;
        self.appended_bytes.fetch_add(len_bytes, Ordering::Release);
    }
}

/// A place in a [`PageQueue`]. A walk ends at the last part appended so far.
#[doc(alias = "folioq")]
#[derive(Debug)]
pub struct QueuedPages<'m, D> {
    first: &'m Batch<D>,
    batch: &'m Batch<D>,
    slot: usize,
    offset: usize,
}

impl<'m> QueuedPages<'m, Source> {
    /// Returns the place at the start of `queue`.
    pub fn new(queue: &'m PageQueue<'_, Source>) -> Self {
        Self::at_start(&queue.first)
    }
}

impl<'m> QueuedPages<'m, Dest> {
    /// Returns the place at the start of `queue`, which is borrowed exclusively.
    pub fn new(queue: &'m mut PageQueue<'_, Dest>) -> Self {
        Self::at_start(&queue.first)
    }
}

impl<'m, D: Direction> QueuedPages<'m, D> {
    fn at_start(first: &'m Batch<D>) -> Self {
        Self { first, batch: first, slot: 0, offset: 0 }
    }

    /// Returns the part of a page at this place. Moves to the next batch if this one ends here.
    fn here(&mut self) -> Option<&'m PageSegment<'m, D>> {
        if self.slot == BATCH_SLOTS {
            self.batch = self.batch.next.get()?;
            self.slot = 0;
        }
        self.batch.slots[self.slot].get()
    }

    /// Moves to the end of the previous part, or returns `None` at the start of the queue.
    fn step_back(&mut self) -> Option<()> {
        if self.slot == 0 {
            let previous = self.batch.previous.as_ref()?;
            // SAFETY: the batch is linked from the queue's first one, which lives as long as the
            // queue and so for `'m`.
            self.batch = unsafe { &*previous.as_ptr() };
            self.slot = BATCH_SLOTS;
        }
        self.slot -= 1;
        self.offset = self.batch.slots[self.slot].get()?.len_bytes();
        Some(())
    }
}

impl<D: Direction> Kind<D> for QueuedPages<'_, D> {
    fn name(&self) -> &'static str {
        "PageQueue"
    }

    fn can_fault(&self) -> bool {
        false
    }
}

impl<D: Direction> Walk<D> for QueuedPages<'_, D> {
    fn segment(&mut self, _: Key, len_max: usize) -> Option<Segment<'_, D>> {
        loop {
            let part = self.here()?;
            let left = part.len() - self.offset;
            if left > 0 {
                return Some(part.part(self.offset, left.min(len_max)));
            }
            self.slot += 1;
            self.offset = 0;
        }
    }

    fn advance(&mut self, key: Key, len_bytes: usize) -> usize {
        self.iterate(key, len_bytes, |_, _| 0)
    }

    fn retreat(&mut self, _: Key, len_bytes: usize) {
        let mut left = len_bytes;
        while left > self.offset {
            left -= self.offset;
            self.offset = 0;
            if self.step_back().is_none() {
                return;
            }
        }
        self.offset -= left;
    }

    unsafe fn duplicate(&self, _: Key) -> Self {
        Self { ..*self }
    }

    fn is_in_memory_of(&self, _: Key, other: &Self) -> bool {
        ptr::eq(self.first, other.first)
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        _: Key,
        len_bytes: usize,
        mut step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        // Store the place after all steps: a step that panics leaves it unchanged.
        let mut at = Self { ..*self };
        let mut done = 0;
        'batches: while done < len_bytes && at.here().is_some() {
            let mut slot = at.slot;
            for part_of_page in &at.batch.slots[slot..] {
                let Some(part_of_page) = part_of_page.get() else { break };
                let here = part_of_page.len_bytes() - at.offset;
                let part = here.min(len_bytes - done);
                if part > 0 {
                    let segment = part_of_page.part(at.offset, part);
                    let stepped = part.saturating_sub(step(segment, done));
                    done += stepped;
                    if stepped < here {
                        at.offset += stepped;
                        at.slot = slot;
                        break 'batches;
                    }
                }
                slot += 1;
                at.offset = 0;
                if done == len_bytes {
                    break;
                }
            }
            at.slot = slot;
        }
        *self = at;
        done
    }
}
