//! A place in memory, and the number of bytes that may be walked from it.
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
/// A `Cursor<'m, D>` is of any kind. A `Cursor<'m, D, OwnVec<'m, D>>` is of a known one, for which
/// each operation is compiled without a `match` on the kind ([`Cursor::from_kind`]).
#[derive(Debug)]
pub struct Cursor<'m, D: Direction, K = AnyKind<'m, D>> {
    kind: K,
    left: usize,
    /// The bytes cut off by `truncate`, which `reexpand` can make available again.
    hidden: usize,
    walked: usize,
    /// How many of the walked bytes the cursor cannot return to: they were extracted from a
    /// destination, and belong to another writer.
    given: usize,
    memory: PhantomData<Segment<'m, D>>,
}

/// The place of a cursor, which [`Cursor::save`] returns and [`Cursor::restore`] takes.
#[derive(Debug)]
pub struct Mark<'m, D: Direction, K = AnyKind<'m, D>> {
    /// Only copied from, never accessed: the cursor may be using its memory.
    at: Cursor<'m, D, K>,
}

/// The constructors that both directions have.
macro_rules! constructors {
    ($direction:ident, $($reference:tt)*) => {
        /// Returns a cursor over a list of foreign ranges.
        pub fn foreign_vec(list: $($reference)* SegmentList<'_, $direction>) -> Self {
            let len_bytes = list.len_bytes();
            Self::new(AnyKind::ForeignVec(ForeignVec::<$direction>::new(list)), len_bytes)
        }

        /// Returns a cursor over parts of pages.
        pub fn page_vec(parts: $($reference)* [PageSegment<'_, $direction>]) -> Self {
            let len_bytes = sum(parts.iter().map(PageSegment::len));
            Self::new(AnyKind::PageVec(PageVec::<$direction>::new(parts)), len_bytes)
        }

        /// Returns a cursor over `len_bytes` bytes of sparse pages, from `start` bytes after the
        /// start of page 0. A missing page ends a walk earlier.
        ///
        /// # Errors
        /// [`Error::TooLong`] if the range reaches past 2^64, or is longer than an object can be.
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

        /// Returns a cursor over the first `len_bytes` bytes of a queue, even if they are not yet
        /// appended: a walk then ends earlier, and a later one continues there.
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
    /// Returns a cursor over one foreign range.
    pub fn foreign_buf(view: VolatileSlice<'m>) -> Self {
        let len_bytes = view.len();
        Self::new(AnyKind::ForeignBuf(ForeignBuf::<Source>::new(view)), len_bytes)
    }

    /// Returns a cursor over private slices.
    pub fn own_vec(slices: &'m [IoSlice<'m>]) -> Self {
        let len_bytes = sum(slices.iter().map(|slice| slice.len()));
        Self::new(AnyKind::OwnVec(OwnVec::<Source>::new(slices)), len_bytes)
    }

    constructors!(Source, &'m);
}

impl<'m> Cursor<'m, Dest> {
    /// Returns a cursor over one foreign range.
    pub fn foreign_buf(view: VolatileSliceMut<'m>) -> Self {
        let len_bytes = view.len();
        Self::new(AnyKind::ForeignBuf(ForeignBuf::<Dest>::new(view)), len_bytes)
    }

    /// Returns a cursor over private slices.
    pub fn own_vec(slices: &'m mut [IoSliceMut<'_>]) -> Self {
        let len_bytes = sum(slices.iter().map(|slice| slice.len()));
        Self::new(AnyKind::OwnVec(OwnVec::<Dest>::new(slices)), len_bytes)
    }

    /// Returns a cursor that accepts `len_bytes` bytes and discards them.
    pub fn discard(len_bytes: usize) -> Self {
        Self::new(AnyKind::Discard(Discard), len_bytes)
    }

    constructors!(Dest, &'m mut);
}

fn sum(lens_bytes: impl Iterator<Item = usize>) -> usize {
    // A slice may be listed more than once, so the sum may exceed the size of an object.
    lens_bytes.fold(0, usize::saturating_add).min(isize::MAX as usize)
}

impl<'m, D: Direction, K: Kind<D>> Cursor<'m, D, K> {
    /// Returns a cursor of a known kind, over at most `len_bytes` bytes.
    pub fn from_kind(kind: K, len_bytes: usize) -> Self {
        Self::new(kind, len_bytes.min(isize::MAX as usize))
    }

    fn new(kind: K, left: usize) -> Self {
        Self { kind, left, hidden: 0, walked: 0, given: 0, memory: PhantomData }
    }

    /// Returns the name of the kind of memory.
    pub fn kind_name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns `true` if the memory can fault.
    pub fn can_fault(&self) -> bool {
        self.kind.can_fault()
    }

    /// Returns the number of bytes walked since the cursor was made.
    pub const fn walked(&self) -> usize {
        self.walked
    }

    /// Reduces the remaining bytes to `len_bytes`, if there are more; [`reexpand`](Self::reexpand)
    /// can undo this.
    pub fn truncate(&mut self, len_bytes: usize) {
        let cut = self.left.saturating_sub(len_bytes);
        self.left -= cut;
        self.hidden += cut;
    }

    /// Sets the remaining bytes to `len_bytes`, after [`truncate`](Self::truncate) reduced them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the cursor never had so many; then nothing changes.
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

    /// Moves back (or forward) to the place of the cursor when `mark` was made, in constant time.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a mark of other memory, for a mark of a cursor with another end (such
    /// as a part that [`take`](Self::take) lent), and for a place before bytes that were
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

    /// Walks as [`iterate`](SegmentSource::iterate) does, for kinds whose memory cannot fault, with
    /// a step that cannot end early.
    ///
    /// # Errors
    /// [`Error::CanFault`] for other kinds; then the cursor does not move.
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

    /// Returns the number of bytes walked at the very end, with those that `truncate` cut off. It
    /// does not depend on the place of the cursor.
    fn end(&self) -> usize {
        self.walked + self.left + self.hidden
    }

    /// Returns a second cursor at the same place.
    ///
    /// # Safety
    /// Only one of the two cursors may be used at a time to access memory of a [`Dest`].
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

/// Several cursors may read the same memory.
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
    /// Walks as [`iterate`](SegmentSource::iterate) does, with slices: this kind's memory is
    /// private.
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
    /// Walks as [`iterate`](SegmentSource::iterate) does, with slices: this kind's memory is
    /// private.
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

    /// Counts how often it moves.
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
        assert_eq!(cursor.reexpand(300), Ok(()), "the mark has the hidden bytes, too");
    }
}
