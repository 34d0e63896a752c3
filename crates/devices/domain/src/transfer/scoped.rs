//! Mappings of borrowed bytes, which end with a scope.
#![expect(
    unsafe_code,
    reason = "lends borrowed bytes to a mapping that ends before the borrow does"
)]

use std::ptr::NonNull;

use longshore_mem::Iova;

use super::borrowed::{Borrowed, abort};
use super::mapping::Mapping;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::{Error, Failed};
use crate::handle::Handle;
use crate::local::Local;
use crate::trace::{Span, span};

/// A mapping of borrowed bytes.
pub(crate) trait Lent: Sized {
    /// Enters the span of unmapping. This happens before the mapping is taken out of its [`Ending`],
    /// because a subscriber may panic.
    fn unmap_span(&self) -> Span;

    /// Unmaps without a span: if a subscriber panics when a span is left, the returned mapping is
    /// leaked.
    fn unmap(self) -> Result<(), Failed<Self>>;
}

impl<D: Handle> Lent for Mapping<'_, Borrowed, D> {
    fn unmap_span(&self) -> Span {
        Mapping::unmap_span(self)
    }

    fn unmap(self) -> Result<(), Failed<Self>> {
        self.unmap_lent()
    }
}

/// A mapping that is unmapped at the end of the scope, also if that ends by a panic.
pub(crate) struct Ending<M: Lent>(pub(crate) Option<M>);

impl<M: Lent> Ending<M> {
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let _span = self.0.as_ref().map(M::unmap_span);
        let Some(mapping) = self.0.take() else { return Ok(()) };
        match mapping.unmap() {
            Ok(()) => Ok(()),
            Err(Failed { error, .. }) if matches!(*error, Error::Copy { .. }) => Err(*error),
            Err(Failed { error, .. }) => abort(&error),
        }
    }
}

impl<M: Lent> Drop for Ending<M> {
    fn drop(&mut self) {
        // A scope that panics cannot return an error.
        let _ = self.end();
    }
}

/// Maps the bytes while `work` runs.
///
/// # Safety
/// No reference to the bytes may be used before this returns, except to read bytes that are mapped
/// [`ToDevice`](Direction::ToDevice).
#[track_caller]
unsafe fn map<D: Handle, R>(
    handle: &D,
    bytes: NonNull<[u8]>,
    direction: Direction,
    work: impl FnOnce(Iova) -> R,
) -> Result<R, Error> {
    let is_writable = direction != Direction::ToDevice;
    let span = span!("map", direction = direction; len_bytes, iova, is_bounced);
    let mapping = Mapping::make(handle, Borrowed { bytes, is_writable }, direction, false);
    let mut ending = Ending(Some(mapping.map_err(|failed| *failed.error)?));
    let iova = ending.0.as_ref().map(|mapping| {
        mapping.tell(&span);
        mapping.iova()
    });
    drop(span);
    let result = work(iova.expect("it was just made"));
    ending.end()?;
    Ok(result)
}

macro_rules! scoped {
    ($handle:ty) => {
        impl $handle {
            /// Lets the device read `bytes` while `work` runs, and passes their IOVA to `work`.
            ///
            /// If the bytes cannot be unmapped, this aborts the process, because their borrow ends. With
            /// [`Soft`](crate::backend::Soft) that happens if `work` leaves a pin or a lease of the
            /// bytes, or a `SpaceMemory` of the space, on this thread, or if a callback of a lease
            /// panics. If this thread holds a pin or a `SpaceMemory` before, the bytes are not mapped.
            ///
            /// # Errors
            /// [`Error`]. If the bytes could not be mapped, `work` was not called.
            #[track_caller]
            pub fn lend<R>(&self, bytes: &[u8], work: impl FnOnce(Iova) -> R) -> Result<R, Error> {
                // SAFETY: the device only reads, and `bytes` is borrowed until `map` returns.
                unsafe { map(self, NonNull::from(bytes), Direction::ToDevice, work) }
            }

            /// Lets the device write to `bytes` while `work` runs, and read them if `direction` includes
            /// that. All else is as in [`lend`](Self::lend).
            ///
            /// # Errors
            /// [`Error`]. If the bytes could not be mapped, `work` was not called.
            #[track_caller]
            pub fn lend_mut<R>(
                &self,
                bytes: &mut [u8],
                direction: Direction,
                work: impl FnOnce(Iova) -> R,
            ) -> Result<R, Error> {
                // SAFETY: `bytes` is borrowed exclusively until `map` returns.
                unsafe { map(self, NonNull::from(bytes), direction, work) }
            }
        }
    };
}

scoped!(Domain);
scoped!(Local<'_>);
