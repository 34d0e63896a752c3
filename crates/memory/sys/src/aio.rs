//! `io_submit(2)`, for the one thing that nothing else does: the kernel itself signals an eventfd,
//! which it does without waiting, whatever mode the eventfd is in.
//!
//! Each submission is a read of no bytes from an empty file, which is complete when the call returns.
//! Its completion signals an eventfd (`IOCB_FLAG_RESFD`).
#![expect(unsafe_code, reason = "system calls that no crate wraps")]

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::memfd::{self, Backing};

/// How many submissions may be under way or not yet collected.
const EVENTS: usize = 128;
/// How often a submission is tried while others take all the room.
const TRIES: usize = 64;

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key_and_rw_flags: [u32; 2],
    opcode: u16,
    request_priority: i16,
    file: u32,
    buffer: u64,
    len_bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent([u64; 4]);

/// The context of this process. It is never destroyed.
struct Context {
    id: u64,
    empty: OwnedFd,
}

/// Adds one to the counter of `event`, an eventfd, without waiting. A counter at its end stays there.
///
/// # Errors
/// `ENOSYS`, `EPERM` or `EAGAIN` where this process has no AIO: the kernel lacks it, a filter of system
/// calls forbids it, or all contexts of the machine are taken (`fs.aio-max-nr`). `EINVAL` in a child
/// that was forked after the first call, and for a descriptor that is no eventfd.
pub(crate) fn signal(event: impl AsFd) -> io::Result<()> {
    static CONTEXT: OnceLock<Result<Context, i32>> = OnceLock::new();
    let context = CONTEXT.get_or_init(|| Context::new().map_err(|e| e.raw_os_error().unwrap_or(0)));
    let context = context.as_ref().map_err(|errno| io::Error::from_raw_os_error(*errno))?;
    for _ in 0..TRIES {
        match context.submit(event.as_fd().as_raw_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => context.collect()?,
            submitted => return submitted,
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

impl Context {
    fn new() -> io::Result<Self> {
        let empty = memfd::create("longshore-empty", Backing::Shmem)?;
        let mut id = 0_u64;
        // SAFETY: the kernel writes the context's number, of this size, and nothing else.
        done(unsafe { libc::syscall(libc::SYS_io_setup, EVENTS as c_long, &raw mut id) })?;
        Ok(Self { id, empty })
    }

    fn submit(&self, event: i32) -> io::Result<()> {
        let iocb = Iocb {
            opcode: IOCB_CMD_PREAD,
            file: self.empty.as_raw_fd().cast_unsigned(),
            flags: IOCB_FLAG_RESFD,
            event: event.cast_unsigned(),
            ..Iocb::default()
        };
        let list = [&raw const iocb];
        // SAFETY: a list of one request, which the kernel copies; it reads no bytes into no buffer.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1 as c_long, list.as_ptr()) };
        done(submitted).map(drop)
    }

    /// Forgets what is complete, which makes room.
    fn collect(&self) -> io::Result<()> {
        let mut events = [IoEvent::default(); EVENTS];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most as many events as there is room for.
        let collected = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                0 as c_long,
                EVENTS as c_long,
                events.as_mut_ptr(),
                &raw const at_once,
            )
        };
        done(collected).map(drop)
    }
}

fn done(returned: c_long) -> io::Result<c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
