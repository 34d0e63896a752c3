//! A place in memory, and how much of it may be walked.
#![expect(unsafe_code, reason = "copies a place for marks and for readers")]

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use longshore_mem::{VolatileSlice, VolatileSliceMut};

use crate::direction::{Dest, Direction, Source};
use crate::error::Error;
use crate::kinds::walk::KEY;
use crate::kinds::{
    AnyKind, Discard, ForeignBuf, ForeignVec, Kind, OwnVec, PageIndex, PageQueue, PageSegment,
    PageVec, QueuedPages, SparsePages,
};
use crate::segment::{Segment, SegmentList};
use crate::source::SegmentSource;

mod ask;
mod extract;
mod taken;

pub use taken::Taken;

/// A place in memory of some kind, from which up to [`remaining`](SegmentSource::remaining) bytes
/// can be walked.
///
/// `Cursor<'m, D>` is of any kind; `Cursor<'m, D, OwnVec<'m, D>>` of a known one, for which each
/// operation is compiled without asking which it is ([`Cursor::from_kind`]).
#[derive(Debug)]
pub struct Cursor<'m, D: Direction, K = AnyKind<'m, D>> {
    kind: K,
    left: usize,
    /// Bytes cut off by `truncate`, that `reexpand` may bring back.
    hidden: usize,
    walked: usize,
    /// How many of the walked bytes can no longer be gone back to: they were extracted from a
    /// destination, and belong to another writer.
    given: usize,
    memory: PhantomData<Segment<'m, D>>,
}

/// The place of a cursor, which [`Cursor::save`] returns and [`Cursor::restore`] takes.
#[derive(Debug)]
pub struct Mark<'m, D: Direction, K = AnyKind<'m, D>> {
    /// Only ever copied from: its memory may be in use by the cursor.
    at: Cursor<'m, D, K>,
}

/// The kinds that both directions have, and what they are made of.
macro_rules! constructors {
    ($direction:ident, $($reference:tt)*) => {
        /// A cursor over a list of foreign ranges.
        pub fn foreign_vec(list: $($reference)* SegmentList<'_, $direction>) -> Self {
            let len_bytes = list.len_bytes();
            Self::new(AnyKind::ForeignVec(ForeignVec::<$direction>::new(list)), len_bytes)
        }

        /// A cursor over parts of pages.
        pub fn page_vec(parts: $($reference)* [PageSegment<'_, $direction>]) -> Self {
            let len_bytes = sum(parts.iter().map(PageSegment::len));
            Self::new(AnyKind::PageVec(PageVec::<$direction>::new(parts)), len_bytes)
        }

        /// A cursor over `len_bytes` bytes of sparse pages, from `start` bytes after the start of
        /// page 0. A missing page ends a walk before.
        ///
        /// # Errors
        /// [`Error::TooLong`] where that reaches past 2^64 or is more than an object can have.
        pub fn sparse_pages(
            pages: $($reference)* PageIndex<'_, $direction>,
            start: u64,
            len_bytes: usize,
        ) -> Result<Self, Error> {
            let is_possible =
                len_bytes <= isize::MAX as usize && start.checked_add(len_bytes as u64).is_some();
            if !is_possible {
                return Err(Error::TooLong { segments: 1 });
            }
            let kind = SparsePages::<$direction>::new(pages, start);
            Ok(Self::new(AnyKind::SparsePages(kind), len_bytes))
        }

        /// A cursor over the first `len_bytes` bytes of a queue, be they appended yet or not. Where
        /// they are not a walk ends before, and goes on later.
        pub fn page_queue(
            queue: $($reference)* PageQueue<'_, $direction>,
            len_bytes: usize,
        ) -> Self {
            let len_bytes = len_bytes.min(isize::MAX as usize);
            Self::new(AnyKind::QueuedPages(QueuedPages::<$direction>::new(queue)), len_bytes)
        }
    };
}

impl<'m> Cursor<'m, Source> {
    /// A cursor over one foreign range.
    pub fn foreign_buf(view: VolatileSlice<'m>) -> Self {
        let len_bytes = view.len();
        Self::new(AnyKind::ForeignBuf(ForeignBuf::<Source>::new(view)), len_bytes)
    }

    /// A cursor over own slices.
    pub fn own_vec(slices: &'m [IoSlice<'m>]) -> Self {
        let len_bytes = sum(slices.iter().map(|slice| slice.len()));
        Self::new(AnyKind::OwnVec(OwnVec::<Source>::new(slices)), len_bytes)
    }

    constructors!(Source, &'m);
}

impl<'m> Cursor<'m, Dest> {
    /// A cursor over one foreign range.
    pub fn foreign_buf(view: VolatileSliceMut<'m>) -> Self {
        let len_bytes = view.len();
        Self::new(AnyKind::ForeignBuf(ForeignBuf::<Dest>::new(view)), len_bytes)
    }

    /// A cursor over own slices.
    pub fn own_vec(slices: &'m mut [IoSliceMut<'_>]) -> Self {
        let len_bytes = sum(slices.iter().map(|slice| slice.len()));
        Self::new(AnyKind::OwnVec(OwnVec::<Dest>::new(slices)), len_bytes)
    }

    /// A cursor that takes `len_bytes` bytes and keeps none.
    pub fn discard(len_bytes: usize) -> Self {
        Self::new(AnyKind::Discard(Discard), len_bytes)
    }

    constructors!(Dest, &'m mut);
}

fn sum(lens_bytes: impl Iterator<Item = usize>) -> usize {
    // The same slice may be listed often, so the sum may exceed what an object can have.
    lens_bytes.fold(0, usize::saturating_add).min(isize::MAX as usize)
}

impl<'m, D: Direction, K: Kind<D>> Cursor<'m, D, K> {
    /// A cursor of a known kind, over at most `len_bytes` bytes.
    pub fn from_kind(kind: K, len_bytes: usize) -> Self {
        Self::new(kind, len_bytes.min(isize::MAX as usize))
    }

    fn new(kind: K, left: usize) -> Self {
        Self { kind, left, hidden: 0, walked: 0, given: 0, memory: PhantomData }
    }

    /// The kind of memory, by name.
    pub fn kind_name(&self) -> &'static str {
        self.kind.name()
    }

    /// Whether the memory can fault.
    pub fn can_fault(&self) -> bool {
        self.kind.can_fault()
    }

    /// Bytes walked since the cursor was made.
    pub const fn walked(&self) -> usize {
        self.walked
    }

    /// Lets no more than `len_bytes` be walked from here; the rest may come back by
    /// [`reexpand`](Self::reexpand).
    pub fn truncate(&mut self, len_bytes: usize) {
        let cut = self.left.saturating_sub(len_bytes);
        self.left -= cut;
        self.hidden += cut;
    }

    /// Lets `len_bytes` be walked from here, where [`truncate`](Self::truncate) allowed less.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where that is more than there ever was; nothing changes then.
    pub fn reexpand(&mut self, len_bytes: usize) -> Result<(), Error> {
        let possible_bytes = self.left + self.hidden;
        if len_bytes > possible_bytes {
            return Err(Error::OutOfRange { asked_bytes: len_bytes, possible_bytes });
        }
        self.left = len_bytes;
        self.hidden = possible_bytes - len_bytes;
        Ok(())
    }

    /// Returns the place of the cursor, for [`restore`](Self::restore).
    pub fn save(&self) -> Mark<'m, D, K> {
        // SAFETY: a mark accesses no memory.
        Mark { at: unsafe { self.duplicate() } }
    }

    /// Goes back (or on) to where the cursor was when `mark` was made. Nothing is walked: it costs
    /// the same however far that is.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a mark of other memory, of a part or whole that ends elsewhere
    /// ([`take`](Self::take)), or of a place before bytes that were
    /// [extracted](Self::extract_segments) from a destination. Nothing changes then.
    pub fn restore(&mut self, mark: &Mark<'m, D, K>) -> Result<(), Error> {
        let end = self.end();
        let is_of_this = mark.at.end() == end
            && mark.at.walked >= self.given
            && mark.at.kind.is_in_memory_of(KEY, &self.kind);
        if !is_of_this {
            return Err(Error::OutOfRange { asked_bytes: mark.at.walked, possible_bytes: end });
        }
        // SAFETY: it replaces this cursor, and the mark accesses no memory.
        *self = Self { given: self.given, ..unsafe { mark.at.duplicate() } };
        Ok(())
    }

    /// [`iterate`](SegmentSource::iterate) for kinds whose memory cannot fault, with a step that
    /// cannot end early.
    ///
    /// # Errors
    /// [`Error::CanFault`] for the others; nothing moves then.
    #[inline(always)]
    pub fn iterate_infallible(
        &mut self,
        len_bytes: usize,
        mut step: impl FnMut(Segment<'_, D>, usize),
    ) -> Result<usize, Error> {
        if self.kind.can_fault() {
            return Err(Error::CanFault { kind: self.kind.name() });
        }
        Ok(self.iterate(len_bytes, |segment, done| {
            step(segment, done);
            0
        }))
    }

    /// The bytes walked when all is, also what was cut off: the same wherever the cursor is.
    fn end(&self) -> usize {
        self.walked + self.left + self.hidden
    }

    /// Returns a second cursor at the same place.
    ///
    /// # Safety
    /// Of both, one at a time may be used to access memory of a [`Dest`].
    unsafe fn duplicate(&self) -> Self {
        // SAFETY: the caller's promise.
        let kind = unsafe { self.kind.duplicate(KEY) };
        Self { kind, ..*self }
    }

    #[inline(always)]
    fn moved(&mut self, len_bytes: usize) -> usize {
        self.walked += len_bytes;
        self.left -= len_bytes;
        len_bytes
    }
}

/// Two cursors may read the same memory.
impl<K: Kind<Source>> Clone for Cursor<'_, Source, K> {
    fn clone(&self) -> Self {
        // SAFETY: the memory is only read.
        unsafe { self.duplicate() }
    }
}

impl<D: Direction, K: Kind<D>> Clone for Mark<'_, D, K> {
    fn clone(&self) -> Self {
        // SAFETY: a mark accesses no memory.
        Self { at: unsafe { self.at.duplicate() } }
    }
}

impl<D: Direction, K: Kind<D>> SegmentSource<D> for Cursor<'_, D, K> {
    fn remaining(&self) -> usize {
        self.left
    }

    #[inline]
    fn next_segment(&mut self, len_max: usize) -> Option<Segment<'_, D>> {
        let len_max = len_max.min(self.left);
        if len_max == 0 { None } else { self.kind.segment(KEY, len_max) }
    }

    fn advance(&mut self, len_bytes: usize) {
        let advanced = self.kind.advance(KEY, len_bytes.min(self.left));
        self.moved(advanced);
    }

    fn revert(&mut self, len_bytes: usize) -> Result<(), Error> {
        let possible_bytes = self.walked - self.given;
        if len_bytes > possible_bytes {
            return Err(Error::OutOfRange { asked_bytes: len_bytes, possible_bytes });
        }
        self.kind.retreat(KEY, len_bytes);
        self.walked -= len_bytes;
        self.left += len_bytes;
        Ok(())
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        let done = self.kind.iterate(KEY, len_bytes.min(self.left), step);
        self.moved(done)
    }
}

impl Cursor<'_, Source, OwnVec<'_, Source>> {
    /// [`iterate`](SegmentSource::iterate) with slices: this kind's memory is the program's own.
    #[inline(always)]
    pub fn iterate_own_vec(
        &mut self,
        len_bytes: usize,
        step: impl FnMut(&[u8], usize) -> usize,
    ) -> usize {
        let done = self.kind.iterate_slices(len_bytes.min(self.left), step);
        self.moved(done)
    }
}

impl Cursor<'_, Dest, OwnVec<'_, Dest>> {
    /// [`iterate`](SegmentSource::iterate) with slices: this kind's memory is the program's own.
    #[inline(always)]
    pub fn iterate_own_vec(
        &mut self,
        len_bytes: usize,
        step: impl FnMut(&mut [u8], usize) -> usize,
    ) -> usize {
        let done = self.kind.iterate_slices(len_bytes.min(self.left), step);
        self.moved(done)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::kinds::walk::{Key, Walk};

    /// Counts how often it is moved.
    struct Counting<'a> {
        at: usize,
        moves: &'a Cell<usize>,
    }

    impl Kind<Source> for Counting<'_> {
        fn name(&self) -> &'static str {
            "Counting"
        }

        fn can_fault(&self) -> bool {
            false
        }
    }

    impl Walk<Source> for Counting<'_> {
        fn segment(&mut self, _: Key, _: usize) -> Option<Segment<'_, Source>> {
            None
        }

        fn advance(&mut self, _: Key, len_bytes: usize) -> usize {
            self.moves.update(|moves| moves + 1);
            self.at += len_bytes;
            len_bytes
        }

        fn retreat(&mut self, _: Key, len_bytes: usize) {
            self.moves.update(|moves| moves + 1);
            self.at -= len_bytes;
        }

        fn iterate(
            &mut self,
            key: Key,
            len_bytes: usize,
            _: impl FnMut(Segment<'_, Source>, usize) -> usize,
        ) -> usize {
            self.advance(key, len_bytes)
        }

        unsafe fn duplicate(&self, _: Key) -> Self {
            Self { ..*self }
        }

        fn is_in_memory_of(&self, _: Key, other: &Self) -> bool {
            std::ptr::eq(self.moves, other.moves)
        }
    }

    #[test]
    fn going_back_to_a_mark_walks_nothing() {
        let moves = Cell::new(0);
        let mut cursor = Cursor::from_kind(Counting { at: 0, moves: &moves }, 1000);
        let start = cursor.save();
        cursor.advance(700);
        cursor.truncate(100);
        let late = cursor.save();
        assert_eq!(moves.get(), 1);
        for (mark, place) in [(&start, (0, 1000)), (&late, (700, 100)), (&late, (700, 100))] {
            cursor.restore(mark).unwrap();
            assert_eq!((cursor.walked(), cursor.remaining()), place);
            assert_eq!((cursor.kind.at, moves.get()), (place.0, 1));
        }
        assert_eq!(cursor.reexpand(300), Ok(()), "what was cut off is known too");
    }
}
