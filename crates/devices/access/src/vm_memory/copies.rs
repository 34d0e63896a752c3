//! Copies of memory that cannot be written.
//!
//! vm-memory has one type of slice, which safe code can write to. Memory that this process has mapped
//! for reading only, or to which there may be shared references, must not be behind one.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;

use longshore_mem::isa::IsaToken;
use vm_memory::GuestMemoryError;

use super::refused;
use crate::fault::Reason;
use crate::words;

/// How many bytes are copied at most before all copies are freed: as many as a queue of 256 buffers
/// of 64 KiB. A driver decides how much is read, and may map one page many times.
pub(super) const COPIED_MAX_BYTES: usize = 16 << 20;

/// What a copy takes at least: an allocation, and its place in the list of all.
const COST_MIN_BYTES: usize = 64;

/// Copies that are kept until this is dropped.
pub(super) struct Copies {
    kept: RefCell<Vec<NonNull<[u64]>>>,
    left_bytes: Cell<usize>,
}

/// Why there is no copy.
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

    /// Copies `len` bytes to memory that is as far from a multiple of eight.
    ///
    /// # Safety
    /// The bytes must be memory of this process that a copy may read, or that faults under a guard.
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
        // SAFETY: the caller's promise; the copy has room for them.
        let done = unsafe { words::copy_exact(token, from, to, len) };
        done.map_err(|_| NoCopy::BackingLost)?;
        Ok(to)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for copy in self.kept.get_mut().drain(..) {
            // SAFETY: leaked above, and borrowed no longer than this.
            drop(unsafe { Box::from_raw(copy.as_ptr()) });
        }
    }
}
