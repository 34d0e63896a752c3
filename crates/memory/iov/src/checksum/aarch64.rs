//! Checksums for AArch64.
//!
//! As for x86-64, an iteration first loads and stores, and only then adds and advances. UADALP adds
//! pairs of words to 32-bit sums, which cannot overflow within a chunk.

use std::arch::asm;

use longshore_mem::fault::RawOutcome;
use longshore_mem::fault_range;
use longshore_mem::isa::{Neon, Scalar};

use crate::kernels::SumKernels;

/// Sums the last bytes, at most 63, in words of 8, 4, 2 and 1 bytes.
macro_rules! tail {
    ($store_8:literal, $store_4:literal, $store_2:literal, $store_1:literal) => {
        concat!(
            "5:
            cmp {left}, #8
            b.lo 6f
            ldr {word}, [{from}]\n",
            $store_8,
            "
            adds {tail}, {tail}, {word}
            adc {tail}, {tail}, xzr
            add {from}, {from}, #8
            add {to}, {to}, #8
            sub {left}, {left}, #8
            b 5b
            6:
            tbz {left}, #2, 7f
            ldr {word:w}, [{from}]\n",
            $store_4,
            "
            adds {tail}, {tail}, {word}
            adc {tail}, {tail}, xzr
            add {from}, {from}, #4
            add {to}, {to}, #4
            sub {left}, {left}, #4
            7:
            tbz {left}, #1, 8f
            ldrh {word:w}, [{from}]\n",
            $store_2,
            "
            adds {tail}, {tail}, {word}
            adc {tail}, {tail}, xzr
            add {from}, {from}, #2
            add {to}, {to}, #2
            sub {left}, {left}, #2
            8:
            cbz {left}, 9f
            ldrb {word:w}, [{from}]\n",
            $store_1,
            "
            adds {tail}, {tail}, {word}
            adc {tail}, {tail}, xzr
            mov {left}, xzr
            9:\n"
        )
    };
}

macro_rules! block {
    ($name:ident, $store_four:literal, $tail:expr) => {
        /// # Safety
        /// As [`SumKernels`].
        unsafe fn $name(from: *const u8, to: *mut u8, len_bytes: usize) -> (u64, RawOutcome) {
            let (vectors, tail, left_bytes, address, cause): (u64, u64, usize, usize, usize);
            // SAFETY: reads and, if a copy, writes the caller's ranges; registers as declared.
            unsafe {
                asm!(
                    "mov x1, xzr",
                    "movi v4.4s, #0",
                    "movi v5.4s, #0",
                    "movi v6.4s, #0",
                    "movi v7.4s, #0",
                    "mov {tail}, xzr",
                    "2:",
                    "cmp {left}, #64",
                    "b.lo 5f",
                    "3:",
                    "ldp q0, q1, [{from}]",
                    "ldp q2, q3, [{from}, #32]",
                    $store_four,
                    "uadalp v4.4s, v0.8h",
                    "uadalp v5.4s, v1.8h",
                    "uadalp v6.4s, v2.8h",
                    "uadalp v7.4s, v3.8h",
                    "add {from}, {from}, #64",
                    "add {to}, {to}, #64",
                    "sub {left}, {left}, #64",
                    "cmp {left}, #64",
                    "b.hs 3b",
                    $tail,
                    fault_range!("2b", "9b", "9b"),
                    "add v4.4s, v4.4s, v5.4s",
                    "add v6.4s, v6.4s, v7.4s",
                    "add v4.4s, v4.4s, v6.4s",
                    "uaddlv d4, v4.4s",
                    "fmov {word}, d4",
                    word = out(reg) vectors,
                    tail = out(reg) tail,
                    left = inout(reg) len_bytes => left_bytes,
                    from = inout(reg) from => _,
                    to = inout(reg) to => _,
                    out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                    out("v4") _, out("v5") _, out("v6") _, out("v7") _,
                    out("x0") address,
                    out("x1") cause,
                    options(nostack),
                );
            }
            let (sum, carry) = tail.overflowing_add(vectors);
            (sum + u64::from(carry), RawOutcome { left_bytes, address, cause })
        }
    };
}

block!(sum_neon, "", tail!("", "", "", ""));
block!(
    copy_sum_neon,
    "stp q0, q1, [{to}]
    stp q2, q3, [{to}, #32]",
    tail!(
        "str {word}, [{to}]",
        "str {word:w}, [{to}]",
        "strh {word:w}, [{to}]",
        "strb {word:w}, [{to}]"
    )
);

macro_rules! scalar_block {
    ($name:ident, $store_two:literal, $tail:expr) => {
        /// # Safety
        /// As [`SumKernels`].
        unsafe fn $name(from: *const u8, to: *mut u8, len_bytes: usize) -> (u64, RawOutcome) {
            let (sum, left_bytes, address, cause);
            // SAFETY: reads and, if a copy, writes the caller's ranges; registers as declared.
            unsafe {
                asm!(
                    "mov x1, xzr",
                    "mov {tail}, xzr",
                    "2:",
                    "cmp {left}, #16",
                    "b.lo 5f",
                    "3:",
                    "ldp {word}, {other}, [{from}]",
                    $store_two,
                    "adds {tail}, {tail}, {word}",
                    "adcs {tail}, {tail}, {other}",
                    "adc {tail}, {tail}, xzr",
                    "add {from}, {from}, #16",
                    "add {to}, {to}, #16",
                    "sub {left}, {left}, #16",
                    "cmp {left}, #16",
                    "b.hs 3b",
                    $tail,
                    fault_range!("2b", "9b", "9b"),
                    word = out(reg) _,
                    other = out(reg) _,
                    tail = out(reg) sum,
                    left = inout(reg) len_bytes => left_bytes,
                    from = inout(reg) from => _,
                    to = inout(reg) to => _,
                    out("x0") address,
                    out("x1") cause,
                    options(nostack),
                );
            }
            (sum, RawOutcome { left_bytes, address, cause })
        }
    };
}

scalar_block!(sum_scalar, "", tail!("", "", "", ""));
scalar_block!(
    copy_sum_scalar,
    "stp {word}, {other}, [{to}]",
    tail!(
        "str {word}, [{to}]",
        "str {word:w}, [{to}]",
        "strh {word:w}, [{to}]",
        "strb {word:w}, [{to}]"
    )
);

macro_rules! kernels {
    ($token:ident, $sum:ident, $copy_sum:ident) => {
        impl SumKernels for $token {
            #[inline(always)]
            unsafe fn sum_raw(self, from: *const u8, len_bytes: usize) -> (u64, RawOutcome) {
                let nowhere = std::ptr::null_mut();
                // SAFETY: the caller's promise; the block has no stores.
                unsafe { $sum(from, nowhere, len_bytes) }
            }

            #[inline(always)]
            unsafe fn copy_sum_raw(
                self,
                from: *const u8,
                to: *mut u8,
                len_bytes: usize,
            ) -> (u64, RawOutcome) {
                // SAFETY: the caller's promise.
                unsafe { $copy_sum(from, to, len_bytes) }
            }
        }
    };
}

kernels!(Scalar, sum_scalar, copy_sum_scalar);
kernels!(Neon, sum_neon, copy_sum_neon);
