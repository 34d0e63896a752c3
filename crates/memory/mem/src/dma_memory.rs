//! The interface between buffers, domains and regions.
#![expect(unsafe_code, reason = "the compiler cannot check an implementation")]

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::addr::FileOffset;

/// Memory that may be handed to a device.
///
/// The buffers of `heap` implement it, and `domain` and `access` map every type that does; none of
/// these crates depends on another for that.
///
/// # Safety
/// For as long as the value lives, and if it is moved:
/// * [`host`](Self::host) returns the same address and length, and every page of it stays mapped
///   in this process and readable;
/// * [`is_writable`](Self::is_writable) returns the same answer. If the answer is `true`, every page
///   of [`host`](Self::host) is mapped writable. If it is `false`, callers do not write to the
///   memory, let no device write to it, and the value may lend out shared references to it;
/// * if the memory is writable, no reference to it exists except those that the value itself lends
///   out under its own borrow, so that the owner of the value may let a device write to it;
/// * if [`file`](Self::file) returns a descriptor, the pages of that file at that offset are the
///   pages of `host`.
pub unsafe trait DmaMemory: Send {
    /// Returns the address range of the memory in this process.
    fn host(&self) -> NonNull<[u8]>;

    /// Returns `true` if this process and devices may write to the memory.
    ///
    /// It is `false` for memory that is mapped read-only, such as a buffer whose content is sealed:
    /// a write to it kills the process with SIGSEGV. Code that writes to [`host`](Self::host), or
    /// lets a device write to it, must call this first. There is no default, because `true` for
    /// read-only memory is undefined behavior.
    fn is_writable(&self) -> bool;

    /// Returns the file that holds these pages and the offset of the first one, or `None` if there is
    /// no such file. With the descriptor, a device of another process can map the memory.
    ///
    /// # Safety
    /// A caller that writes through the descriptor, or passes it on, writes to the memory. So the
    /// rules for a device apply: while that is possible, no reference to the memory that the value
    /// lent out may live.
    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)>;
}

/// Memory that several owners may hand to devices at once: one model mapped into many domains.
///
/// # Safety
/// A shared borrow of the value lends out no reference to the memory, unless the memory is
/// [not writable](DmaMemory::is_writable) and no device or process can write to it.
pub unsafe trait SharedDmaMemory: DmaMemory + Sync {}

// SAFETY: the memory keeps its address until the last reference is dropped, and by
// `SharedDmaMemory` no owner lends out a reference to memory that a device may write to.
unsafe impl<T: SharedDmaMemory> DmaMemory for Arc<T> {
    fn host(&self) -> NonNull<[u8]> {
        (**self).host()
    }

    fn is_writable(&self) -> bool {
        (**self).is_writable()
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        // SAFETY: the caller makes the same promise.
        unsafe { (**self).file() }
    }
}
