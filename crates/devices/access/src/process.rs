//! Memory of another process as a region.
#![expect(
    unsafe_code,
    reason = "copies from and to views, and writes memory for which the caller has made a promise"
)]

mod calls;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longshore_mem::copy::copy_bytes;
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_sys::closing::User;
use longshore_sys::process_memory::Process;

use self::calls::{Callee, Calls, Target};
use crate::fault::Reason;
use crate::region::{RemoteFault, RemoteMemory};

/// The default timeout of an access to a [`ProcessMemory`] ([`timeout`](ProcessMemory::timeout)).
pub const PROCESS_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The maximum number of bytes of one call on another thread. An abandoned call keeps as much memory.
const PART_BYTES: usize = 64 << 10;
/// The size of the smallest page of any process.
const PAGE_BYTES: u64 = 4096;

/// Memory of another process from an address on, accessed by `process_vm_readv(2)` and
/// `process_vm_writev(2)`. After the process has ended, accesses fail with [`Reason::BackingLost`].
///
/// A write fails with [`Reason::Permission`] unless the memory is [`writable`](Self::writable). To write
/// to memory of this process, map its file, or use [`Region::from_memory`](crate::Region::from_memory).
///
/// # Processes that do not answer
///
/// A process can handle its page faults itself (`userfaultfd(2)`), or map a file whose pages another
/// program provides (FUSE). Then an access waits in the kernel for that process or program, and no
/// signal but SIGKILL ends the wait. So the calls run on threads of this library, and the access waits
/// for these:
///
/// * Unmapping the memory ends the access with [`Reason::Revoked`]. If the call does not return within
///   half a second of that, it is abandoned.
/// * An access that takes longer than the [`timeout`](Self::timeout) fails with [`Reason::TimedOut`],
///   and its call is abandoned.
/// * An abandoned call keeps a thread, 64 KiB of memory and the address space of the process until it
///   returns: when the page is provided, or the program that should provide it closes its descriptors or
///   ends. That program need not be the process itself.
/// * There are at most four calls to a process at a time, abandoned ones included, 64 to all processes
///   of one user, and 256 in all. Other accesses wait for their turn. If one of these limits is reached
///   by abandoned calls alone, the next access fails with [`Reason::Unavailable`] at once. Before Linux
///   6.13 the kernel does not report the user of a process: set it by [`with_uid`](Self::with_uid).
///
/// A write first reads from each page to fault it in. If the other process blocks that and the write is
/// abandoned, nothing is written later. If the process blocks the write itself, for example by write
/// protection, the write may still happen after the memory was unmapped. Dirty logs mark all bytes of an
/// abandoned write.
///
/// An access needs at least two context switches. For a trusted process,
/// [`on_calling_thread`](Self::on_calling_thread) avoids them.
///
/// The threads inherit the credentials and seccomp filters of the thread whose access started them. If
/// threads of your program differ in these, use [`on_calling_thread`](Self::on_calling_thread). The C
/// library's `setuid(3)` and similar functions wait for all threads of a process, also for those in
/// abandoned calls.
#[derive(Debug)]
pub struct ProcessMemory {
    process: Arc<Process>,
    address: u64,
    is_writable: bool,
    /// `None` if calls run on the calling thread.
    threads: Option<Threads>,
}

/// The settings of calls on other threads.
#[derive(Clone, Copy, Debug)]
struct Threads {
    /// A number that is unique to this memory.
    memory: u64,
    /// The user for whom calls are counted.
    user: User,
    timeout: Duration,
}

impl ProcessMemory {
    /// Returns the memory of the process `pid` from `address` on, for reading only.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process, `EINVAL` if `pid` is not a valid process ID.
    pub fn open(pid: u32, address: u64) -> io::Result<Self> {
        Ok(Self::new(Process::open(pid)?, address))
    }

    /// Returns the memory of the process that `pidfd` refers to (for example one from `SO_PEERPIDFD`),
    /// from `address` on, for reading only.
    ///
    /// # Errors
    /// `ESRCH` if the process has ended, `EINVAL` if the descriptor is not a pidfd or is one of a
    /// thread; `Unsupported` if `/proc` belongs to another PID namespace than this process.
    pub fn from_pidfd(pidfd: OwnedFd, address: u64) -> io::Result<Self> {
        Ok(Self::new(Process::from_pidfd(pidfd)?, address))
    }

    fn new(process: Process, address: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let memory = NEXT.fetch_add(1, Ordering::Relaxed);
        let user = process.user().unwrap_or_else(User::own);
        let threads = Some(Threads { memory, user, timeout: PROCESS_TIMEOUT_DEFAULT });
        Self { process: Arc::new(process), address, is_writable: false, threads }
    }

    /// Returns the same memory with another timeout for accesses than [`PROCESS_TIMEOUT_DEFAULT`]. It
    /// has no effect on accesses [on the calling thread](Self::on_calling_thread).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if let Some(threads) = &mut self.threads {
            threads.timeout = timeout;
        }
        self
    }

    /// Returns the same memory, whose accesses are counted for the user `uid` (for example one from
    /// `SO_PEERCRED`). By default they are counted for the real user of the process when this was made,
    /// or for the user of this process if the kernel does not report it. It has no effect on accesses
    /// [on the calling thread](Self::on_calling_thread).
    #[must_use]
    pub fn with_uid(mut self, uid: u32) -> Self {
        if let Some(threads) = &mut self.threads {
            threads.user = User::from_uid(uid);
        }
        self
    }

    /// Returns the same memory, which the calling thread accesses itself, without an extra copy through
    /// another thread: a read of 4 KiB took about 3 µs instead of 30 µs in a virtual machine with two
    /// processors.
    ///
    /// The process must be trusted not to block page faults; a child that runs your own program usually
    /// is. If it does block one, nothing cancels the access, and unmapping waits for it.
    #[must_use]
    pub fn on_calling_thread(mut self) -> Self {
        self.threads = None;
        self
    }

    /// Returns the same memory, for reading and writing.
    ///
    /// ```compile_fail,E0133
    /// # use longshore_access::ProcessMemory;
    /// # fn of(pid: u32) -> std::io::Result<ProcessMemory> {
    /// Ok(ProcessMemory::open(pid, 0x1000)?.writable())
    /// # }
    /// ```
    ///
    /// # Safety
    /// Until the process ends or calls `exec`, Rust code of this process must not have references to any
    /// byte of the memory that a region covers. So the memory must not be this process's own; its
    /// threads and `CLONE_VM` children share it. Nor may it be a shared mapping that this process uses
    /// through references: until it calls `exec`, a forked child has every shared mapping of its parent,
    /// such as that of a buffer (`longshore_heap`).
    ///
    /// If a write is abandoned, this holds for its bytes until the call returns, even after the region
    /// is dropped and the process has ended.
    #[must_use]
    pub const unsafe fn writable(self) -> Self {
        let mut writable = self;
        writable.is_writable = true;
        writable
    }

    /// Accesses `len` bytes from `offset` on by calls of at most `part_max` bytes. `call` gets the
    /// address in the process, the number of bytes done before, and the number to do, and returns how
    /// many it did.
    fn by_calls(
        &self,
        offset: u64,
        len: usize,
        part_max: usize,
        mut call: impl FnMut(u64, usize, usize) -> Result<usize, Reason>,
    ) -> Result<(), RemoteFault> {
        let mut done = 0;
        while done < len {
            let address = self.address.checked_add(offset);
            let address = address.and_then(|start| start.checked_add(done as u64));
            let address = address.ok_or(RemoteFault { done, reason: Reason::Overflow })?;
            match call(address, done, part_max.min(len - done)) {
                Ok(0) => return Err(RemoteFault { done, reason: Reason::BackingLost }),
                Ok(more) => done += more,
                Err(reason) => return Err(RemoteFault { done, reason }),
            }
        }
        Ok(())
    }
}

/// The calls of one access, on other threads.
struct OnThreads<'m> {
    process: &'m Arc<Process>,
    memory: u64,
    user: User,
    range: Range<u64>,
    deadline: Option<Instant>,
    bytes: Vec<u8>,
    is_cancelled: bool,
}

impl<'m> OnThreads<'m> {
    fn new(of: &'m ProcessMemory, threads: Threads, offset: u64, len: usize) -> Self {
        Self {
            process: &of.process,
            memory: threads.memory,
            user: threads.user,
            range: offset..offset.saturating_add(len as u64),
            deadline: Instant::now().checked_add(threads.timeout),
            bytes: vec![0; len.min(PART_BYTES)],
            is_cancelled: false,
        }
    }

    /// Runs one call on a thread, with a buffer of `len` bytes. The call gets a function that returns
    /// `true` while this access waits for it.
    fn run(
        &mut self,
        len: usize,
        call: impl FnOnce(&Process, &mut [u8], &dyn Fn() -> bool) -> Result<usize, Reason>
        + Send
        + 'static,
    ) -> Result<usize, Reason> {
        if self.is_cancelled {
            return Err(Reason::Revoked);
        }
        let (process, mut bytes) = (Arc::clone(self.process), std::mem::take(&mut self.bytes));
        bytes.resize(len, 0);
        let work = move |is_wanted: &dyn Fn() -> bool| {
            let moved = call(&process, &mut bytes, is_wanted);
            (bytes, moved)
        };
        let callee = Callee { process: self.process.identity(), user: self.user };
        let target = Target { callee, memory: self.memory, range: self.range.clone() };
        let ended = Calls::of_this_process().run(target, self.deadline, Box::new(work))?;
        (self.bytes, self.is_cancelled) = (ended.bytes, ended.is_cancelled);
        ended.moved
    }
}

impl RemoteMemory for ProcessMemory {
    fn read(&self, offset: u64, mut into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        let len = into.len();
        let lost = |_| Reason::BackingLost;
        let Some(threads) = self.threads else {
            return self.by_calls(offset, len, usize::MAX, |address, done, part| {
                let part = into.subslice_mut(done, part).map_err(lost)?;
                moved(self.process.read(address, part))
            });
        };
        let mut calls = OnThreads::new(self, threads, offset, len);
        self.by_calls(offset, len, PART_BYTES, |address, done, part| {
            let read = calls.run(part, move |process, bytes, _| {
                moved(process.read(address, VolatileSliceMut::from(bytes)))
            })?;
            let mut part = into.subslice_mut(done, read).map_err(lost)?;
            let bytes = &calls.bytes[..read];
            // SAFETY: the memory of the view may be written, and the bytes are private.
            let copied = unsafe { copy_bytes(bytes.as_ptr(), part.as_mut_ptr(), read) };
            Ok(copied.map_or_else(|stop| stop.done_bytes, |()| read))
        })
    }

    fn write(&self, offset: u64, from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        if !self.is_writable {
            return Err(RemoteFault { done: 0, reason: Reason::Permission });
        }
        let len = from.len();
        let lost = |_| Reason::BackingLost;
        let Some(threads) = self.threads else {
            return self.by_calls(offset, len, usize::MAX, |address, done, part| {
                let part = from.subslice(done, part).map_err(lost)?;
                // SAFETY: the caller of `writable` has promised that no reference to the memory exists.
                moved(unsafe { self.process.write(address, part) })
            });
        };
        let mut calls = OnThreads::new(self, threads, offset, len);
        self.by_calls(offset, len, PART_BYTES, |address, done, part| {
            let view = from.subslice(done, part).map_err(lost)?;
            calls.bytes.resize(part, 0);
            // SAFETY: the memory of the view may be read, and the bytes are private.
            let copied = unsafe { copy_bytes(view.as_ptr(), calls.bytes.as_mut_ptr(), part) };
            let part = copied.map_or_else(|stop| stop.done_bytes, |()| part);
            if part == 0 {
                return Ok(0);
            }
            calls.run(part, move |process, bytes, is_wanted| {
                if !bring_in(process, address, bytes.len() as u64, is_wanted) {
                    return Err(Reason::Revoked);
                }
                let bytes = VolatileSliceMut::from(bytes);
                // SAFETY: the caller of `writable` has promised that no reference to the memory exists.
                moved(unsafe { process.write(address, bytes.as_readable()) })
            })
        })
    }

    fn cancel(&self, range: Range<u64>) {
        if let Some(threads) = self.threads {
            Calls::of_this_process().cancel(threads.memory, &range);
        }
    }
}

/// Reads a byte of each page of a range, so that a write to it need not wait for the pages. Returns
/// `true` if the access still waits for the call.
///
/// It stops at a page that cannot be read. A write would stop there too, unless the page is write-only.
fn bring_in(process: &Process, address: u64, len: u64, is_wanted: &dyn Fn() -> bool) -> bool {
    let last = address.saturating_add(len - 1);
    let next_page = |at: &u64| (at | (PAGE_BYTES - 1)).checked_add(1).filter(|at| *at <= last);
    for at in std::iter::successors(Some(address), next_page) {
        if process.read(at, VolatileSliceMut::from(&mut [0][..])).is_err() || !is_wanted() {
            break;
        }
    }
    is_wanted()
}

/// Converts the outcome of one call.
fn moved(outcome: io::Result<usize>) -> Result<usize, Reason> {
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Reason::Permission,
        _ => Reason::BackingLost,
    })
}
