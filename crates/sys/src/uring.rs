//! io_uring, as far as reading files needs it.
//!
//! The kernel writes into memory after the call that asked for it has returned, so the memory must
//! outlive the request. [`with_ring`] ties both together: a [`Ring`] exists only inside it, takes
//! memory and files that outlive it, and is drained before `with_ring` returns, on every path.
#![expect(unsafe_code, reason = "hands pointers to the kernel that outlive the call")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use longshore_mem::{FileOffset, VolatileSliceMut};

/// One finished read.
#[derive(Debug)]
pub struct Completion {
    /// The number the read was pushed with.
    pub token: u64,
    /// How many bytes were read, or why none were.
    pub result: io::Result<usize>,
}

/// A submission and completion queue for reads into memory that lives for `'mem`.
pub struct Ring<'mem> {
    ring: IoUring,
    in_flight: u32,
    entries: u32,
    /// Invariant: a ring for long-lived memory must not be taken for one of shorter-lived memory.
    memory: PhantomData<fn(&'mem ()) -> &'mem ()>,
}

/// Runs `body` with a ring of `entries` places, and waits for every read that `body` left behind
/// before it returns, also where `body` panics.
///
/// # Errors
/// Where the kernel refuses a ring: `ENOSYS` or `EPERM` (a seccomp filter or
/// `kernel.io_uring_disabled`), `ENOMEM` (the locked-memory limit, before Linux 5.12),
/// `Unsupported` where it cannot read or cannot wait with a timeout (before Linux 5.11).
pub fn with_ring<'mem, R>(entries: u32, body: impl FnOnce(&mut Ring<'mem>) -> R) -> io::Result<R> {
    let mut ring = Ring::new(entries)?;
    Ok(body(&mut ring))
}

/// Whether this process may use a ring of `entries` places for reads, and if not, why.
///
/// # Errors
/// As [`with_ring`].
pub fn probe(entries: u32) -> io::Result<()> {
    with_ring(entries, |_| ())
}

impl<'mem> Ring<'mem> {
    fn new(entries: u32) -> io::Result<Self> {
        // One thread submits and reaps, so completions need not interrupt it (Linux 6.1).
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => IoUring::new(entries),
                _ => Err(error),
            })?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, in_flight: 0, entries, memory: PhantomData })
    }

    /// How many reads are in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How many more reads can be pushed now.
    pub fn room(&self) -> u32 {
        self.entries - self.in_flight
    }

    /// Queues a read of `memory.len_bytes()` bytes at `offset`; it starts with the next
    /// [`Ring::wait`]. `token` comes back with its completion.
    ///
    /// # Errors
    /// `WouldBlock` where there is no room; `InvalidInput` for more than 2^32 - 1 bytes.
    pub fn push_read(
        &mut self,
        file: BorrowedFd<'mem>,
        mut memory: VolatileSliceMut<'mem>,
        offset: FileOffset,
        token: u64,
    ) -> io::Result<()> {
        if self.room() == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = u32::try_from(memory.len_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), memory.as_mut_ptr(), len)
            .offset(offset.raw())
            .build()
            .user_data(token);
        // SAFETY: file and memory live for 'mem, which does not end before `with_ring` returns,
        // and it drains the ring before that (`Drop` below). The caller's view was given away, so
        // nobody writes there meanwhile through it.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::WouldBlock)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Starts what was queued and waits until a read has finished or `timeout` has passed, then
    /// hands every finished read to `done`.
    ///
    /// # Errors
    /// Those of `io_uring_enter(2)`. A signal's interruption counts as time passed.
    pub fn wait(&mut self, timeout: Duration, mut done: impl FnMut(Completion)) -> io::Result<()> {
        let until = Timespec::from(timeout);
        let args = SubmitArgs::new().timespec(&until);
        let want = usize::from(self.in_flight > 0);
        match self.ring.submitter().submit_with_args(want, &args) {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => return Err(error),
            },
        }
        while let Some(entry) = self.ring.completion().next() {
            self.in_flight -= 1;
            let result = usize::try_from(entry.result())
                .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            done(Completion { token: entry.user_data(), result });
        }
        Ok(())
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait(Duration::from_secs(1), drop).is_err() {
                // The kernel may still write to the memory, and nothing is left to wait with.
                // Going on would be memory corruption.
                std::process::abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::ptr::NonNull;

    use super::*;

    fn skip_without_uring() -> bool {
        match probe(2) {
            Ok(()) => false,
            Err(error) => {
                eprintln!("SKIPPED: no io_uring here: {error}");
                true
            }
        }
    }

    fn view(bytes: &mut [u8]) -> VolatileSliceMut<'_> {
        let len_bytes = bytes.len();
        // SAFETY: the view borrows `bytes`.
        unsafe { VolatileSliceMut::from_raw_parts(NonNull::from(bytes).cast(), len_bytes) }
    }

    #[test]
    fn reads_complete_with_their_tokens() {
        if skip_without_uring() {
            return;
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abcdefgh").unwrap();
        let (mut low, mut high) = ([0u8; 4], [0u8; 8]);
        let mut done = Vec::new();
        with_ring(2, |ring| {
            ring.push_read(file.as_fd(), view(&mut low), FileOffset::new(0), 10).unwrap();
            ring.push_read(file.as_fd(), view(&mut high), FileOffset::new(4), 11).unwrap();
            assert_eq!(ring.room(), 0);
            while ring.in_flight() > 0 {
                ring.wait(Duration::from_secs(1), |completion| {
                    done.push((completion.token, completion.result.unwrap()));
                })
                .unwrap();
            }
        })
        .unwrap();
        done.sort_unstable();
        assert_eq!(done, [(10, 4), (11, 4)]);
        assert_eq!((&low, &high[..4]), (b"abcd", &b"efgh"[..]));
    }

    #[test]
    fn a_full_ring_takes_no_more_and_is_drained() {
        if skip_without_uring() {
            return;
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[9; 100]).unwrap();
        let (mut first, mut second) = ([0u8; 100], [0u8; 1]);
        with_ring(1, |ring| {
            ring.push_read(file.as_fd(), view(&mut first), FileOffset::new(0), 0).unwrap();
            let full = ring.push_read(file.as_fd(), view(&mut second), FileOffset::new(0), 1);
            assert_eq!(full.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        })
        .unwrap();
        // `with_ring` submitted and reaped what was pushed.
        assert_eq!(first, [9; 100]);
    }

    #[test]
    fn a_failed_read_reports_its_error() {
        if skip_without_uring() {
            return;
        }
        let dir = std::fs::File::open("/").unwrap();
        let mut bytes = [0u8; 1];
        let mut result = None;
        with_ring(1, |ring| {
            ring.push_read(dir.as_fd(), view(&mut bytes), FileOffset::new(0), 0).unwrap();
            while ring.in_flight() > 0 {
                ring.wait(Duration::from_secs(1), |c| result = Some(c.result)).unwrap();
            }
        })
        .unwrap();
        let error = result.unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
    }
}
