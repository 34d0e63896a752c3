//! The directions of a cursor: its memory is read or written.

mod sealed {
    pub trait Sealed {}
}

/// [`Source`] or [`Dest`].
pub trait Direction: sealed::Sealed + Copy + core::fmt::Debug + 'static {
    /// `true` if the cursor's memory is written.
    const IS_DEST: bool;
}

/// The direction of a cursor whose memory is read. No operation can write to it.
#[doc(alias = "ITER_SOURCE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source;

/// The direction of a cursor whose memory is written.
#[doc(alias = "ITER_DEST")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dest;

impl sealed::Sealed for Source {}
impl sealed::Sealed for Dest {}

impl Direction for Source {
    const IS_DEST: bool = false;
}

impl Direction for Dest {
    const IS_DEST: bool = true;
}
