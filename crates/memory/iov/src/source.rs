//! What a cursor is to those who use one, and to those who add a kind of their own.

use crate::direction::Direction;
use crate::error::Error;
use crate::segment::Segment;

/// Something that hands out segments of memory, one after another.
///
/// Every operation of this crate takes one. [`Cursor`](crate::Cursor) is one for the kinds that
/// come with the crate; a kind of a user's own joins in by implementing the four required methods:
///
/// ```
/// use longshore_iov::{Error, Segment, SegmentSource, Source, copy};
/// use longshore_mem::VolatileSlice;
///
/// /// The same bytes over and over.
/// struct Repeated<'m> {
///     bytes: VolatileSlice<'m>,
///     walked: usize,
///     len: usize,
/// }
///
/// impl SegmentSource<Source> for Repeated<'_> {
///     fn remaining(&self) -> usize {
///         self.len - self.walked
///     }
///
///     fn next_segment(&mut self, len_max: usize) -> Option<Segment<'_, Source>> {
///         let at = self.walked % self.bytes.len();
///         let len = (self.bytes.len() - at).min(self.remaining()).min(len_max);
///         let part = self.bytes.subslice(at, len).expect("the part ends where the bytes do");
///         (len > 0).then(|| part.into())
///     }
///
///     fn advance(&mut self, len: usize) {
///         self.walked += len.min(self.remaining());
///     }
///
///     fn revert(&mut self, len: usize) -> Result<(), Error> {
///         let possible_bytes = self.walked;
///         self.walked = possible_bytes
///             .checked_sub(len)
///             .ok_or(Error::OutOfRange { asked_bytes: len, possible_bytes })?;
///         Ok(())
///     }
/// }
///
/// let memory = *b"abc";
/// let start = std::ptr::NonNull::from(&memory).cast();
/// // SAFETY: the three bytes live as long as the view, and nobody writes to them.
/// let bytes = unsafe { VolatileSlice::from_raw_parts(start, 3) };
/// let mut repeated = Repeated { bytes, walked: 0, len: 8 };
/// let mut out = [0; 8];
/// assert_eq!(copy::read(&mut repeated, &mut out).unwrap(), 8);
/// assert_eq!(&out, b"abcabcab");
/// ```
pub trait SegmentSource<D: Direction> {
    /// How many bytes there are still to walk, at most: a hole in sparse memory may end a walk
    /// before.
    fn remaining(&self) -> usize;

    /// The next segment, cut to `len_max` bytes, without moving. `None` where there is no memory:
    /// at the end, at a hole, or where the bytes go nowhere.
    fn next_segment(&mut self, len_max: usize) -> Option<Segment<'_, D>>;

    /// Moves on by `len_bytes`, or by [`remaining`](Self::remaining) if that is less.
    fn advance(&mut self, len_bytes: usize);

    /// Moves back by `len_bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where so much was not walked; nothing moves then.
    fn revert(&mut self, len_bytes: usize) -> Result<(), Error>;

    /// Walks up to `len_bytes` bytes: calls `step` with each segment and the number of bytes walked
    /// before it. `step` returns how many of the segment's bytes it left undone: none, and the walk
    /// goes on; some, and it ends there, with the cursor at the first byte that was not done. (To
    /// leave more undone than was given is to leave all of it.)
    ///
    /// Returns the bytes walked.
    #[inline(always)]
    fn iterate(
        &mut self,
        len_bytes: usize,
        mut step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize
    where
        Self: Sized,
    {
        iterate_by_segment(self, len_bytes, &mut step)
    }

    /// [`iterate`](Self::iterate) by a call through a pointer for each segment, compiled once: for
    /// steps that are rarely used, or chosen at run time.
    fn iterate_dyn(
        &mut self,
        len_bytes: usize,
        step: &mut dyn FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        iterate_by_segment(self, len_bytes, step)
    }
}

#[inline(always)]
fn iterate_by_segment<D: Direction>(
    cursor: &mut (impl SegmentSource<D> + ?Sized),
    len_bytes: usize,
    step: &mut (impl FnMut(Segment<'_, D>, usize) -> usize + ?Sized),
) -> usize {
    let mut done = 0;
    while done < len_bytes {
        let Some(segment) = cursor.next_segment(len_bytes - done) else { break };
        // A kind that hands out more than it was asked for, or nothing, is not believed.
        let part = segment.len().min(len_bytes - done);
        if part == 0 {
            break;
        }
        let stepped = part.saturating_sub(step(segment, done));
        cursor.advance(stepped);
        done += stepped;
        if stepped < part {
            break;
        }
    }
    done
}
