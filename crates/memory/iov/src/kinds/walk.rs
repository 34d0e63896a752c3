//! The operations of a kind that only this crate can call.
#![expect(unsafe_code, reason = "a second place in writable memory needs a promise")]

use crate::direction::Direction;
use crate::segment::Segment;

/// A value that only this crate can make. A method that takes one cannot be called by a user of the
/// crate, not even through the bound `K: Kind<D>`, which brings the methods of a supertrait into
/// scope whether or not that trait can be named. None of these compiles:
///
/// ```compile_fail,E0603
/// use longshore_iov::kinds::walk::{KEY, Walk};
/// ```
///
/// ```compile_fail,E0061
/// use longshore_iov::{Dest, kinds::Kind};
///
/// fn two_places<K: Kind<Dest>>(place: &K) -> K {
///     unsafe { place.duplicate() }
/// }
/// ```
///
/// ```compile_fail,E0277
/// use longshore_iov::{Dest, kinds::Kind};
///
/// fn two_places<K: Kind<Dest>>(place: &K) -> K {
///     unsafe { place.duplicate(Default::default()) }
/// }
/// ```
///
/// ```compile_fail,E0061
/// use longshore_iov::{Dest, kinds::Kind};
///
/// fn before_the_start<K: Kind<Dest>>(place: &mut K) {
///     place.retreat(64);
/// }
/// ```
///
/// ```compile_fail,E0308
/// use longshore_iov::{Dest, kinds::Kind};
///
/// fn before_the_start<K: Kind<Dest>>(place: &mut K) {
///     place.retreat((), 64);
/// }
/// ```
///
/// ```compile_fail,E0599
/// use longshore_iov::{Dest, kinds::ForeignBuf};
///
/// fn before_the_start(place: &mut ForeignBuf<'_, Dest>) {
///     place.retreat(64);
/// }
/// ```
///
/// ```compile_fail,E0576
/// use longshore_iov::{Dest, kinds::{Kind, OwnVec}};
///
/// fn two_places<'m>(place: &OwnVec<'m, Dest>) -> OwnVec<'m, Dest> {
///     unsafe { <OwnVec<'m, Dest> as Kind<Dest>>::duplicate(place) }
/// }
/// ```
///
/// ```compile_fail,E0277
/// use longshore_iov::{Source, kinds::Kind};
///
/// struct Mine;
///
/// impl Kind<Source> for Mine {
///     fn name(&self) -> &'static str {
///         "Mine"
///     }
///
///     fn can_fault(&self) -> bool {
///         false
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Key(());

/// The only [`Key`].
pub(crate) const KEY: Key = Key(());

/// The supertrait of [`Kind`](super::Kind), which users cannot name and so cannot implement.
pub trait Walk<D: Direction>: Sized {
    /// Returns the segment at this place, cut to `len_max` bytes, which must not be zero. May skip
    /// empty segments.
    fn segment(&mut self, key: Key, len_max: usize) -> Option<Segment<'_, D>>;

    /// Moves forward by `len_bytes`, or to the end if the kind has one. Returns the distance moved.
    fn advance(&mut self, key: Key, len_bytes: usize) -> usize;

    /// Moves back by `len_bytes` or to the start.
    fn retreat(&mut self, key: Key, len_bytes: usize);

    /// See [`SegmentSource::iterate`](crate::SegmentSource::iterate).
    fn iterate(
        &mut self,
        key: Key,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize;

    /// Returns a second copy of this place.
    ///
    /// # Safety
    /// Only one of the places in memory of a [`Dest`](crate::Dest) may be used at a time to access
    /// the memory. Any of them may be asked for addresses and lengths.
    unsafe fn duplicate(&self, key: Key) -> Self;

    /// Returns `true` if `other` is a place in the same memory, so that each can replace the other.
    fn is_in_memory_of(&self, key: Key, other: &Self) -> bool;
}
