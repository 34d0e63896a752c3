//! Copies for AArch64.
//!
//! All blocks keep their pointers and the number of bytes left valid at every instruction that may
//! fault: an iteration first loads and stores, and only then advances them.

use core::arch::asm;

use super::traits::CopyKernels;
use crate::fault::RawOutcome;
use crate::fault_range;
use crate::isa::{Neon, Scalar};

/// Copies byte by byte, so the number of bytes is exact.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
    let (left_bytes, address, cause);
    // SAFETY: reads and writes the caller's ranges; registers as declared.
    unsafe {
        asm!(
            "mov x1, xzr",
            "cbz {left}, 3f",
            "2:",
            "ldrb {byte:w}, [{from}]",
            "strb {byte:w}, [{to}]",
            "add {from}, {from}, #1",
            "add {to}, {to}, #1",
            "subs {left}, {left}, #1",
            "b.ne 2b",
            "3:",
            fault_range!("2b", "3b", "3b"),
            left = inout(reg) len_bytes => left_bytes,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            byte = out(reg) _,
            out("x0") address,
            out("x1") cause,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address, cause }
}

/// Fills byte by byte, so the number of bytes is exact.
///
/// # Safety
/// As [`super::fill`].
pub(super) unsafe fn fill_bytes(to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
    let (left_bytes, address, cause);
    // SAFETY: writes the caller's range; registers as declared.
    unsafe {
        asm!(
            "mov x1, xzr",
            "cbz {left}, 3f",
            "2:",
            "strb {byte:w}, [{to}]",
            "add {to}, {to}, #1",
            "subs {left}, {left}, #1",
            "b.ne 2b",
            "3:",
            fault_range!("2b", "3b", "3b"),
            left = inout(reg) len_bytes => left_bytes,
            to = inout(reg) to => _,
            byte = in(reg) u32::from(byte),
            out("x0") address,
            out("x1") cause,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address, cause }
}

/// # Safety
/// As [`super::fill`].
unsafe fn fill(to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
    let word = u64::from(byte) * 0x0101_0101_0101_0101;
    let (left_bytes, address, cause);
    // SAFETY: writes the caller's range; registers as declared.
    unsafe {
        asm!(
            "mov x1, xzr",
            "2:",
            "cmp {left}, #16",
            "b.lo 4f",
            "3:",
            "stp {word}, {word}, [{to}]",
            "add {to}, {to}, #16",
            "sub {left}, {left}, #16",
            "cmp {left}, #16",
            "b.hs 3b",
            "4:",
            "cbz {left}, 6f",
            "5:",
            "strb {word:w}, [{to}]",
            "add {to}, {to}, #1",
            "subs {left}, {left}, #1",
            "b.ne 5b",
            "6:",
            fault_range!("2b", "6b", "6b"),
            left = inout(reg) len_bytes => left_bytes,
            to = inout(reg) to => _,
            word = in(reg) word,
            out("x0") address,
            out("x1") cause,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address, cause }
}

impl CopyKernels for Scalar {
    #[inline]
    unsafe fn copy_raw(self, from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
        let (left_bytes, address, cause);
        // SAFETY: as in `bytes`.
        unsafe {
            asm!(
                "mov x1, xzr",
                "2:",
                "cmp {left}, #32",
                "b.lo 4f",
                "3:",
                "ldp {a}, {b}, [{from}]",
                "ldp {c}, {d}, [{from}, #16]",
                "stp {a}, {b}, [{to}]",
                "stp {c}, {d}, [{to}, #16]",
                "add {from}, {from}, #32",
                "add {to}, {to}, #32",
                "sub {left}, {left}, #32",
                "cmp {left}, #32",
                "b.hs 3b",
                "4:",
                "cmp {left}, #8",
                "b.lo 5f",
                "ldr {a}, [{from}]",
                "str {a}, [{to}]",
                "add {from}, {from}, #8",
                "add {to}, {to}, #8",
                "sub {left}, {left}, #8",
                "b 4b",
                "5:",
                "cbz {left}, 6f",
                "ldrb {a:w}, [{from}]",
                "strb {a:w}, [{to}]",
                "add {from}, {from}, #1",
                "add {to}, {to}, #1",
                "sub {left}, {left}, #1",
                "b 5b",
                "6:",
                fault_range!("2b", "6b", "6b"),
                left = inout(reg) len_bytes => left_bytes,
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
                out("x0") address,
                out("x1") cause,
                options(nostack),
            );
        }
        RawOutcome { left_bytes, address, cause }
    }

    #[inline]
    unsafe fn fill_raw(self, to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the caller's promise.
        unsafe { fill(to, byte, len_bytes) }
    }
}

impl CopyKernels for Neon {
    #[inline]
    unsafe fn copy_raw(self, from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
        let (left_bytes, address, cause);
        // SAFETY: as in `bytes`; the token proves that the instructions exist.
        unsafe {
            asm!(
                "mov x1, xzr",
                "2:",
                "cmp {left}, #128",
                "b.lo 4f",
                "3:",
                "ldp q0, q1, [{from}]",
                "ldp q2, q3, [{from}, #32]",
                "ldp q4, q5, [{from}, #64]",
                "ldp q6, q7, [{from}, #96]",
                "stp q0, q1, [{to}]",
                "stp q2, q3, [{to}, #32]",
                "stp q4, q5, [{to}, #64]",
                "stp q6, q7, [{to}, #96]",
                "add {from}, {from}, #128",
                "add {to}, {to}, #128",
                "sub {left}, {left}, #128",
                "cmp {left}, #128",
                "b.hs 3b",
                "4:",
                "cmp {left}, #16",
                "b.lo 5f",
                "ldr q0, [{from}]",
                "str q0, [{to}]",
                "add {from}, {from}, #16",
                "add {to}, {to}, #16",
                "sub {left}, {left}, #16",
                "b 4b",
                // At most 15 bytes: one word for each bit of the count.
                "5:",
                "tbz {left}, #3, 6f",
                "ldr {word}, [{from}]",
                "str {word}, [{to}]",
                "add {from}, {from}, #8",
                "add {to}, {to}, #8",
                "sub {left}, {left}, #8",
                "6:",
                "tbz {left}, #2, 7f",
                "ldr {word:w}, [{from}]",
                "str {word:w}, [{to}]",
                "add {from}, {from}, #4",
                "add {to}, {to}, #4",
                "sub {left}, {left}, #4",
                "7:",
                "tbz {left}, #1, 8f",
                "ldrh {word:w}, [{from}]",
                "strh {word:w}, [{to}]",
                "add {from}, {from}, #2",
                "add {to}, {to}, #2",
                "sub {left}, {left}, #2",
                "8:",
                "cbz {left}, 9f",
                "ldrb {word:w}, [{from}]",
                "strb {word:w}, [{to}]",
                "mov {left}, xzr",
                "9:",
                fault_range!("2b", "9b", "9b"),
                left = inout(reg) len_bytes => left_bytes,
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                word = out(reg) _,
                out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                out("v4") _, out("v5") _, out("v6") _, out("v7") _,
                out("x0") address,
                out("x1") cause,
                options(nostack),
            );
        }
        RawOutcome { left_bytes, address, cause }
    }

    #[inline]
    unsafe fn fill_raw(self, to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the caller's promise.
        unsafe { fill(to, byte, len_bytes) }
    }
}
