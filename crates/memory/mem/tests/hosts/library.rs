//! A library for programs of other languages, as the test `hosts` loads it into Go and Python: the
//! guard and the copy, behind C's calling convention.
#![expect(unsafe_code, reason = "called from C, and copies what the caller points to")]

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use longshore_mem::copy::copy_bytes;
use longshore_mem::fault::{FaultCause, FaultGuard};

static GUARD: Mutex<Option<FaultGuard>> = Mutex::new(None);

/// Survives faults from now on. Returns zero, or an `errno`.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn longshore_guard() -> c_int {
    match FaultGuard::install() {
        Ok(guard) => {
            *GUARD.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
            0
        }
        Err(error) => error.raw_os_error().unwrap_or(libc::ENOTSUP),
    }
}

/// Survives no faults any more.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn longshore_unguard() {
    *GUARD.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Copies `len_bytes` bytes. Returns how many it could, and why no more in `cause`: 0 for all of
/// them, 1 for memory that is not mapped, 2 for memory with nothing behind it, 3 for another fault.
///
/// # Safety
/// As [`copy_bytes`]; `cause` must be valid for writing.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_copy(
    from: *const u8,
    to: *mut u8,
    len_bytes: usize,
    cause: *mut c_int,
) -> usize {
    // SAFETY: the caller's promise.
    let (done_bytes, why) = match unsafe { copy_bytes(from, to, len_bytes) } {
        Ok(()) => (len_bytes, 0),
        Err(stop) => match stop.fault.cause {
            FaultCause::NotMapped => (stop.done_bytes, 1),
            FaultCause::NotBacked => (stop.done_bytes, 2),
            _ => (stop.done_bytes, 3),
        },
    };
    // SAFETY: the caller's promise.
    unsafe { cause.write(why) };
    done_bytes
}
