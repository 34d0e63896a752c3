//! The interface of a cursor, for its users and for kinds of their own.

use crate::direction::Direction;
use crate::error::Error;
use crate::segment::Segment;

/// Something that returns segments of memory, one after another.
///
/// Every operation of this crate takes one. [`Cursor`](crate::Cursor) is the one for the kinds of
/// this crate. A kind of your own implements the four required methods:
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
/// // SAFETY: the three bytes live as long as the view, and no code writes to them.
/// let bytes = unsafe { VolatileSlice::from_raw_parts(start, 3) };
/// let mut repeated = Repeated { bytes, walked: 0, len: 8 };
/// let mut out = [0; 8];
/// assert_eq!(copy::read(&mut repeated, &mut out).unwrap(), 8);
/// assert_eq!(&out, b"abcabcab");
/// ```
pub trait SegmentSource<D: Direction> {
    /// Returns how many bytes are left to walk. A hole in sparse memory may end a walk earlier.
    fn remaining(&self) -> usize;

    /// Returns the next segment, cut to `len_max` bytes, without moving. Returns `None` if there is
    /// no memory here: at the end, at a hole, or in a [`Discard`](crate::kinds::Discard).
    fn next_segment(&mut self, len_max: usize) -> Option<Segment<'_, D>>;

    /// Moves forward by `len_bytes`, or by [`remaining`](Self::remaining) if that is less.
    fn advance(&mut self, len_bytes: usize);

    /// Moves back by `len_bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if fewer bytes were walked; then the cursor does not move.
    fn revert(&mut self, len_bytes: usize) -> Result<(), Error>;

    /// Walks up to `len_bytes` bytes: calls `step` with each segment and the number of bytes walked
    /// before it, and returns the number of bytes walked.
    ///
    /// `step` returns how many bytes of the segment are left undone. If there are none, the walk
    /// continues. If there are some, the walk ends, and the cursor stands at the first byte that is
    /// not done. (A number above the segment's length means the whole segment.)
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

    /// Walks as [`iterate`](Self::iterate) does, but calls `step` through a pointer and is compiled
    /// only once: for steps that are rarely used or chosen at run time.
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
        // Distrust the kind: it may return more than was requested, or an empty segment.
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
