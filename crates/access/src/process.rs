//! Another process's memory as a region.

use std::io;
use std::ops::Range;

use longshore_mem::volatile::{VolatileSlice, VolatileSliceMut};
use longshore_sys::process_memory::Process;

use crate::fault::Reason;
use crate::region::{Partial, RemoteMemory};

/// Memory of another process from an address on, which is read and written by
/// `process_vm_readv(2)` and `process_vm_writev(2)`. Once the process is gone, accesses fault with
/// [`Reason::BackingLost`].
#[derive(Debug)]
pub struct ProcessMemory {
    process: Process,
    address: u64,
}

impl ProcessMemory {
    /// What `process` has at `address`.
    pub const fn new(process: Process, address: u64) -> Self {
        Self { process, address }
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
        let len = from.len_bytes();
        let mut done = 0;
        while done < len {
            let address = self.at(offset, done)?;
            let lost = Partial { done, reason: Reason::BackingLost };
            let rest = from.subslice(done, len - done).map_err(|_| lost)?;
            done += moved(self.process.write(address, rest), done)?;
        }
        Ok(())
    }

    /// The calls end by themselves: they wait for nothing but pages.
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
