//! A kind that is chosen at run time.
#![expect(unsafe_code, reason = "a second place in writable memory needs a promise")]

use super::discard::Discard;
use super::foreign_buf::ForeignBuf;
use super::foreign_vec::ForeignVec;
use super::kind::Kind;
use super::own_vec::OwnVec;
use super::page_queue::QueuedPages;
use super::page_vec::PageVec;
use super::sparse_pages::SparsePages;
use super::walk::{Key, Walk};
use crate::direction::Direction;
use crate::segment::Segment;

/// A kind that is chosen at run time.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyKind<'m, D> {
    /// One foreign range.
    ForeignBuf(ForeignBuf<'m, D>),
    /// A list of foreign ranges.
    ForeignVec(ForeignVec<'m, D>),
    /// A list of private slices.
    OwnVec(OwnVec<'m, D>),
    /// A list of parts of pages.
    PageVec(PageVec<'m, D>),
    /// Pages by index.
    SparsePages(SparsePages<'m, D>),
    /// A queue of parts of pages.
    QueuedPages(QueuedPages<'m, D>),
    /// No memory.
    Discard(Discard),
}

/// Runs `$body` on the kind inside. This is the only `match` on the kind, and it is outside of
/// every loop.
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

impl<D: Direction> Kind<D> for AnyKind<'_, D> {
    fn name(&self) -> &'static str {
        each!(self, kind => Kind::<D>::name(kind))
    }

    fn can_fault(&self) -> bool {
        each!(self, kind => Kind::<D>::can_fault(kind))
    }
}

impl<D: Direction> Walk<D> for AnyKind<'_, D> {
    #[inline]
    fn segment(&mut self, key: Key, len_max: usize) -> Option<Segment<'_, D>> {
        each!(self, kind => kind.segment(key, len_max))
    }

    fn advance(&mut self, key: Key, len_bytes: usize) -> usize {
        each!(self, kind => Walk::<D>::advance(kind, key, len_bytes))
    }

    fn retreat(&mut self, key: Key, len_bytes: usize) {
        each!(self, kind => Walk::<D>::retreat(kind, key, len_bytes));
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        key: Key,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        each!(self, kind => kind.iterate(key, len_bytes, step))
    }

    unsafe fn duplicate(&self, key: Key) -> Self {
        macro_rules! duplicates {
            ($($variant:ident),*) => {
                match self {
                    $(Self::$variant(kind) => {
                        // SAFETY: the caller's promise.
                        Self::$variant(unsafe { Walk::<D>::duplicate(kind, key) })
                    })*
                }
            };
        }
        duplicates!(ForeignBuf, ForeignVec, OwnVec, PageVec, SparsePages, QueuedPages, Discard)
    }

    fn is_in_memory_of(&self, key: Key, other: &Self) -> bool {
        macro_rules! same_kinds {
            ($($variant:ident),*) => {
                match (self, other) {
                    $((Self::$variant(kind), Self::$variant(other)) => {
                        Walk::<D>::is_in_memory_of(kind, key, other)
                    })*
                    _ => false,
                }
            };
        }
        same_kinds!(ForeignBuf, ForeignVec, OwnVec, PageVec, SparsePages, QueuedPages, Discard)
    }
}
