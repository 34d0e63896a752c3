//! Bytes that a caller lends to a mapping.
#![expect(unsafe_code, reason = "names borrowed bytes by their address")]

use std::any::TypeId;
use std::os::fd::BorrowedFd;
use std::process;
use std::ptr::NonNull;

use longshore_mem::{DmaMemory, FileOffset};

use crate::error::Error;

/// Borrowed bytes.
pub(crate) struct Borrowed {
    pub(crate) bytes: NonNull<[u8]>,
    /// `true` if the borrow is exclusive.
    pub(crate) is_writable: bool,
}

// SAFETY: the function that lends the bytes keeps them borrowed for as long as the value lives.
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

/// Ends the process: the bytes go back to their owner whatever happens, and the device may still write
/// to them.
#[cold]
pub(crate) fn abort(error: &Error) -> ! {
    eprintln!("longshore: memory of the caller cannot be taken from a device: {error}");
    process::abort();
}

/// Returns whether memory of type `B` is borrowed bytes.
#[inline(always)]
pub(crate) fn is_borrowed<B: 'static>() -> bool {
    TypeId::of::<B>() == TypeId::of::<Borrowed>()
}

/// Ends the process if memory of type `B`, which cannot be unmapped, is borrowed. Other memory can be
/// leaked.
#[cold]
pub(crate) fn abort_if_borrowed<B: 'static>(error: &Error) {
    if is_borrowed::<B>() {
        abort(error);
    }
}
