//! Bytes that a caller lends to a mapping.
#![expect(unsafe_code, reason = "refers to borrowed bytes by their address")]

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

// SAFETY: the bytes stay borrowed, mutably if the device writes, until the mapping has ended.
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

/// Ends the process, because the borrow ends in any case, and the device may still write to the bytes.
#[cold]
pub(crate) fn abort(error: &Error) -> ! {
    eprintln!("longshore: borrowed memory could not be unmapped, so the process ends: {error}");
    process::abort();
}

/// Returns true if `B` is the type of borrowed bytes.
#[inline(always)]
pub(crate) fn is_borrowed<B: 'static>() -> bool {
    TypeId::of::<B>() == TypeId::of::<Borrowed>()
}

/// Ends the process if memory of type `B`, which could not be unmapped, is borrowed. Other memory is
/// leaked instead.
#[cold]
pub(crate) fn abort_if_borrowed<B: 'static>(error: &Error) {
    if is_borrowed::<B>() {
        abort(error);
    }
}
