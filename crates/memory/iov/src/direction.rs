//! Which way a cursor's bytes go.

mod sealed {
    pub trait Sealed {}
}

/// [`Source`] or [`Dest`].
pub trait Direction: sealed::Sealed + Copy + core::fmt::Debug + 'static {
    /// Whether the cursor's memory is written.
    const IS_DEST: bool;
}

/// The cursor's memory is read. It cannot be written: there is no way to ask for it.
#[doc(alias = "ITER_SOURCE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source;

/// The cursor's memory is written.
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
