//! Assembly for x86-64. After a fault, execution continues behind the block, with the cause in `rdx`.

use std::arch::asm;

use longshore_mem::fault_range;
use longshore_mem::isa::IsaToken;

macro_rules! guarded {
    ([$($line:literal),+ $(,)?], $($operands:tt)*) => {{
        let cause: usize;
        asm!(
            "xor edx, edx",
            "2:",
            $($line,)+
            "3:",
            fault_range!("2b", "3b", "3b"),
            $($operands)*
            out("rax") _,
            out("rdx") cause,
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
        guarded!(["mov {v}, byte ptr [{f}]", "mov byte ptr [{t}], {v}"],
            f = in(reg) from, t = in(reg) to, v = out(reg_byte) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for two bytes, and two more from `last` on.
#[inline(always)]
pub(super) unsafe fn copy_2(from: *const u8, to: *mut u8, last: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!([
            "mov {v:x}, word ptr [{f}]",
            "mov {w:x}, word ptr [{f} + {l}]",
            "mov word ptr [{t}], {v:x}",
            "mov word ptr [{t} + {l}], {w:x}",
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
            "mov {v:e}, dword ptr [{f}]",
            "mov {w:e}, dword ptr [{f} + {l}]",
            "mov dword ptr [{t}], {v:e}",
            "mov dword ptr [{t} + {l}], {w:e}",
        ], f = in(reg) from, t = in(reg) to, l = in(reg) last, v = out(reg) _, w = out(reg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for eight bytes.
#[inline(always)]
pub(super) unsafe fn copy_8(from: *const u8, to: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!(["mov {v}, qword ptr [{f}]", "mov qword ptr [{t}], {v}"],
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
            "mov {v}, qword ptr [{f}]",
            "mov {w}, qword ptr [{f} + {l}]",
            "mov qword ptr [{t}], {v}",
            "mov qword ptr [{t} + {l}], {w}",
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
            "movups {v}, [{f}]",
            "movups {w}, [{f} + {l}]",
            "movups [{t}], {v}",
            "movups [{t} + {l}], {w}",
        ], f = in(reg) from, t = in(reg) to, l = in(reg) last,
            v = out(xmm_reg) _, w = out(xmm_reg) _,)
    }
}

/// # Safety
/// The same as for `super::copy`, for 32 bytes, and 32 more from `last` on.
#[inline(always)]
pub(super) unsafe fn copy_32_32(from: *const u8, to: *mut u8, last: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        guarded!([
            "movups {v}, [{f}]",
            "movups {w}, [{f} + 16]",
            "movups {x}, [{f} + {l}]",
            "movups {y}, [{f} + {l} + 16]",
            "movups [{t}], {v}",
            "movups [{t} + 16], {w}",
            "movups [{t} + {l}], {x}",
            "movups [{t} + {l} + 16], {y}",
        ], f = in(reg) from, t = in(reg) to, l = in(reg) last,
            v = out(xmm_reg) _, w = out(xmm_reg) _, x = out(xmm_reg) _, y = out(xmm_reg) _,)
    }
}

/// Copies 64 bytes at a time and then the last 64, with AVX2. Returns `None` if `token` does not prove
/// AVX2.
///
/// # Safety
/// The same as for `super::copy`, for more than 64 bytes.
#[inline(always)]
pub(super) unsafe fn copy_middle(
    token: IsaToken,
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> Option<bool> {
    if matches!(token, IsaToken::Scalar(_)) {
        return None;
    }
    let cause: usize;
    // SAFETY: the caller's promise; both other tokens prove AVX2. The `xmm` registers are declared as
    // clobbered, which are the halves of `ymm` that code without AVX uses.
    unsafe {
        asm!(
            "xor edx, edx",
            "2:",
            "vmovdqu ymm0, [{f} + {i}]",
            "vmovdqu ymm1, [{f} + {i} + 32]",
            "vmovdqu [{t} + {i}], ymm0",
            "vmovdqu [{t} + {i} + 32], ymm1",
            "add {i}, 64",
            "cmp {i}, {l}",
            "jb 2b",
            "vmovdqu ymm0, [{f} + {l}]",
            "vmovdqu ymm1, [{f} + {l} + 32]",
            "vmovdqu [{t} + {l}], ymm0",
            "vmovdqu [{t} + {l} + 32], ymm1",
            "3:",
            "vzeroupper",
            fault_range!("2b", "3b", "3b"),
            f = in(reg) from,
            t = in(reg) to,
            l = in(reg) len - 64,
            i = inout(reg) 0usize => _,
            out("rax") _,
            out("rdx") cause,
            out("xmm0") _,
            out("xmm1") _,
            // `vzeroupper` clears the upper halves of these, which a caller built for AVX may use.
            out("xmm2") _,
            out("xmm3") _,
            out("xmm4") _,
            out("xmm5") _,
            out("xmm6") _,
            out("xmm7") _,
            out("xmm8") _,
            out("xmm9") _,
            out("xmm10") _,
            out("xmm11") _,
            out("xmm12") _,
            out("xmm13") _,
            out("xmm14") _,
            out("xmm15") _,
            options(nostack),
        );
    }
    Some(cause == 0)
}

/// Copies up to 64 bytes with a mask, without a branch on their number; copies more bytes 64 at a time
/// and then the last 64. Returns `None` if `token` does not prove AVX-512.
///
/// It uses only registers that code without AVX-512 does not use, so that no `vzeroupper` is needed.
///
/// # Safety
/// The same as for `super::copy`.
#[inline(always)]
pub(super) unsafe fn copy_masked(
    token: IsaToken,
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> Option<bool> {
    if !matches!(token, IsaToken::Avx512(_)) {
        return None;
    }
    let cause: usize;
    // SAFETY: the caller's promise; the token proves the instructions, and bytes outside of a mask are
    // neither read nor written.
    unsafe {
        asm!(
            "xor edx, edx",
            "2:",
            "cmp {l}, 64",
            "ja 4f",
            "mov {i}, -1",
            "bzhi {i}, {i}, {l}",
            "kmovq k1, {i}",
            "vmovdqu8 zmm16{{k1}}{{z}}, [{f}]",
            "vmovdqu8 [{t}]{{k1}}, zmm16",
            "jmp 3f",
            "4:",
            "add {l}, -64",
            "xor {i:e}, {i:e}",
            "5:",
            "vmovdqu64 ymm16, [{f} + {i}]",
            "vmovdqu64 ymm17, [{f} + {i} + 32]",
            "vmovdqu64 [{t} + {i}], ymm16",
            "vmovdqu64 [{t} + {i} + 32], ymm17",
            "add {i}, 64",
            "cmp {i}, {l}",
            "jb 5b",
            "vmovdqu64 ymm16, [{f} + {l}]",
            "vmovdqu64 ymm17, [{f} + {l} + 32]",
            "vmovdqu64 [{t} + {l}], ymm16",
            "vmovdqu64 [{t} + {l} + 32], ymm17",
            "3:",
            fault_range!("2b", "3b", "3b"),
            f = in(reg) from,
            t = in(reg) to,
            l = inout(reg) len => _,
            i = out(reg) _,
            out("rax") _,
            out("rdx") cause,
            out("zmm16") _,
            out("zmm17") _,
            out("k1") _,
            options(nostack),
        );
    }
    Some(cause == 0)
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
            1 => guarded!(["movzx {v:e}, byte ptr [{f}]"], f = in(reg) from, v = out(reg) value,),
            2 => guarded!(["movzx {v:e}, word ptr [{f}]"], f = in(reg) from, v = out(reg) value,),
            4 => guarded!(["mov {v:e}, dword ptr [{f}]"], f = in(reg) from, v = out(reg) value,),
            8 => guarded!(["mov {v}, qword ptr [{f}]"], f = in(reg) from, v = out(reg) value,),
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
            1 => {
                guarded!(["mov byte ptr [{t}], {v}"], t = in(reg) to, v = in(reg_byte) value as u8,)
            }
            2 => guarded!(["mov word ptr [{t}], {v:x}"], t = in(reg) to, v = in(reg) value,),
            4 => guarded!(["mov dword ptr [{t}], {v:e}"], t = in(reg) to, v = in(reg) value,),
            8 => guarded!(["mov qword ptr [{t}], {v}"], t = in(reg) to, v = in(reg) value,),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    }
}

macro_rules! exchange {
    ($line:literal, $at:ident, $old:ident, $class:ident, $new:expr) => {{
        let (found, cause): (u64, usize);
        asm!(
            "xor edx, edx",
            "2:",
            $line,
            "3:",
            fault_range!("2b", "3b", "3b"),
            t = in(reg) $at,
            v = in($class) $new,
            inout("rax") $old => found,
            out("rdx") cause,
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
    // SAFETY: the caller's promise.
    let (found, cause) = unsafe {
        match N {
            1 => exchange!("lock cmpxchg byte ptr [{t}], {v}", at, old, reg_byte, new as u8),
            2 => exchange!("lock cmpxchg word ptr [{t}], {v:x}", at, old, reg, new),
            4 => exchange!("lock cmpxchg dword ptr [{t}], {v:e}", at, old, reg, new),
            8 => exchange!("lock cmpxchg qword ptr [{t}], {v}", at, old, reg, new),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    };
    if cause != 0 {
        return None;
    }
    let mask = u64::MAX >> (64 - 8 * N);
    let found = found & mask;
    Some(if found == old & mask { Ok(found) } else { Err(found) })
}
