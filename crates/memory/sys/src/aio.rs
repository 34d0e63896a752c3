//! `io_submit(2)`, which is used only to make the kernel itself signal an eventfd. Unlike any other way,
//! this does not wait, whatever the mode of the eventfd.
//!
//! Each submission reads zero bytes from an empty file, and is complete when the call returns. Its
//! completion signals an eventfd (`IOCB_FLAG_RESFD`).
#![expect(unsafe_code, reason = "makes system calls that no crate wraps")]

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::memfd::{self, Backing};

/// The maximum number of submissions that are in progress or not yet collected.
const EVENTS: usize = 128;
/// The number of times that a submission is tried while others take all the room.
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

/// The AIO context of this process. It is never destroyed.
struct Context {
    id: u64,
    empty: OwnedFd,
}

static CONTEXT: OnceLock<Context> = OnceLock::new();

/// Makes the context if it does not exist. After a failure the next call tries again, because any user
/// can take all contexts of the machine for a moment.
///
/// # Errors
/// `ENOSYS` or `EPERM` if the kernel has no AIO or a seccomp filter forbids it; `EAGAIN` if all contexts
/// of the machine are taken (`fs.aio-max-nr`); `ENOMEM` or `EMFILE` if memory or descriptors are
/// exhausted.
pub(crate) fn prepare() -> io::Result<()> {
    context().map(drop)
}

fn context() -> io::Result<&'static Context> {
    static MAKING: Mutex<()> = Mutex::new(());
    if let Some(context) = CONTEXT.get() {
        return Ok(context);
    }
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = CONTEXT.get() {
        return Ok(context);
    }
    let context = Context::new()?;
    Ok(CONTEXT.get_or_init(|| context))
}

/// Adds one to the counter of the eventfd `event` without waiting. A full counter does not change.
///
/// # Errors
/// Those of [`prepare`]. `EINVAL` in a child that was forked after the context was made, and for a
/// descriptor that is not an eventfd.
pub(crate) fn signal(event: impl AsFd) -> io::Result<()> {
    let context = context()?;
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
        // SAFETY: the kernel writes only the context's ID, which has this size.
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
        // SAFETY: the list has one request, which the kernel copies. It reads zero bytes, so it has no
        // buffer.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1 as c_long, list.as_ptr()) };
        done(submitted).map(drop)
    }

    /// Collects completed requests, to make room.
    fn collect(&self) -> io::Result<()> {
        let mut events = [IoEvent::default(); EVENTS];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most as many events as the array has room for.
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
