//! Private copies of memory that this process must not write.
//!
//! vm-memory has one type of slice, which safe code can write to. Memory that this process has mapped
//! for reading only, or to which shared references may exist, must not be in such a slice.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;

use longshore_mem::isa::IsaToken;
use vm_memory::GuestMemoryError;

use super::refused;
use crate::fault::Reason;
use crate::words;

/// The maximum number of bytes that are copied before all copies are freed: as many as a queue of 256
/// buffers of 64 KiB. A limit is needed because the driver decides how much is read, and can map one
/// page many times.
pub(super) const COPIED_MAX_BYTES: usize = 16 << 20;

/// The minimum size that is counted for a copy: an allocation, and its entry in the list.
const COST_MIN_BYTES: usize = 64;

/// The copies, which are freed when this is dropped.
pub(super) struct Copies {
    kept: RefCell<Vec<NonNull<[u64]>>>,
    left_bytes: Cell<usize>,
}

/// The error if no copy can be made.
pub(super) enum NoCopy {
    /// Too much was copied already.
    Limit,
    /// The memory is gone.
    BackingLost,
}

impl NoCopy {
    pub(super) fn at(self, address: u64) -> GuestMemoryError {
        match self {
            Self::Limit => GuestMemoryError::IOError(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "more than {COPIED_MAX_BYTES} bytes of read-only memory were read (parts below \
                     {COST_MIN_BYTES} bytes count as {COST_MIN_BYTES})"
                ),
            )),
            Self::BackingLost => refused(address, 0, Reason::BackingLost),
        }
    }
}

impl Copies {
    pub(super) const fn new() -> Self {
        Self { kept: RefCell::new(Vec::new()), left_bytes: Cell::new(COPIED_MAX_BYTES) }
    }

    /// Copies `len` bytes to private memory with the same alignment modulo eight.
    ///
    /// # Safety
    /// A copy may read the bytes, which are memory of this process, or a fault guard is installed for
    /// them.
    pub(super) unsafe fn copy(
        &self,
        token: IsaToken,
        from: *const u8,
        len: usize,
    ) -> Result<*mut u8, NoCopy> {
        const WORD: usize = size_of::<u64>();
        let left = self.left_bytes.get().checked_sub(len.max(COST_MIN_BYTES));
        let left = left.ok_or(NoCopy::Limit)?;
        let skew = from.addr() % WORD;
        let words = vec![0u64; (skew + len).div_ceil(WORD)].into_boxed_slice();
        let copy = NonNull::from(Box::leak(words));
        self.kept.borrow_mut().push(copy);
        self.left_bytes.set(left);
        let to = copy.as_ptr().cast::<u8>().wrapping_add(skew);
        // SAFETY: the caller's promise; the copy has room for the bytes.
        let done = unsafe { words::copy_exact(token, from, to, len) };
        done.map_err(|_| NoCopy::BackingLost)?;
        Ok(to)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for copy in self.kept.get_mut().drain(..) {
            // SAFETY: `copy` leaked the box, and no slice of it outlives `self`.
            drop(unsafe { Box::from_raw(copy.as_ptr()) });
        }
    }
}
