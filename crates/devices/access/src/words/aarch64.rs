//! Assembly for AArch64. After a fault, execution continues behind the block, with the cause in `x1`.

use std::arch::asm;

use longshore_mem::fault_range;
use longshore_mem::isa::IsaToken;

macro_rules! guarded {
    ([$($line:literal),+ $(,)?], $($operands:tt)*) => {{
        let cause: usize;
        asm!(
            "mov x1, #0",
            "2:",
            $($line,)+
            "3:",
            fault_range!("2b", "3b", "3b"),
            $($operands)*
            out("x0") _,
            out("x1") cause,
            options(nostack),
        );
        cause == 0
    }};
}

/// # Safety
/// The same as for `super::copy`, for one byte.
#[inline(always)]
pub(super) unsafe fn copy_1(from: *const u8, to: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!(["ldrb {v:w}, [{f}]", "strb {v:w}, [{t}]"],
            f = in(reg) from, t = in(reg) to, v = out(reg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for two bytes, and two more from `last` on.
#[inline(always)]
pub(super) unsafe fn copy_2(from: *const u8, to: *mut u8, last: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!([
            "ldrh {v:w}, [{f}]",
            "ldrh {w:w}, [{f}, {l}]",
            "strh {v:w}, [{t}]",
            "strh {w:w}, [{t}, {l}]",
        ], f = in(reg) from, t = in(reg) to, l = in(reg) last, v = out(reg) _, w = out(reg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for four bytes, and four more from `last` on.
#[inline(always)]
pub(super) unsafe fn copy_4(from: *const u8, to: *mut u8, last: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!([
            "ldr {v:w}, [{f}]",
            "ldr {w:w}, [{f}, {l}]",
            "str {v:w}, [{t}]",
            "str {w:w}, [{t}, {l}]",
        ], f = in(reg) from, t = in(reg) to, l = in(reg) last, v = out(reg) _, w = out(reg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for eight bytes.
#[inline(always)]
pub(super) unsafe fn copy_8(from: *const u8, to: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!(["ldr {v}, [{f}]", "str {v}, [{t}]"],
            f = in(reg) from, t = in(reg) to, v = out(reg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for eight bytes, and eight more from `last` on.
#[inline(always)]
pub(super) unsafe fn copy_8_8(from: *const u8, to: *mut u8, last: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!([
            "ldr {v}, [{f}]",
            "ldr {w}, [{f}, {l}]",
            "str {v}, [{t}]",
            "str {w}, [{t}, {l}]",
        ], f = in(reg) from, t = in(reg) to, l = in(reg) last, v = out(reg) _, w = out(reg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for 16 bytes, and 16 more from `last` on.
#[inline(always)]
pub(super) unsafe fn copy_16_16(from: *const u8, to: *mut u8, last: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!([
            "ldr {v:q}, [{f}]",
            "ldr {w:q}, [{f}, {l}]",
            "str {v:q}, [{t}]",
            "str {w:q}, [{t}, {l}]",
        ], f = in(reg) from, t = in(reg) to, l = in(reg) last, v = out(vreg) _, w = out(vreg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for 32 bytes, and 32 more from `last` on.
#[inline(always)]
pub(super) unsafe fn copy_32_32(from: *const u8, to: *mut u8, last: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!([
            "ldp {v:q}, {w:q}, [{f}]",
            "ldp {x:q}, {y:q}, [{g}]",
            "stp {v:q}, {w:q}, [{t}]",
            "stp {x:q}, {y:q}, [{u}]",
        ], f = in(reg) from, t = in(reg) to,
            g = in(reg) from.wrapping_add(last), u = in(reg) to.wrapping_add(last),
            v = out(vreg) _, w = out(vreg) _, x = out(vreg) _, y = out(vreg) _,)
    }
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

/// Loads a word of `N` bytes, atomically if it is aligned. Returns `None` if the memory is missing.
///
/// # Safety
/// The same as for `super::copy`.
#[inline(always)]
pub(crate) unsafe fn load<const N: usize>(from: *const u8) -> Option<u64> {
    let value: u64;
    // SAFETY: the caller's promise.
    let done = unsafe {
        match N {
            1 => guarded!(["ldrb {v:w}, [{f}]"], f = in(reg) from, v = out(reg) value,),
            2 => guarded!(["ldrh {v:w}, [{f}]"], f = in(reg) from, v = out(reg) value,),
            4 => guarded!(["ldr {v:w}, [{f}]"], f = in(reg) from, v = out(reg) value,),
            8 => guarded!(["ldr {v}, [{f}]"], f = in(reg) from, v = out(reg) value,),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    };
    done.then_some(value)
}

/// Stores a word of `N` bytes, atomically if it is aligned. Returns `false` if the memory is missing.
///
/// # Safety
/// The same as for `super::copy`.
#[inline(always)]
pub(crate) unsafe fn store<const N: usize>(to: *mut u8, value: u64) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match N {
            1 => guarded!(["strb {v:w}, [{t}]"], t = in(reg) to, v = in(reg) value,),
            2 => guarded!(["strh {v:w}, [{t}]"], t = in(reg) to, v = in(reg) value,),
            4 => guarded!(["str {v:w}, [{t}]"], t = in(reg) to, v = in(reg) value,),
            8 => guarded!(["str {v}, [{t}]"], t = in(reg) to, v = in(reg) value,),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    }
}

macro_rules! exchange {
    ($load:literal, $store:literal, $at:ident, $old:expr, $new:ident) => {{
        let (found, cause): (u64, usize);
        // The barriers make the exchange a full barrier.
        asm!(
            "mov x1, #0",
            "dmb ish",
            "2:",
            $load,
            "cmp {x}, {o}",
            "b.ne 3f",
            $store,
            "cbnz {s:w}, 2b",
            "3:",
            "dmb ish",
            fault_range!("2b", "3b", "3b"),
            t = in(reg) $at,
            v = in(reg) $new,
            o = in(reg) $old,
            x = out(reg) found,
            s = out(reg) _,
            out("x0") _,
            out("x1") cause,
            options(nostack),
        );
        (found, cause)
    }};
}

/// Writes `new` to an aligned word of `N` bytes if the word is `old`, as a full barrier. Returns the
/// previous word: as `Ok` if it was `old`, and as `Err` otherwise. Returns `None` if the memory is
/// missing.
///
/// # Safety
/// The same as for `super::copy`, in both directions.
#[inline]
pub(crate) unsafe fn compare_exchange<const N: usize>(
    at: *mut u8,
    old: u64,
    new: u64,
) -> Option<Result<u64, u64>> {
    let old = old & (u64::MAX >> (64 - 8 * N));
    // SAFETY: the caller's promise.
    let (found, cause) = unsafe {
        match N {
            1 => exchange!("ldaxrb {x:w}, [{t}]", "stlxrb {s:w}, {v:w}, [{t}]", at, old, new),
            2 => exchange!("ldaxrh {x:w}, [{t}]", "stlxrh {s:w}, {v:w}, [{t}]", at, old, new),
            4 => exchange!("ldaxr {x:w}, [{t}]", "stlxr {s:w}, {v:w}, [{t}]", at, old, new),
            8 => exchange!("ldaxr {x}, [{t}]", "stlxr {s:w}, {v}, [{t}]", at, old, new),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    };
    if cause != 0 {
        return None;
    }
    Some(if found == old { Ok(found) } else { Err(found) })
}
