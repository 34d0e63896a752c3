//! Batches of pages that may be appended to while they are walked.
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

/// Slots of a batch: with its link and its count about 1 KiB.
const BATCH_SLOTS: usize = 31;

/// A queue of parts of pages, in linked batches. Its [`PageAppender`], which may be in another
/// thread, appends to the end while a cursor walks.
///
/// A slot is written once, before it is published, so walking takes no lock.
#[derive(Debug)]
pub struct PageQueue<'m, D> {
    first: Arc<Batch<D>>,
    appended_bytes: Arc<AtomicUsize>,
    memory: PhantomData<PageSegment<'m, D>>,
}

/// The one that appends to a [`PageQueue`].
#[derive(Debug)]
pub struct PageAppender<'m, D> {
    last: Arc<Batch<D>>,
    filled: usize,
    appended_bytes: Arc<AtomicUsize>,
    /// Invariant: what lives shorter than the queue's pages must not be appended.
    memory: PhantomData<fn(PageSegment<'m, D>) -> PageSegment<'m, D>>,
}

/// Does not know how long its pages live; the queue and the appender do, and a batch is not seen
/// but through them.
#[derive(Debug)]
struct Batch<D> {
    slots: [OnceLock<PageSegment<'static, D>>; BATCH_SLOTS],
    next: OnceLock<Arc<Self>>,
    /// The batch whose `next` this is. It is there as long as its queue: batches go from the first
    /// one on.
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
    /// One after another: a long queue would else be freed by as deep a recursion.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut batch) = next.and_then(Arc::into_inner) {
            next = batch.next.take();
        }
    }
}

impl<'m, D: Direction> PageQueue<'m, D> {
    /// A queue without pages, and what appends to it.
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

    /// Bytes appended so far.
    pub fn len_bytes(&self) -> usize {
        self.appended_bytes.load(Ordering::Acquire)
    }

    /// Whether nothing was appended so far.
    pub fn is_empty(&self) -> bool {
        self.len_bytes() == 0
    }
}

impl<'m, D: Direction> PageAppender<'m, D> {
    /// Puts `part` at the end of the queue.
    pub fn append(&mut self, part: PageSegment<'m, D>) {
        if self.filled == BATCH_SLOTS {
            let next = Batch::after(Some(&self.last));
            let link = self.last.next.get_or_init(|| Arc::clone(&next));
            debug_assert!(Arc::ptr_eq(link, &next), "there is one appender");
            self.last = next;
            self.filled = 0;
        }
        let len_bytes = part.len();
        // SAFETY: only cursors of the queue see it, and the queue's lifetime is this appender's.
        let part = unsafe { part.erase_lifetime() };
        let was_free = self.last.slots[self.filled].set(part).is_ok();
        debug_assert!(was_free, "there is one appender");
        self.filled += 1;
        self.appended_bytes.fetch_add(len_bytes, Ordering::Release);
    }
}

/// A place in a [`PageQueue`]. Its walk ends, for now, at what was appended last.
#[doc(alias = "folioq")]
#[derive(Debug)]
pub struct QueuedPages<'m, D> {
    first: &'m Batch<D>,
    batch: &'m Batch<D>,
    slot: usize,
    offset: usize,
}

impl<'m> QueuedPages<'m, Source> {
    /// The start of `queue`.
    pub fn new(queue: &'m PageQueue<'_, Source>) -> Self {
        Self::at_start(&queue.first)
    }
}

impl<'m> QueuedPages<'m, Dest> {
    /// The start of `queue`, which is lent to this one alone.
    pub fn new(queue: &'m mut PageQueue<'_, Dest>) -> Self {
        Self::at_start(&queue.first)
    }
}

impl<'m, D: Direction> QueuedPages<'m, D> {
    fn at_start(first: &'m Batch<D>) -> Self {
        Self { first, batch: first, slot: 0, offset: 0 }
    }

    /// The part of a page here. Goes over to the next batch where there is one.
    fn here(&mut self) -> Option<&'m PageSegment<'m, D>> {
        if self.slot == BATCH_SLOTS {
            self.batch = self.batch.next.get()?;
            self.slot = 0;
        }
        self.batch.slots[self.slot].get()
    }

    /// Goes to the end of the part before, in whichever batch that is. Stays at the queue's start.
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
        // The place is kept once all steps are done: one that panics leaves it as it was.
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
