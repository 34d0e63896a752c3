//! The portable implementation, which Miri can run: the copies of `longshore-mem`, and Rust's atomics.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use longshore_mem::copy::copy_bytes;
use longshore_mem::isa::IsaToken;

macro_rules! copies {
    ($($name:ident, $len:literal;)*) => {$(
        /// # Safety
        /// The same as for `super::copy`, for `last` bytes and those after them whose number is in the
        /// name.
        pub(super) unsafe fn $name(from: *const u8, to: *mut u8, last: usize) -> bool {
            // SAFETY: the caller's promise.
            unsafe { copy_bytes(from, to, last + $len) }.is_ok()
        }
    )*};
}

copies! { copy_2, 2; copy_4, 4; copy_8_8, 8; copy_16_16, 16; copy_32_32, 32; }

/// # Safety
/// The same as for `super::copy`, for one byte.
pub(super) unsafe fn copy_1(from: *const u8, to: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy_bytes(from, to, 1) }.is_ok()
}

/// # Safety
/// The same as for `super::copy`, for eight bytes.
pub(super) unsafe fn copy_8(from: *const u8, to: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy_bytes(from, to, 8) }.is_ok()
}

/// Returns `None`: there is no special loop for these lengths.
///
/// # Safety
/// The same as for `super::copy`.
#[inline(always)]
pub(super) unsafe fn copy_middle(
    _token: IsaToken,
    _from: *const u8,
    _to: *mut u8,
    _len: usize,
) -> Option<bool> {
    None
}

/// Returns `None`: there are no masked instructions.
///
/// # Safety
/// The same as for `super::copy`.
#[inline(always)]
pub(super) unsafe fn copy_masked(
    _token: IsaToken,
    _from: *const u8,
    _to: *mut u8,
    _len: usize,
) -> Option<bool> {
    None
}

/// Loads a word of `N` bytes. Returns `None` if the memory is missing.
///
/// # Safety
/// The same as for `super::copy`.
pub(crate) unsafe fn load<const N: usize>(from: *const u8) -> Option<u64> {
    let mut bytes = [0; 8];
    let to = if cfg!(target_endian = "big") { 8 - N } else { 0 };
    // SAFETY: the caller's promise, and `N` is at most 8.
    unsafe { copy_bytes(from, bytes[to..].as_mut_ptr(), N) }.ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// Stores a word of `N` bytes. Returns `false` if the memory is missing.
///
/// # Safety
/// The same as for `super::copy`.
pub(crate) unsafe fn store<const N: usize>(to: *mut u8, value: u64) -> bool {
    let bytes = value.to_ne_bytes();
    let from = if cfg!(target_endian = "big") { 8 - N } else { 0 };
    // SAFETY: the caller's promise, and `N` is at most 8.
    unsafe { copy_bytes(bytes[from..].as_ptr(), to, N) }.is_ok()
}

macro_rules! exchange {
    ($atomic:ty, $word:ty, $at:ident, $old:ident, $new:ident) => {{
        let word = <$atomic>::from_ptr($at.cast());
        let (old, new) = ($old as $word, $new as $word);
        word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .map(u64::from)
            .map_err(u64::from)
    }};
}

/// Writes `new` to an aligned word of `N` bytes if the word is `old`, as a full barrier. Returns the
/// previous word: as `Ok` if it was `old`, and as `Err` otherwise.
///
/// # Safety
/// The same as for `super::copy`, in both directions.
pub(crate) unsafe fn compare_exchange<const N: usize>(
    at: *mut u8,
    old: u64,
    new: u64,
) -> Option<Result<u64, u64>> {
    // SAFETY: the caller's promise; the word is aligned.
    Some(unsafe {
        match N {
            1 => exchange!(AtomicU8, u8, at, old, new),
            2 => exchange!(AtomicU16, u16, at, old, new),
            4 => exchange!(AtomicU32, u32, at, old, new),
            8 => exchange!(AtomicU64, u64, at, old, new),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    })
}
