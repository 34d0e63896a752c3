//! The next bytes of a cursor, lent to a function.

use std::ops::Deref;

use super::{Cursor, Mark};
use crate::direction::Direction;
use crate::error::Error;
use crate::kinds::{AnyKind, Kind};
use crate::segment::Segment;
use crate::source::SegmentSource;

/// The next bytes of a cursor, which [`Cursor::take`] lends.
///
/// It is a [`SegmentSource`] that ends after these bytes, so every operation accepts it, and it has
/// the queries of a [`Cursor`]. When it is dropped, the cursor continues at its place. (If it is
/// forgotten with `mem::forget`, the cursor keeps only the bytes that were lent.)
///
/// ```
/// use longshore_iov::{Cursor, SegmentSource, Source, copy};
/// use std::io::IoSlice;
///
/// # fn main() -> Result<(), longshore_iov::Error> {
/// let slices = [IoSlice::new(b"header"), IoSlice::new(b"body")];
/// let mut cursor = Cursor::<Source>::own_vec(&slices);
/// let mut bytes = [0; 10];
/// assert_eq!(copy::read(&mut cursor.take(6), &mut bytes)?, 6);
/// assert_eq!(cursor.remaining(), 4);
/// # Ok(())
/// # }
/// ```
///
/// It does not give access to a `&mut Cursor`, which could be replaced by another cursor:
///
/// ```compile_fail,E0596
/// use longshore_iov::{Cursor, Dest};
///
/// let (mut one, mut two) = (Cursor::<Dest>::discard(100), Cursor::<Dest>::discard(7));
/// std::mem::swap(&mut *one.take(5), &mut two);
/// ```
#[derive(Debug)]
pub struct Taken<'c, 'm, D: Direction, K: Kind<D> = AnyKind<'m, D>> {
    cursor: &'c mut Cursor<'m, D, K>,
    /// The end and the hidden bytes of the cursor, and the place where the lent bytes begin.
    end: usize,
    hidden: usize,
    start: usize,
}

impl<'m, D: Direction, K: Kind<D>> Cursor<'m, D, K> {
    /// Lends the next `len_bytes` bytes, or as many as remain. When the value returned is dropped,
    /// this cursor continues at its place.
    pub fn take(&mut self, len_bytes: usize) -> Taken<'_, 'm, D, K> {
        Taken::new(self, len_bytes)
    }
}

impl<'c, 'm, D: Direction, K: Kind<D>> Taken<'c, 'm, D, K> {
    pub(super) fn new(cursor: &'c mut Cursor<'m, D, K>, len_bytes: usize) -> Self {
        let (end, hidden, start) = (cursor.end(), cursor.hidden, cursor.walked);
        cursor.left = cursor.left.min(len_bytes);
        // `reexpand` must not reveal the bytes that the cursor hides.
        cursor.hidden = 0;
        Self { cursor, end, hidden, start }
    }

    /// Moves back (or forward) to the place of the cursor when `mark` was made.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] as for [`Cursor::restore`], and for a place before the lent bytes.
    /// Nothing changes then.
    pub fn restore(&mut self, mark: &Mark<'m, D, K>) -> Result<(), Error> {
        if mark.at.walked < self.start {
            let possible_bytes = self.cursor.walked - self.start;
            return Err(Error::OutOfRange { asked_bytes: mark.at.walked, possible_bytes });
        }
        self.cursor.restore(mark)
    }
}

impl<D: Direction, K: Kind<D>> SegmentSource<D> for Taken<'_, '_, D, K> {
    fn remaining(&self) -> usize {
        self.cursor.left
    }

    #[inline]
    fn next_segment(&mut self, len_max: usize) -> Option<Segment<'_, D>> {
        self.cursor.next_segment(len_max)
    }

    fn advance(&mut self, len_bytes: usize) {
        self.cursor.advance(len_bytes);
    }

    fn revert(&mut self, len_bytes: usize) -> Result<(), Error> {
        let possible_bytes = self.cursor.walked - self.start;
        if len_bytes > possible_bytes {
            return Err(Error::OutOfRange { asked_bytes: len_bytes, possible_bytes });
        }
        self.cursor.revert(len_bytes)
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        self.cursor.iterate(len_bytes, step)
    }
}

impl<D: Direction, K: Kind<D>> Drop for Taken<'_, '_, D, K> {
    fn drop(&mut self) {
        self.cursor.hidden = self.hidden;
        self.cursor.left = self.end - self.hidden - self.cursor.walked;
    }
}

impl<'m, D: Direction, K: Kind<D>> Deref for Taken<'_, 'm, D, K> {
    type Target = Cursor<'m, D, K>;

    fn deref(&self) -> &Self::Target {
        self.cursor
    }
}
