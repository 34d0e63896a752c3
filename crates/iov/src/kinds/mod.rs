//! The kinds of memory that a cursor walks.
//!
//! | kind | memory | others may change it | it can fault |
//! | --- | --- | --- | --- |
//! | [`ForeignBuf`] | one foreign range | yes | yes |
//! | [`ForeignVec`] | a list of foreign ranges | yes | yes |
//! | [`OwnVec`] | a list of own slices | no | no |
//! | [`PageVec`] | a list of parts of pages | yes | no |
//! | [`SparsePages`] | pages by index, from one on; a missing one ends the walk | yes | no |
//! | [`PageQueue`] | batches of pages that may be appended to meanwhile | yes | no |
//! | [`Discard`] | none: bytes are counted | - | no |
//!
//! A kind keeps its place and nothing else; how much may be walked is the
//! [`Cursor`](crate::Cursor)'s affair.

mod discard;
mod foreign_buf;
mod foreign_vec;
mod list;
mod own_vec;
mod page_queue;
mod page_segment;
mod page_vec;
mod sparse_pages;

pub use discard::Discard;
pub use foreign_buf::ForeignBuf;
pub use foreign_vec::ForeignVec;
pub use own_vec::OwnVec;
pub use page_queue::{PageAppender, PageQueue, QueuedPages};
pub use page_segment::PageSegment;
pub use page_vec::PageVec;
pub use sparse_pages::{PageIndex, SparsePages};

use crate::direction::Direction;
use crate::segment::Segment;

/// A place in memory of one kind. For kinds of your own see
/// [`SegmentSource`](crate::SegmentSource).
pub trait Kind<D: Direction>: sealed::Sealed + Sized {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Whether its memory can fault.
    fn can_fault(&self) -> bool;

    /// The segment here, cut to `len_max`, which is not zero. May step over segments of no bytes.
    #[doc(hidden)]
    fn segment(&mut self, len_max: usize) -> Option<Segment<'_, D>>;

    /// Moves on by `len_bytes`, which was checked to be there as far as the kind knows its length.
    /// Returns how far it came.
    #[doc(hidden)]
    fn advance(&mut self, len_bytes: usize) -> usize;

    /// Moves back by `len_bytes`, which was walked before.
    #[doc(hidden)]
    fn retreat(&mut self, len_bytes: usize);

    /// See [`SegmentSource::iterate`](crate::SegmentSource::iterate).
    #[doc(hidden)]
    fn iterate(
        &mut self,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize;

    /// The same place once more, to look ahead from. What it hands out is not accessed through it.
    #[doc(hidden)]
    fn twin(&self) -> Self;

    /// Whether `other` is a place in the same memory, so that either may take the other's place.
    #[doc(hidden)]
    fn is_in_memory_of(&self, other: &Self) -> bool;

    /// Logarithm of the size of the page that the segment here lies in, where the kind knows.
    #[doc(hidden)]
    fn page_log2(&self) -> Option<u32> {
        None
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// Any kind there is.
#[derive(Debug)]
pub enum AnyKind<'m, D> {
    /// One foreign range.
    ForeignBuf(ForeignBuf<'m, D>),
    /// A list of foreign ranges.
    ForeignVec(ForeignVec<'m, D>),
    /// A list of own slices.
    OwnVec(OwnVec<'m, D>),
    /// A list of parts of pages.
    PageVec(PageVec<'m, D>),
    /// Pages by index.
    SparsePages(SparsePages<'m, D>),
    /// Batches of pages.
    QueuedPages(QueuedPages<'m, D>),
    /// No memory.
    Discard(Discard),
}

/// Does the same with the kind inside, whichever it is: the one place where the kinds are told
/// apart, outside of every loop.
macro_rules! each {
    ($self:expr, $kind:ident => $body:expr) => {
        match $self {
            AnyKind::ForeignBuf($kind) => $body,
            AnyKind::ForeignVec($kind) => $body,
            AnyKind::OwnVec($kind) => $body,
            AnyKind::PageVec($kind) => $body,
            AnyKind::SparsePages($kind) => $body,
            AnyKind::QueuedPages($kind) => $body,
            AnyKind::Discard($kind) => $body,
        }
    };
}

impl<D> sealed::Sealed for AnyKind<'_, D> {}

impl<D: Direction> Kind<D> for AnyKind<'_, D> {
    fn name(&self) -> &'static str {
        each!(self, kind => Kind::<D>::name(kind))
    }

    fn can_fault(&self) -> bool {
        each!(self, kind => Kind::<D>::can_fault(kind))
    }

    #[inline]
    fn segment(&mut self, len_max: usize) -> Option<Segment<'_, D>> {
        each!(self, kind => kind.segment(len_max))
    }

    fn advance(&mut self, len_bytes: usize) -> usize {
        each!(self, kind => Kind::<D>::advance(kind, len_bytes))
    }

    fn retreat(&mut self, len_bytes: usize) {
        each!(self, kind => Kind::<D>::retreat(kind, len_bytes));
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        each!(self, kind => kind.iterate(len_bytes, step))
    }

    fn twin(&self) -> Self {
        match self {
            Self::ForeignBuf(kind) => Self::ForeignBuf(kind.twin()),
            Self::ForeignVec(kind) => Self::ForeignVec(kind.twin()),
            Self::OwnVec(kind) => Self::OwnVec(kind.twin()),
            Self::PageVec(kind) => Self::PageVec(kind.twin()),
            Self::SparsePages(kind) => Self::SparsePages(kind.twin()),
            Self::QueuedPages(kind) => Self::QueuedPages(kind.twin()),
            Self::Discard(kind) => Self::Discard(*kind),
        }
    }

    fn is_in_memory_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ForeignBuf(kind), Self::ForeignBuf(other)) => kind.is_in_memory_of(other),
            (Self::ForeignVec(kind), Self::ForeignVec(other)) => kind.is_in_memory_of(other),
            (Self::OwnVec(kind), Self::OwnVec(other)) => kind.is_in_memory_of(other),
            (Self::PageVec(kind), Self::PageVec(other)) => kind.is_in_memory_of(other),
            (Self::SparsePages(kind), Self::SparsePages(other)) => kind.is_in_memory_of(other),
            (Self::QueuedPages(kind), Self::QueuedPages(other)) => kind.is_in_memory_of(other),
            (Self::Discard(_), Self::Discard(_)) => true,
            _ => false,
        }
    }

    fn page_log2(&self) -> Option<u32> {
        each!(self, kind => Kind::<D>::page_log2(kind))
    }
}
