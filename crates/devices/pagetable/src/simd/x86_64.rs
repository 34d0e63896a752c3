//! Runs of entries on x86-64.
//!
//! No implementation tears a naturally aligned eight-byte lane, because it never crosses a cache
//! line. Whole vectors may tear between lanes; nothing here depends on that.

use core::arch::asm;

use longshore_mem::isa::{Avx2, Avx512};

use super::kernels::{Kernels, LINE_ENTRIES};
use super::scalar::Plain;
use crate::sync::AtomicU64;

/// Prefetches the first line of `entries`.
#[inline]
pub(super) fn prefetch(entries: &[AtomicU64]) {
    // SAFETY: a hint, which is valid for any address.
    unsafe {
        asm!("prefetcht0 [{at}]", at = in(reg) entries.as_ptr(), options(nostack, preserves_flags));
    }
}

/// Returns the entries before the first whole line, those in whole lines, and those after them.
#[inline]
fn by_lines(entries: &[AtomicU64]) -> (&[AtomicU64], &[AtomicU64], &[AtomicU64]) {
    let into_line = (entries.as_ptr().addr() >> 3) % LINE_ENTRIES;
    let before = ((LINE_ENTRIES - into_line) % LINE_ENTRIES).min(entries.len());
    let (head, rest) = entries.split_at(before);
    let (lines, tail) = rest.split_at(rest.len() / LINE_ENTRIES * LINE_ENTRIES);
    (head, lines, tail)
}

/// Implements `fill` and `find` for an instruction set with its loops over whole lines.
macro_rules! kernels {
    ($token:ty, $fill_lines:ident, $find_equal:ident, $find_different:ident) => {
        impl Kernels for $token {
            #[inline]
            fn fill(self, entries: &[AtomicU64], first: u64, step: u64) {
                let (head, lines, tail) = by_lines(entries);
                Plain.fill(head, first, step);
                let first = first.wrapping_add(step.wrapping_mul(head.len() as u64));
                if !lines.is_empty() {
                    // SAFETY: the token proves that the machine has the instructions.
                    unsafe { $fill_lines(lines, first, step) };
                }
                let first = first.wrapping_add(step.wrapping_mul(lines.len() as u64));
                Plain.fill(tail, first, step);
            }

            #[inline]
            fn find<const EQUAL: bool>(
                self,
                entries: &[AtomicU64],
                mask: u64,
                value: u64,
            ) -> Option<usize> {
                let (head, lines, tail) = by_lines(entries);
                if let Some(at) = Plain.find::<EQUAL>(head, mask, value) {
                    return Some(at);
                }
                let mut passed = 0;
                if !lines.is_empty() {
                    passed = if EQUAL {
                        // SAFETY: the token proves that the machine has the instructions.
                        unsafe { $find_equal(lines, mask, value) }
                    } else {
                        // SAFETY: as above.
                        unsafe { $find_different(lines, mask, value) }
                    };
                    // The entry may have changed since the vector was loaded; the search then
                    // continues.
                    let rest = &lines[passed..];
                    if let Some(at) = Plain.find::<EQUAL>(rest, mask, value) {
                        return Some(head.len() + passed + at);
                    }
                    passed = lines.len();
                }
                let at = Plain.find::<EQUAL>(tail, mask, value)?;
                Some(head.len() + passed + at)
            }
        }
    };
}

kernels!(Avx512, fill_avx512, find_equal_avx512, find_different_avx512);
kernels!(Avx2, fill_avx2, find_equal_avx2, find_different_avx2);

/// # Safety
/// The machine must have the instructions of [`Avx512`]; `lines` must be one or more whole lines.
#[target_feature(enable = "avx512f")]
unsafe fn fill_avx512(lines: &[AtomicU64], first: u64, step: u64) {
    let lanes: [u64; 8] =
        core::array::from_fn(|lane| first.wrapping_add(step.wrapping_mul(lane as u64)));
    // SAFETY: stores to borrowed atomics; registers as declared.
    unsafe {
        asm!(
            "vmovdqu64 {value}, [{lanes}]",
            "vpbroadcastq {step}, {step_of_line}",
            "2:",
            "vmovdqa64 [{at}], {value}",
            "vpaddq {value}, {value}, {step}",
            "add {at}, 64",
            "dec {left}",
            "jnz 2b",
            lanes = in(reg) lanes.as_ptr(),
            step_of_line = in(reg) step.wrapping_mul(8),
            at = inout(reg) lines.as_ptr() => _,
            left = inout(reg) lines.len() / LINE_ENTRIES => _,
            value = out(zmm_reg) _,
            step = out(zmm_reg) _,
            options(nostack),
        );
    }
}

/// Defines a function that returns the number of entries before the first line in which `$compare`
/// is true for some entry.
macro_rules! find_avx512 {
    ($name:ident, $compare:literal) => {
        /// # Safety
        /// As [`fill_avx512`].
        #[target_feature(enable = "avx512f")]
        unsafe fn $name(lines: &[AtomicU64], mask: u64, value: u64) -> usize {
            let left: usize;
            // SAFETY: loads from borrowed atomics; registers as declared.
            unsafe {
                asm!(
                    "vpbroadcastq {masks}, {mask}",
                    "vpbroadcastq {values}, {value}",
                    "2:",
                    "vpandq {entries}, {masks}, [{at}]",
                    concat!($compare, " {hits}, {entries}, {values}"),
                    "kortestw {hits}, {hits}",
                    "jnz 3f",
                    "add {at}, 64",
                    "dec {left}",
                    "jnz 2b",
                    "3:",
                    mask = in(reg) mask,
                    value = in(reg) value,
                    at = inout(reg) lines.as_ptr() => _,
                    left = inout(reg) lines.len() / LINE_ENTRIES => left,
                    masks = out(zmm_reg) _,
                    values = out(zmm_reg) _,
                    entries = out(zmm_reg) _,
                    hits = out(kreg) _,
                    options(nostack, readonly),
                );
            }
            lines.len() - left * LINE_ENTRIES
        }
    };
}

find_avx512!(find_equal_avx512, "vpcmpeqq");
find_avx512!(find_different_avx512, "vpcmpneqq");

/// # Safety
/// As [`fill_avx512`], with the instructions of [`Avx2`].
#[target_feature(enable = "avx2")]
unsafe fn fill_avx2(lines: &[AtomicU64], first: u64, step: u64) {
    let lanes: [u64; 8] =
        core::array::from_fn(|lane| first.wrapping_add(step.wrapping_mul(lane as u64)));
    let step_of_line = step.wrapping_mul(8);
    // SAFETY: stores to borrowed atomics; registers as declared.
    unsafe {
        asm!(
            "vmovdqu {low}, [{lanes}]",
            "vmovdqu {high}, [{lanes} + 32]",
            "vpbroadcastq {step}, [{step_of_line}]",
            "2:",
            "vmovdqa [{at}], {low}",
            "vmovdqa [{at} + 32], {high}",
            "vpaddq {low}, {low}, {step}",
            "vpaddq {high}, {high}, {step}",
            "add {at}, 64",
            "dec {left}",
            "jnz 2b",
            lanes = in(reg) lanes.as_ptr(),
            step_of_line = in(reg) &raw const step_of_line,
            at = inout(reg) lines.as_ptr() => _,
            left = inout(reg) lines.len() / LINE_ENTRIES => _,
            low = out(ymm_reg) _,
            high = out(ymm_reg) _,
            step = out(ymm_reg) _,
            options(nostack),
        );
    }
}

/// As `find_avx512`. `$both` combines the comparisons of a line's two halves, and `$hit` jumps if
/// the result is not `$expected`.
macro_rules! find_avx2 {
    ($name:ident, $both:literal, $expected:literal, $hit:literal) => {
        /// # Safety
        /// As [`fill_avx2`].
        #[target_feature(enable = "avx2")]
        unsafe fn $name(lines: &[AtomicU64], mask: u64, value: u64) -> usize {
            let left: usize;
            // SAFETY: loads from borrowed atomics; registers as declared.
            unsafe {
                asm!(
                    "vpbroadcastq {masks}, [{mask}]",
                    "vpbroadcastq {values}, [{value}]",
                    "2:",
                    "vpand {low}, {masks}, [{at}]",
                    "vpand {high}, {masks}, [{at} + 32]",
                    "vpcmpeqq {low}, {low}, {values}",
                    "vpcmpeqq {high}, {high}, {values}",
                    concat!($both, " {low}, {low}, {high}"),
                    "vmovmskpd {hits:e}, {low}",
                    concat!("cmp {hits:e}, ", $expected),
                    concat!($hit, " 3f"),
                    "add {at}, 64",
                    "dec {left}",
                    "jnz 2b",
                    "3:",
                    mask = in(reg) &raw const mask,
                    value = in(reg) &raw const value,
                    at = inout(reg) lines.as_ptr() => _,
                    left = inout(reg) lines.len() / LINE_ENTRIES => left,
                    masks = out(ymm_reg) _,
                    values = out(ymm_reg) _,
                    low = out(ymm_reg) _,
                    high = out(ymm_reg) _,
                    hits = out(reg) _,
                    options(nostack, readonly),
                );
            }
            lines.len() - left * LINE_ENTRIES
        }
    };
}

find_avx2!(find_equal_avx2, "vpor", "0", "jne");
find_avx2!(find_different_avx2, "vpand", "15", "jne");
