//! Short accesses to mapped memory, which are inlined.
//!
//! Like the copies of [`longshore_mem::copy`], they are blocks of assembly that survive a fault while a
//! guard lives, and copy each byte of mapped memory to private memory before it is used. They report
//! whether they succeeded. If not, the caller repeats the access with the long copy, which stops at the
//! exact byte.
#![expect(unsafe_code, reason = "reads and writes mapped memory through pointers")]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "one arm of a `match` is taken")]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(
    any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))),
    path = "portable.rs"
)]
mod kernels;

use longshore_mem::copy::CopyFault;
use longshore_mem::dispatch_isa;
use longshore_mem::isa::IsaToken;

pub(crate) use kernels::{compare_exchange, load, store};

/// The maximum length of inlined copies without a loop.
const INLINE_MAX: usize = 64;

/// The maximum length of copies in an inlined loop, which saves a call.
const MIDDLE_MAX: usize = 1024;

/// The maximum length of copies in the inlined loop of [`kernels::copy_masked`] if the target is aligned
/// to a cache line.
const LINES_MAX: usize = 4096;
const LINE: usize = 64;

/// Copies `len` bytes. Returns `false` if not all of the memory is present.
///
/// The tail is copied as a whole vector that overlaps the one before, so a byte may be copied twice.
/// That is harmless: private memory is not read meanwhile, and readers of mapped memory see the same
/// byte twice.
///
/// `KNOWN` means that `len` is a constant of the caller. Then short copies use plain loads and stores,
/// which permit store forwarding; otherwise they use instructions that need no branch.
///
/// # Safety
/// The same as for [`longshore_mem::copy::copy`].
#[inline(always)]
pub(crate) unsafe fn copy<const KNOWN: bool>(
    token: IsaToken,
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> bool {
    // From 1 KiB on, stores that cross cache lines cost more than the call.
    let most = if to.addr().is_multiple_of(LINE) { LINES_MAX } else { MIDDLE_MAX };
    if !KNOWN && len <= most {
        // SAFETY: the caller's promise.
        let done = unsafe { kernels::copy_masked(token, from, to, len) };
        if let Some(done) = done {
            return done;
        }
    }
    // SAFETY: the caller's promise; the parts lie within `len` bytes.
    unsafe {
        match len {
            0 => true,
            1 => kernels::copy_1(from, to),
            2 => copy_word::<2>(from, to),
            3 => kernels::copy_2(from, to, len - 2),
            4 => copy_word::<4>(from, to),
            5..8 => kernels::copy_4(from, to, len - 4),
            8 => kernels::copy_8(from, to),
            9..16 => kernels::copy_8_8(from, to, len - 8),
            16..=32 => kernels::copy_16_16(from, to, len - 16),
            33..=INLINE_MAX => kernels::copy_32_32(from, to, len - 32),
            _ if len <= MIDDLE_MAX => match kernels::copy_middle(token, from, to, len) {
                Some(done) => done,
                None => copy_long(token, from, to, len),
            },
            _ => copy_long(token, from, to, len),
        }
    }
}

/// Copies a word of `N` bytes with one load and one store, each atomic if it is aligned.
///
/// # Safety
/// The same as for [`copy`].
#[inline(always)]
unsafe fn copy_word<const N: usize>(from: *const u8, to: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    match unsafe { load::<N>(from) } {
        // SAFETY: the caller's promise.
        Some(word) => unsafe { store::<N>(to, word) },
        None => false,
    }
}

/// Copies like [`copy`], with a call, for any length.
///
/// # Safety
/// The same as for [`copy`].
#[inline]
unsafe fn copy_long(token: IsaToken, from: *const u8, to: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    dispatch_isa!(token, isa => unsafe { longshore_mem::copy::copy(isa, from, to, len) }).is_ok()
}

/// Copies like [`copy`], and stops at the exact byte that is missing.
///
/// # Errors
/// The same as for [`longshore_mem::copy::copy`].
///
/// # Safety
/// The same as for [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_exact(
    token: IsaToken,
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    if len <= INLINE_MAX && unsafe { copy::<true>(token, from, to, len) } {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    dispatch_isa!(token, isa => unsafe { longshore_mem::copy::copy(isa, from, to, len) })
}

/// Returns the `N` bytes at `from` as a word.
///
/// # Safety
/// The bytes must be private memory and initialized.
#[inline(always)]
pub(crate) unsafe fn get<const N: usize>(from: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match N {
            1 => u64::from(from.read()),
            2 => u64::from(from.cast::<u16>().read_unaligned()),
            4 => u64::from(from.cast::<u32>().read_unaligned()),
            8 => from.cast::<u64>().read_unaligned(),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    }
}

/// Writes a word to the `N` bytes at `to`.
///
/// # Safety
/// The bytes must be private memory.
#[inline(always)]
pub(crate) unsafe fn put<const N: usize>(to: *mut u8, word: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match N {
            1 => to.write(word as u8),
            2 => to.cast::<u16>().write_unaligned(word as u16),
            4 => to.cast::<u32>().write_unaligned(word as u32),
            8 => to.cast::<u64>().write_unaligned(word),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_write_exactly_that_many_bytes() {
        let from: Vec<u8> = (0..1200u32).map(|at| (at.wrapping_mul(37) >> 2) as u8 | 1).collect();
        // Miri is slow.
        let (step, skews) = if cfg!(miri) { (9, 1) } else { (1, 3) };
        for token in IsaToken::all() {
            for len in (0..=1030).step_by(step).filter(|len| *len <= 200 || len % 61 < 2) {
                for skew in 0..skews {
                    for copy in [copy::<false>, copy::<true>] {
                        let mut to = [0u8; 1100];
                        let (source, target) = (from[skew..].as_ptr(), to[skew..].as_mut_ptr());
                        // SAFETY: both are longer.
                        assert!(unsafe { copy(token, source, target, len) });
                        assert_eq!(to[skew..skew + len], from[skew..skew + len]);
                        assert!(to[..skew].iter().chain(&to[skew + len..]).all(|byte| *byte == 0));
                    }
                }
            }
        }
    }

    #[test]
    fn words_are_loaded_stored_and_exchanged_in_their_size() {
        let mut memory = [0x1111_2222_3333_4444u64, 0];
        let at = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: all within the array, aligned.
        unsafe {
            assert_eq!(load::<8>(at), Some(0x1111_2222_3333_4444));
            assert_eq!(load::<4>(at), Some(0x3333_4444));
            assert_eq!(load::<2>(at), Some(0x4444));
            assert_eq!(load::<1>(at), Some(0x44));
            assert!(store::<2>(at, 0xabcd));
            assert_eq!(compare_exchange::<4>(at, 0, 9), Some(Err(0x3333_abcd)));
            assert_eq!(compare_exchange::<4>(at, 0x3333_abcd, 9), Some(Ok(0x3333_abcd)));
            assert_eq!(compare_exchange::<1>(at, 9, 0x77), Some(Ok(9)));
            assert_eq!(compare_exchange::<2>(at, 0x77, 0x1234), Some(Ok(0x77)));
            assert_eq!(
                compare_exchange::<8>(at, 0x1111_2222_0000_1234, u64::MAX),
                Some(Ok(0x1111_2222_0000_1234))
            );
        }
        assert_eq!(memory, [u64::MAX, 0]);
    }

    /// A copy preserves the caller's vectors, also in a program built for AVX, which keeps them in wide
    /// registers.
    #[test]
    fn a_copy_preserves_the_vectors_of_the_caller() {
        let (from, mut to, token) = ([7u8; 256], [0u8; 256], IsaToken::active());
        let step: [[u64; 4]; 6] = std::hint::black_box([[1, 2, 3, 4]; 6]);
        let mut sums = [[0u64; 4]; 6];
        for _ in 0..10 {
            // SAFETY: both are longer.
            let done = unsafe { kernels::copy_middle(token, from.as_ptr(), to.as_mut_ptr(), 200) };
            if done == Some(false) {
                break;
            }
            for (sum, step) in sums.iter_mut().zip(&step) {
                for (sum, step) in sum.iter_mut().zip(step) {
                    *sum += step;
                }
            }
        }
        assert_eq!(sums, [[10, 20, 30, 40]; 6]);
    }
}
