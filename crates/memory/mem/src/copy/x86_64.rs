//! Copies for x86-64.
//!
//! All blocks keep `rsi`, `rdi` and `rcx` (the bytes left) valid at every instruction that may
//! fault: an iteration first loads and stores, and only then advances them. So if it faults, all
//! bytes before it were copied, and the iteration may be repeated.
//!
//! From [`STREAM_MIN_BYTES`] on, the vector blocks use non-temporal stores, and end with a fence,
//! so that the copy is ordered like any other.

use core::arch::asm;

use super::traits::{CopyKernels, STREAM_MIN_BYTES};
use crate::fault::RawOutcome;
use crate::fault_range;
use crate::isa::{Avx2, Avx512, Scalar};

/// The length from which `rep movsb` is used if there are no vector registers.
const STRING_MIN_BYTES: usize = 256;

/// The length from which `rep stosb` is used.
const FILL_STRING_MIN_BYTES: usize = 128;

/// Copies byte by byte, so the number of bytes is exact, whatever string instructions do at a
/// fault.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
    let (left_bytes, address, cause);
    // SAFETY: reads and writes the caller's ranges; registers as declared.
    unsafe {
        asm!(
            "xor edx, edx",
            "test rcx, rcx",
            "jz 3f",
            "2:",
            "mov al, [rsi]",
            "mov [rdi], al",
            "inc rsi",
            "inc rdi",
            "dec rcx",
            "jnz 2b",
            "3:",
            fault_range!("2b", "3b", "3b"),
            inout("rcx") len_bytes => left_bytes,
            inout("rsi") from => _,
            inout("rdi") to => _,
            out("rax") address,
            out("rdx") cause,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address, cause }
}

impl CopyKernels for Scalar {
    unsafe fn copy_raw(self, from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
        let (left_bytes, address, cause);
        // SAFETY: as in `bytes`.
        unsafe {
            asm!(
                "xor edx, edx",
                "cmp rcx, {string_min}",
                "jae 6f",
                "2:",
                "cmp rcx, 8",
                "jb 4f",
                "3:",
                "mov r8, [rsi]",
                "mov [rdi], r8",
                "add rsi, 8",
                "add rdi, 8",
                "sub rcx, 8",
                "cmp rcx, 8",
                "jae 3b",
                "4:",
                "test rcx, rcx",
                "jz 7f",
                "5:",
                "mov r8b, [rsi]",
                "mov [rdi], r8b",
                "inc rsi",
                "inc rdi",
                "dec rcx",
                "jnz 5b",
                "jmp 7f",
                "6:",
                "rep movsb",
                "7:",
                fault_range!("2b", "7b", "7b"),
                string_min = const STRING_MIN_BYTES,
                inout("rcx") len_bytes => left_bytes,
                inout("rsi") from => _,
                inout("rdi") to => _,
                out("rax") address,
                out("rdx") cause,
                out("r8") _,
                options(nostack),
            );
        }
        RawOutcome { left_bytes, address, cause }
    }

    unsafe fn fill_raw(self, to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the caller's promise.
        unsafe { fill(to, byte, len_bytes) }
    }
}

impl CopyKernels for Avx2 {
    #[inline]
    unsafe fn copy_raw(self, from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the token proves that the instructions exist, the rest is the caller's promise.
        unsafe { copy_avx2(from, to, len_bytes) }
    }

    #[inline]
    unsafe fn fill_raw(self, to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the caller's promise.
        unsafe { fill(to, byte, len_bytes) }
    }
}

impl CopyKernels for Avx512 {
    #[inline]
    unsafe fn copy_raw(self, from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the token proves that the instructions exist, the rest is the caller's promise.
        unsafe { copy_avx512(from, to, len_bytes) }
    }

    #[inline]
    unsafe fn fill_raw(self, to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the caller's promise.
        unsafe { fill(to, byte, len_bytes) }
    }
}

/// # Safety
/// As [`super::copy`]; the machine must have the instructions of [`Avx2`].
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
    let (left_bytes, address, cause);
    // SAFETY: as in `bytes`.
    unsafe {
        asm!(
            "xor edx, edx",
            "2:",
            "cmp rcx, {stream_min}",
            "jae 7f",
            "cmp rcx, 128",
            "jb 5f",
            // Four vectors per iteration.
            "3:",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu ymm2, [rsi + 64]",
            "vmovdqu ymm3, [rsi + 96]",
            "vmovdqu [rdi], ymm0",
            "vmovdqu [rdi + 32], ymm1",
            "vmovdqu [rdi + 64], ymm2",
            "vmovdqu [rdi + 96], ymm3",
            "sub rsi, -128",
            "sub rdi, -128",
            "add rcx, -128",
            "cmp rcx, 128",
            "jae 3b",
            // At most 127 bytes: one copy for each bit of the count.
            "5:",
            "test cl, 64",
            "jz 25f",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu [rdi], ymm0",
            "vmovdqu [rdi + 32], ymm1",
            "add rsi, 64",
            "add rdi, 64",
            "sub rcx, 64",
            "25:",
            "test cl, 32",
            "jz 26f",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu [rdi], ymm0",
            "add rsi, 32",
            "add rdi, 32",
            "sub rcx, 32",
            "26:",
            "test cl, 16",
            "jz 27f",
            "vmovdqu xmm0, [rsi]",
            "vmovdqu [rdi], xmm0",
            "add rsi, 16",
            "add rdi, 16",
            "sub rcx, 16",
            "27:",
            "test cl, 8",
            "jz 28f",
            "mov r8, [rsi]",
            "mov [rdi], r8",
            "add rsi, 8",
            "add rdi, 8",
            "sub rcx, 8",
            "28:",
            "test cl, 4",
            "jz 29f",
            "mov r8d, [rsi]",
            "mov [rdi], r8d",
            "add rsi, 4",
            "add rdi, 4",
            "sub rcx, 4",
            "29:",
            "test cl, 2",
            "jz 30f",
            "mov r8w, [rsi]",
            "mov [rdi], r8w",
            "add rsi, 2",
            "add rdi, 2",
            "sub rcx, 2",
            "30:",
            "test cl, 1",
            "jz 9f",
            "mov r8b, [rsi]",
            "mov [rdi], r8b",
            "dec rcx",
            "jmp 9f",
            // Byte by byte to a vector boundary, then with non-temporal stores.
            "7:",
            "test dil, 31",
            "jz 8f",
            "mov r8b, [rsi]",
            "mov [rdi], r8b",
            "inc rsi",
            "inc rdi",
            "dec rcx",
            "jmp 7b",
            "8:",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu ymm2, [rsi + 64]",
            "vmovdqu ymm3, [rsi + 96]",
            "vmovntdq [rdi], ymm0",
            "vmovntdq [rdi + 32], ymm1",
            "vmovntdq [rdi + 64], ymm2",
            "vmovntdq [rdi + 96], ymm3",
            "sub rsi, -128",
            "sub rdi, -128",
            "add rcx, -128",
            "cmp rcx, 128",
            "jae 8b",
            "sfence",
            "jmp 5b",
            "4:",
            "sfence",
            "9:",
            "vzeroupper",
            fault_range!("2b", "7b", "9b"),
            fault_range!("7b", "4b", "4b"),
            stream_min = const STREAM_MIN_BYTES,
            inout("rcx") len_bytes => left_bytes,
            inout("rsi") from => _,
            inout("rdi") to => _,
            out("rax") address,
            out("rdx") cause,
            out("r8") _,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            // `vzeroupper` also clears the upper halves of these registers, which a caller built
            // for AVX may use.
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address, cause }
}

/// # Safety
/// As [`super::copy`]; the machine must have the instructions of [`Avx512`].
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
unsafe fn copy_avx512(from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
    let (left_bytes, address, cause);
    // SAFETY: as in `bytes`.
    unsafe {
        asm!(
            "xor edx, edx",
            "cmp rcx, 64",
            "jbe 6f",
            // Stores that cross a cache line cost twice as much: align the target first.
            "2:",
            "mov r8, rdi",
            "neg r8",
            "and r8, 63",
            "jz 3f",
            "mov r9, -1",
            "bzhi r9, r9, r8",
            "kmovq k1, r9",
            "vmovdqu8 zmm0{{k1}}{{z}}, [rsi]",
            "vmovdqu8 [rdi]{{k1}}, zmm0",
            "add rsi, r8",
            "add rdi, r8",
            "sub rcx, r8",
            "3:",
            "cmp rcx, {stream_min}",
            "jae 7f",
            "cmp rcx, 256",
            "jb 5f",
            "4:",
            "vmovdqu64 zmm0, [rsi]",
            "vmovdqu64 zmm1, [rsi + 64]",
            "vmovdqu64 zmm2, [rsi + 128]",
            "vmovdqu64 zmm3, [rsi + 192]",
            "vmovdqu64 [rdi], zmm0",
            "vmovdqu64 [rdi + 64], zmm1",
            "vmovdqu64 [rdi + 128], zmm2",
            "vmovdqu64 [rdi + 192], zmm3",
            "add rsi, 256",
            "add rdi, 256",
            "sub rcx, 256",
            "cmp rcx, 256",
            "jae 4b",
            "5:",
            "cmp rcx, 64",
            "jbe 6f",
            "vmovdqu64 zmm0, [rsi]",
            "vmovdqu64 [rdi], zmm0",
            "add rsi, 64",
            "add rdi, 64",
            "sub rcx, 64",
            "jmp 5b",
            // At most 64 bytes: a mask with a one for each. An empty mask would be slow if the line
            // is not mapped.
            "6:",
            "test rcx, rcx",
            "jz 9f",
            "mov r9, -1",
            "bzhi r9, r9, rcx",
            "kmovq k1, r9",
            "vmovdqu8 zmm0{{k1}}{{z}}, [rsi]",
            "vmovdqu8 [rdi]{{k1}}, zmm0",
            "xor ecx, ecx",
            "jmp 9f",
            // With non-temporal stores.
            "7:",
            "vmovdqu64 zmm0, [rsi]",
            "vmovdqu64 zmm1, [rsi + 64]",
            "vmovdqu64 zmm2, [rsi + 128]",
            "vmovdqu64 zmm3, [rsi + 192]",
            "vmovntdq [rdi], zmm0",
            "vmovntdq [rdi + 64], zmm1",
            "vmovntdq [rdi + 128], zmm2",
            "vmovntdq [rdi + 192], zmm3",
            "add rsi, 256",
            "add rdi, 256",
            "sub rcx, 256",
            "cmp rcx, 256",
            "jae 7b",
            "sfence",
            "jmp 5b",
            "8:",
            "sfence",
            "9:",
            "vzeroupper",
            fault_range!("2b", "7b", "9b"),
            fault_range!("7b", "8b", "8b"),
            stream_min = const STREAM_MIN_BYTES,
            inout("rcx") len_bytes => left_bytes,
            inout("rsi") from => _,
            inout("rdi") to => _,
            out("rax") address,
            out("rdx") cause,
            out("r8") _, out("r9") _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("k1") _,
            // `vzeroupper` also clears the upper halves of these registers, which a caller built
            // for AVX may use.
            out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address, cause }
}

/// Fills byte by byte, as exactly as [`bytes`].
///
/// # Safety
/// As [`super::fill`].
pub(super) unsafe fn fill_bytes(to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
    let (left_bytes, address, cause);
    // SAFETY: writes the caller's range; registers as declared, the direction flag is clear.
    unsafe {
        asm!(
            "xor edx, edx",
            "test rcx, rcx",
            "jz 3f",
            "2:",
            "mov [rdi], al",
            "inc rdi",
            "dec rcx",
            "jnz 2b",
            "3:",
            fault_range!("2b", "3b", "3b"),
            inout("rcx") len_bytes => left_bytes,
            inout("rdi") to => _,
            inout("rax") usize::from(byte) => address,
            out("rdx") cause,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address, cause }
}

/// Fills, by words if the length is too short for `rep stosb`.
///
/// # Safety
/// As [`super::fill`].
unsafe fn fill(to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
    let word = u64::from(byte) * 0x0101_0101_0101_0101;
    let (left_bytes, address, cause): (usize, u64, usize);
    // SAFETY: as in `fill_bytes`.
    unsafe {
        asm!(
            "xor edx, edx",
            "cmp rcx, {string_min}",
            "jae 5f",
            "2:",
            "cmp rcx, 8",
            "jb 5f",
            "3:",
            "mov [rdi], rax",
            "add rdi, 8",
            "sub rcx, 8",
            "cmp rcx, 8",
            "jae 3b",
            "5:",
            "rep stosb",
            "6:",
            fault_range!("2b", "6b", "6b"),
            string_min = const FILL_STRING_MIN_BYTES,
            inout("rcx") len_bytes => left_bytes,
            inout("rdi") to => _,
            inout("rax") word => address,
            out("rdx") cause,
            options(nostack),
        );
    }
    RawOutcome { left_bytes, address: address as usize, cause }
}
