//! The guard and the copy behind the C ABI, in a library that the test `hosts` loads into Go and
//! Python programs.
#![expect(unsafe_code, reason = "called from C, and copies through the caller's pointers")]

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use longshore_mem::copy::copy_bytes;
use longshore_mem::fault::{FaultCause, FaultGuard};

static GUARD: Mutex<Option<FaultGuard>> = Mutex::new(None);

/// Installs a guard. Returns zero, or an `errno`.
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

/// Drops the guard.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn longshore_unguard() {
    *GUARD.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Copies `len_bytes` bytes. Returns the number of bytes copied, and sets `cause`: 0 if all were
/// copied, 1 for memory that is not mapped, 2 for memory that is not backed, 3 for another fault.
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
