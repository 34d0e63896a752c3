//! Another process's memory as a region.
#![expect(unsafe_code, reason = "writes to memory that a caller of unsafe code answers for")]

use std::io;
use std::ops::Range;

use longshore_mem::volatile::{VolatileSlice, VolatileSliceMut};
use longshore_sys::process_memory::Process;

use crate::fault::Reason;
use crate::region::{Partial, RemoteMemory};

/// Memory of another process from an address on, which is read and written by
/// `process_vm_readv(2)` and `process_vm_writev(2)`. Once the process is gone, accesses fault with
/// [`Reason::BackingLost`].
///
/// A write is refused with [`Reason::Permission`] unless the memory is [`writable`](Self::writable).
/// To write to memory of this process, map the file that it lies in, or lend it
/// ([`Region::of_memory`](crate::Region::of_memory)).
///
/// The process must be trusted to have its pages at hand. If it handles its page faults itself
/// (`userfaultfd(2)`), or its pages are of a file that another program provides (FUSE), an access can
/// wait for it without end, and so does unmapping the region meanwhile.
#[derive(Debug)]
pub struct ProcessMemory {
    process: Process,
    address: u64,
    is_writable: bool,
}

impl ProcessMemory {
    /// Returns the memory of `process` from `address` on, for reading only.
    pub const fn new(process: Process, address: u64) -> Self {
        Self { process, address, is_writable: false }
    }

    /// Returns the same memory, for reading and writing.
    ///
    /// ```compile_fail,E0133
    /// # use longshore_access::{Process, ProcessMemory};
    /// # fn of(process: Process) -> ProcessMemory {
    /// ProcessMemory::new(process, 0x1000).writable()
    /// # }
    /// ```
    ///
    /// # Safety
    /// Until the process has ended or calls `exec`, no byte of its memory from the address on that a
    /// region has may be memory to which Rust code of this process has references. So the memory must
    /// not be this process's own, which its threads and `CLONE_VM` children have, too. Nor may it be
    /// shared with memory that this process uses through references: until it calls `exec`, a forked
    /// child has every shared mapping of its parent, such as that of a buffer (`longshore_heap`).
    #[must_use]
    pub const unsafe fn writable(self) -> Self {
        let mut writable = self;
        writable.is_writable = true;
        writable
    }

    /// The address of what is at `offset`.
    fn at(&self, offset: u64, done: usize) -> Result<u64, Partial> {
        let address = self.address.checked_add(offset).and_then(|at| at.checked_add(done as u64));
        address.ok_or(Partial { done, reason: Reason::Overflow })
    }
}

impl RemoteMemory for ProcessMemory {
    fn read(&self, offset: u64, mut into: VolatileSliceMut<'_>) -> Result<(), Partial> {
        let len = into.len_bytes();
        let mut done = 0;
        while done < len {
            let address = self.at(offset, done)?;
            let lost = Partial { done, reason: Reason::BackingLost };
            let rest = into.subslice_mut(done, len - done).map_err(|_| lost)?;
            done += moved(self.process.read(address, rest), done)?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: VolatileSlice<'_>) -> Result<(), Partial> {
        if !self.is_writable {
            return Err(Partial { done: 0, reason: Reason::Permission });
        }
        let len = from.len_bytes();
        let mut done = 0;
        while done < len {
            let address = self.at(offset, done)?;
            let lost = Partial { done, reason: Reason::BackingLost };
            let rest = from.subslice(done, len - done).map_err(|_| lost)?;
            // SAFETY: the caller of `writable` has promised that nothing refers to the memory.
            let written = unsafe { self.process.write(address, rest) };
            done += moved(written, done)?;
        }
        Ok(())
    }

    /// Does nothing: the kernel does not let go of a call. It ends when its pages are there, which the other
    /// process must be trusted to see to.
    fn cancel(&self, _range: Range<u64>) {}
}

/// The bytes of one call, after `done` others.
fn moved(outcome: io::Result<usize>, done: usize) -> Result<usize, Partial> {
    match outcome {
        Ok(0) => Err(Partial { done, reason: Reason::BackingLost }),
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Partial { done, reason: Reason::Permission })
        }
        Err(_) => Err(Partial { done, reason: Reason::BackingLost }),
    }
}
