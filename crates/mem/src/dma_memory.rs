//! The one thing buffers, mappings and domains agree on.
#![expect(unsafe_code, reason = "what an implementation promises cannot be checked")]

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::addr::FileOffset;

/// Memory that may be handed to a device.
///
/// `heap`'s buffers implement it, `domain` maps whatever does; neither crate names the other.
///
/// # Safety
/// For as long as the value lives, wherever it is moved to:
/// * [`host`](Self::host) returns the same address and length, and every page of it stays mapped
///   in this process, readable and, unless the type documents otherwise, writable;
/// * no reference to that memory exists except those that the value itself lends out under its own
///   borrow, so that whoever owns the value may let a device write to it;
/// * [`file`](Self::file), where it returns a descriptor, names the file whose pages at that offset
///   are the very pages of `host`.
pub unsafe trait DmaMemory: Send {
    /// Where the memory is mapped in this process.
    fn host(&self) -> NonNull<[u8]>;

    /// The file whose pages these are, and where in it they begin, if there is one: a device of
    /// another process can be given the descriptor.
    ///
    /// # Safety
    /// Who writes through the descriptor, or is given it, writes to the memory: the same holds for
    /// them as for a device. No reference to the memory that the value lent out may live meanwhile.
    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)>;
}

/// Memory that several owners may hand to devices at once: one model mapped into many domains.
///
/// # Safety
/// A shared borrow of the value lends out no reference to the memory, unless nobody at all, device
/// or process, can write to it.
pub unsafe trait SharedDmaMemory: DmaMemory + Sync {}

// SAFETY: the memory stays where it is until the last reference is gone, and what any of them
// lends out is no reference that a device's write would contradict, by `SharedDmaMemory`.
unsafe impl<T: SharedDmaMemory> DmaMemory for Arc<T> {
    fn host(&self) -> NonNull<[u8]> {
        (**self).host()
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        // SAFETY: the caller makes the same promise.
        unsafe { (**self).file() }
    }
}
