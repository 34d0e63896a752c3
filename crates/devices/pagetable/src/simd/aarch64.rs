//! Runs of entries on AArch64.
//!
//! `LD1` and `ST1` of eight-byte elements make a single-copy atomic access to each element that is
//! aligned: Arm Architecture Reference Manual (DDI 0487), B2.2.1 "Requirements for single-copy
//! atomicity".

use core::arch::asm;

use longshore_mem::isa::Neon;

use super::kernels::Kernels;
use super::scalar::Plain;
use crate::sync::AtomicU64;

/// Prefetches the first line of `entries`.
#[inline]
pub(super) fn prefetch(entries: &[AtomicU64]) {
    // SAFETY: a hint, which is valid for any address.
    unsafe {
        asm!(
            "prfm pldl1keep, [{at}]",
            at = in(reg) entries.as_ptr(),
            options(nostack, preserves_flags),
        );
    }
}

/// The number of entries in one iteration of the loops.
const STRIDE: usize = 8;

impl Kernels for Neon {
    #[inline]
    fn fill(self, entries: &[AtomicU64], first: u64, step: u64) {
        let (strides, tail) = entries.split_at(entries.len() / STRIDE * STRIDE);
        if !strides.is_empty() {
            // SAFETY: the token proves that the machine has the instructions.
            unsafe { fill(strides, first, step) };
        }
        let first = first.wrapping_add(step.wrapping_mul(strides.len() as u64));
        Plain.fill(tail, first, step);
    }

    #[inline]
    fn find<const EQUAL: bool>(
        self,
        entries: &[AtomicU64],
        mask: u64,
        value: u64,
    ) -> Option<usize> {
        let (strides, _) = entries.split_at(entries.len() / STRIDE * STRIDE);
        let mut passed = 0;
        if !strides.is_empty() {
            passed = if EQUAL {
                // SAFETY: the token proves that the machine has the instructions.
                unsafe { find_equal(strides, mask, value) }
            } else {
                // SAFETY: as above.
                unsafe { find_different(strides, mask, value) }
            };
        }
        Some(passed + Plain.find::<EQUAL>(&entries[passed..], mask, value)?)
    }
}

/// # Safety
/// The machine must have the instructions of [`Neon`]; `strides` must be one or more whole strides.
#[target_feature(enable = "neon")]
unsafe fn fill(strides: &[AtomicU64], first: u64, step: u64) {
    let lanes: [u64; STRIDE] =
        core::array::from_fn(|lane| first.wrapping_add(step.wrapping_mul(lane as u64)));
    // SAFETY: stores to borrowed atomics; registers as declared.
    unsafe {
        asm!(
            "ld1 {{v16.2d, v17.2d, v18.2d, v19.2d}}, [{lanes}]",
            "dup v20.2d, {step}",
            "2:",
            "st1 {{v16.2d, v17.2d, v18.2d, v19.2d}}, [{at}], #64",
            "add v16.2d, v16.2d, v20.2d",
            "add v17.2d, v17.2d, v20.2d",
            "add v18.2d, v18.2d, v20.2d",
            "add v19.2d, v19.2d, v20.2d",
            "subs {left}, {left}, #1",
            "b.ne 2b",
            lanes = in(reg) lanes.as_ptr(),
            step = in(reg) step.wrapping_mul(STRIDE as u64),
            at = inout(reg) strides.as_ptr() => _,
            left = inout(reg) strides.len() / STRIDE => _,
            out("v16") _,
            out("v17") _,
            out("v18") _,
            out("v19") _,
            out("v20") _,
            options(nostack),
        );
    }
}

/// Defines a function that returns the number of entries before the first stride with a hit.
/// `$prepare` combines the comparisons; `$reduce` leaves zero if there is no hit.
macro_rules! find {
    ($name:ident, $prepare:literal, $reduce:literal) => {
        /// # Safety
        /// As [`fill`].
        #[target_feature(enable = "neon")]
        unsafe fn $name(strides: &[AtomicU64], mask: u64, value: u64) -> usize {
            let left: usize;
            // SAFETY: loads from borrowed atomics; registers as declared.
            unsafe {
                asm!(
                    "dup v20.2d, {mask}",
                    "dup v21.2d, {value}",
                    "2:",
                    "ld1 {{v16.2d, v17.2d, v18.2d, v19.2d}}, [{at}], #64",
                    "and v16.16b, v16.16b, v20.16b",
                    "and v17.16b, v17.16b, v20.16b",
                    "and v18.16b, v18.16b, v20.16b",
                    "and v19.16b, v19.16b, v20.16b",
                    "cmeq v16.2d, v16.2d, v21.2d",
                    "cmeq v17.2d, v17.2d, v21.2d",
                    "cmeq v18.2d, v18.2d, v21.2d",
                    "cmeq v19.2d, v19.2d, v21.2d",
                    concat!($prepare, " v16.16b, v16.16b, v17.16b"),
                    concat!($prepare, " v18.16b, v18.16b, v19.16b"),
                    concat!($prepare, " v16.16b, v16.16b, v18.16b"),
                    $reduce,
                    "cbnz {hits:w}, 3f",
                    "subs {left}, {left}, #1",
                    "b.ne 2b",
                    "3:",
                    mask = in(reg) mask,
                    value = in(reg) value,
                    at = inout(reg) strides.as_ptr() => _,
                    left = inout(reg) strides.len() / STRIDE => left,
                    hits = out(reg) _,
                    out("v16") _,
                    out("v17") _,
                    out("v18") _,
                    out("v19") _,
                    out("v20") _,
                    out("v21") _,
                    options(nostack, readonly),
                );
            }
            strides.len() - left * STRIDE
        }
    };
}

find!(find_equal, "orr", "umaxv b16, v16.16b\numov {hits:w}, v16.b[0]");
find!(
    find_different,
    "and",
    "uminv b16, v16.16b\numov {hits:w}, v16.b[0]\neor {hits:w}, {hits:w}, #0xff"
);
