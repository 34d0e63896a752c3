//! Mappings of borrowed bytes, which end with a scope.
#![expect(
    unsafe_code,
    reason = "lends borrowed bytes to a mapping that ends before the borrow does"
)]

use std::os::fd::BorrowedFd;
use std::process;
use std::ptr::NonNull;

use longshore_mem::{DmaMemory, FileOffset, Iova};

use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::{Error, Failed};
use crate::local::{Door, Local};
use crate::mapping::Mapping;

/// Borrowed bytes.
struct Borrowed {
    bytes: NonNull<[u8]>,
    /// `true` if the borrow is exclusive.
    is_writable: bool,
}

// SAFETY: `map` keeps the bytes borrowed for as long as the value lives.
unsafe impl Send for Borrowed {}

// SAFETY: the bytes stay borrowed, mutably where the device writes, until the mapping has ended.
unsafe impl DmaMemory for Borrowed {
    fn host(&self) -> NonNull<[u8]> {
        self.bytes
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

/// A mapping of bytes that somebody else owns.
pub(crate) trait Lent: Sized {
    fn unmap(self) -> Result<(), Failed<Self>>;
}

impl<D: Door> Lent for Mapping<'_, Borrowed, D> {
    fn unmap(self) -> Result<(), Failed<Self>> {
        Mapping::unmap(self).map(drop)
    }
}

/// Unmaps at the end of the scope, also when it ends by a panic.
pub(crate) struct Ending<M: Lent>(pub(crate) Option<M>);

impl<M: Lent> Ending<M> {
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let Some(mapping) = self.0.take() else { return Ok(()) };
        match mapping.unmap() {
            Ok(()) => Ok(()),
            Err(Failed { error, .. }) if matches!(*error, Error::Copy { .. }) => Err(*error),
            Err(Failed { error, .. }) => {
                // The bytes go back to their owner whatever happens, and the device may still write
                // to them.
                eprintln!("longshore: borrowed memory cannot be taken from a device: {error}");
                process::abort();
            }
        }
    }
}

impl<M: Lent> Drop for Ending<M> {
    fn drop(&mut self) {
        // A scope that panics has nobody to tell.
        let _ = self.end();
    }
}

/// # Safety
/// No reference to the bytes may be used before this returns, other than to read bytes of a mapping
/// towards the device.
#[track_caller]
unsafe fn map<D: Door, R>(
    door: &D,
    bytes: NonNull<[u8]>,
    direction: Direction,
    work: impl FnOnce(Iova) -> R,
) -> Result<R, Error> {
    let is_writable = direction != Direction::ToDevice;
    let mapping = Mapping::new(door, Borrowed { bytes, is_writable }, direction, false);
    let mapping = mapping.map_err(|failed| *failed.error)?;
    let iova = mapping.iova();
    let mut ending = Ending(Some(mapping));
    let result = work(iova);
    ending.end()?;
    Ok(result)
}

macro_rules! scoped {
    ($door:ty) => {
        impl $door {
            /// Lets the device read `bytes` while `work` runs, which is told where it finds them.
            ///
            /// Memory that cannot be taken back from the device ends the process: it belongs to
            /// somebody else.
            ///
            /// # Errors
            /// [`Error`]. Where the bytes could not be mapped, `work` was not called.
            #[track_caller]
            pub fn lend<R>(&self, bytes: &[u8], work: impl FnOnce(Iova) -> R) -> Result<R, Error> {
                // SAFETY: the device only reads, and `bytes` is borrowed until then.
                unsafe { map(self, NonNull::from(bytes), Direction::ToDevice, work) }
            }

            /// Lets the device write to `bytes` while `work` runs, as [`lend`](Self::lend); and read
            /// them, where `direction` says so.
            ///
            /// # Errors
            /// [`Error`]. Where the bytes could not be mapped, `work` was not called.
            #[track_caller]
            pub fn lend_mut<R>(
                &self,
                bytes: &mut [u8],
                direction: Direction,
                work: impl FnOnce(Iova) -> R,
            ) -> Result<R, Error> {
                // SAFETY: `bytes` is borrowed until then, and nobody else can reach them.
                unsafe { map(self, NonNull::from(bytes), direction, work) }
            }
        }
    };
}

scoped!(Domain);
scoped!(Local<'_>);
