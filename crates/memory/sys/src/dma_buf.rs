//! Operations on any dma-buf: `DMA_BUF_IOCTL_SYNC` and its size (`linux/dma-buf.h`).
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::ioctl::opcode;

use crate::retry_interrupted;

/// The kind of a CPU access to a dma-buf's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuAccess {
    /// Loads only.
    Read,
    /// Stores only.
    Write,
    /// Loads and stores.
    ReadWrite,
}

/// The start or the end of a CPU access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPhase {
    /// Before the first access. Writes of devices become visible to the CPU.
    Start,
    /// After the last access. Writes of the CPU become visible to devices.
    End,
}

#[repr(C)]
struct Sync {
    flags: u64,
}

const DMA_BUF_IOCTL_SYNC: libc::Ioctl = opcode::write::<Sync>(b'b', 0) as libc::Ioctl;

/// Begins or ends the CPU's access to a dma-buf's memory.
///
/// # Errors
/// `ENOTTY` if the descriptor is not a dma-buf; those of its exporter. `EINTR` and `EAGAIN` are retried,
/// as the interface requires.
pub fn sync(dma_buf: impl AsFd, access: CpuAccess, phase: SyncPhase) -> io::Result<()> {
    let direction = match access {
        CpuAccess::Read => 1,
        CpuAccess::Write => 2,
        CpuAccess::ReadWrite => 3,
    };
    let request = Sync { flags: direction | if phase == SyncPhase::End { 4 } else { 0 } };
    let fd = dma_buf.as_fd().as_raw_fd();
    retry_interrupted(|| {
        loop {
            // SAFETY: DMA_BUF_IOCTL_SYNC reads a `struct dma_buf_sync`, whose layout `Sync` has.
            if unsafe { libc::ioctl(fd, DMA_BUF_IOCTL_SYNC, &raw const request) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
        }
    })
}

/// Returns the size of a dma-buf in bytes.
///
/// # Errors
/// Those of `lseek(2)`.
pub fn size_bytes(dma_buf: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::seek(dma_buf, rustix::fs::SeekFrom::End(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::tempfile().unwrap();
        let error = sync(&file, CpuAccess::Read, SyncPhase::Start).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn the_request_number_is_that_of_the_header() {
        // _IOW('b', 0, struct dma_buf_sync), as printed by a C compiler on both architectures.
        assert_eq!(DMA_BUF_IOCTL_SYNC, 0x4008_6200);
    }
}
