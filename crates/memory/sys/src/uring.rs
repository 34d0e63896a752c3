//! The part of io_uring that is needed to read files.
//!
//! The kernel writes into memory after the call that requested it has returned, so the memory must
//! outlive the request. [`with_ring`] guarantees this: a [`Ring`] exists only inside it, takes memory
//! and files that outlive it, and is drained before `with_ring` returns, on every path. Reads that are
//! still in flight are cancelled first.
#![expect(unsafe_code, reason = "passes pointers to the kernel that outlive the call")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use longshore_mem::{FileOffset, VolatileSliceMut};

/// A completed read.
#[derive(Debug)]
pub struct Completion {
    /// The number that was given with the read.
    pub token: u64,
    /// The number of bytes that were read, or the error.
    pub result: io::Result<usize>,
}

/// A submission and completion queue for reads into memory that lives for `'mem`.
///
/// The kernel takes submissions only from the thread that made the ring, so a ring stays on its thread.
/// It cannot even be swapped with a ring of another thread:
///
/// ```compile_fail
/// use longshore_sys::uring::with_ring;
///
/// std::thread::scope(|scope| {
///     with_ring(4, |ours| {
///         scope.spawn(|| with_ring(4, |theirs| std::mem::swap(ours, theirs)));
///     })
/// });
/// ```
pub struct Ring<'mem> {
    ring: IoUring,
    in_flight: u32,
    entries: u32,
    /// Makes `'mem` invariant: a ring for long-lived memory must not be used as one for shorter-lived
    /// memory.
    memory: PhantomData<fn(&'mem ()) -> &'mem ()>,
    /// Makes the ring neither `Send` nor `Sync`.
    of_this_thread: PhantomData<*const ()>,
}

/// Runs `body` with a ring of `entries` entries. Before it returns or unwinds, it cancels every read
/// that `body` left in flight, and waits until these reads have ended.
///
/// A cancelled read of a pipe, a socket or an eventfd ends at once. A read that the kernel cannot cancel
/// ends when the file system or the disk answers, like `read(2)`, because its memory is borrowed and
/// must not be returned before. Before Linux 6.0 no read is cancelled.
///
/// # Errors
/// `ENOSYS` or `EPERM` if the kernel refuses a ring (by a seccomp filter or `kernel.io_uring_disabled`),
/// `ENOMEM` beyond the locked-memory limit (before Linux 5.12), `Unsupported` if the kernel's io_uring
/// cannot read or cannot wait with a timeout (before Linux 5.11).
pub fn with_ring<'mem, R>(entries: u32, body: impl FnOnce(&mut Ring<'mem>) -> R) -> io::Result<R> {
    let mut ring = Ring::new(entries)?;
    Ok(body(&mut ring))
}

/// Checks that this process can use a ring of `entries` entries for reads.
///
/// # Errors
/// The same as for [`with_ring`].
pub fn probe(entries: u32) -> io::Result<()> {
    with_ring(entries, |_| ())
}

impl<'mem> Ring<'mem> {
    fn new(entries: u32) -> io::Result<Self> {
        // One thread submits and collects, so completions need not interrupt it (Linux 6.1).
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
        let of_this_thread = PhantomData;
        Ok(Self { ring, in_flight: 0, entries, memory: PhantomData, of_this_thread })
    }

    /// Returns the number of reads in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the number of reads that can still be pushed.
    pub fn room(&self) -> u32 {
        self.entries - self.in_flight
    }

    /// Queues a read of `memory.len()` bytes at `offset`, which starts with the next [`Ring::wait`]. Its
    /// completion has the same `token`.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; `InvalidInput` for more than 2^32 - 1 bytes.
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
        let len = u32::try_from(memory.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), memory.as_mut_ptr(), len)
            .offset(offset.raw())
            .build()
            .user_data(token);
        // SAFETY: file and memory live for 'mem, which does not end before `with_ring` returns, and
        // `with_ring` drains the ring before that (`Drop` below). The caller has moved its view here, so
        // it does not access the memory meanwhile.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::WouldBlock)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Starts the queued reads, waits until one has completed or `timeout` has passed, and then calls
    /// `done` with every completed read.
    ///
    /// # Errors
    /// Those of `io_uring_enter(2)`. A signal ends the wait like the timeout.
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
        // The first round submits queued reads, so that the kernel can cancel them.
        let mut patience = Duration::ZERO;
        while self.in_flight > 0 {
            if self.wait(patience, drop).is_err() {
                // The kernel may still write to the memory, and there is no way to wait for it.
                // Returning could cause memory corruption.
                std::process::abort();
            }
            // The loop waits for the reads in any case, so errors are ignored: `ENOENT` if none is left,
            // `ETIME` if one is still running, `EINVAL` before Linux 6.0. A read that was not submitted
            // for lack of memory is cancelled in the next round.
            let _ = self
                .ring
                .submitter()
                .register_sync_cancel(Some(Timespec::new()), CancelBuilder::any());
            patience = Duration::from_secs(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
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

    /// Returns `true` if the kernel can cancel the reads of a ring (Linux 6.0).
    fn kernel_cancels() -> bool {
        let ring = IoUring::new(1).unwrap();
        let nothing = ring.submitter().register_sync_cancel(None, CancelBuilder::any());
        !matches!(nothing, Err(error) if error.raw_os_error() == Some(libc::EINVAL))
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
    fn a_full_ring_refuses_more_reads_and_is_drained() {
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
        // `with_ring` has completed the read, or cancelled it before it began.
        assert!(first == [9; 100] || first == [0; 100], "{first:?}");
    }

    #[test]
    fn reads_that_never_end_are_cancelled() {
        if skip_without_uring() {
            return;
        }
        let (reader, mut writer) = io::pipe().unwrap();
        let (mut submitted, mut queued) = ([0u8; 4], [0u8; 4]);
        let (sender, ended) = std::sync::mpsc::channel();
        // Ends the test if the ring waits for the pipe.
        let watchdog = std::thread::spawn({
            let mut writer = writer.try_clone().unwrap();
            move || {
                let ended_first = ended.recv_timeout(Duration::from_secs(20)).is_ok();
                if !ended_first {
                    writer.write_all(b"wake up!").unwrap();
                }
                ended_first
            }
        });
        with_ring(2, |ring| {
            ring.push_read(reader.as_fd(), view(&mut submitted), FileOffset::new(0), 7).unwrap();
            ring.wait(Duration::ZERO, drop).unwrap();
            assert_eq!(ring.in_flight(), 1);
            ring.push_read(reader.as_fd(), view(&mut queued), FileOffset::new(0), 7).unwrap();
        })
        .unwrap();
        // This fails if the watchdog has ended already.
        let _ = sender.send(());
        if kernel_cancels() {
            assert!(watchdog.join().unwrap(), "the ring waited for the pipe");
        }
        // No read is left that could consume these bytes.
        writer.write_all(b"abcd").unwrap();
        let mut read = [0u8; 4];
        (&reader).read_exact(&mut read).unwrap();
        assert_eq!((&read, submitted, queued), (b"abcd", [0; 4], [0; 4]));
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
