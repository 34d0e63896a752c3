//! Checksums for x86-64.
//!
//! There is one block of assembly per instruction set, with or without the stores of a copy. An
//! iteration first loads and stores, and only then adds and advances: if it faults, the sum is that
//! of the bytes before it.
//!
//! The vector blocks add signed words. A word w equals 0x8000 plus the signed word w ^ 0x8000, so
//! one exclusive-or and one dot product with ones process a whole register (VPDPWSSD, or VPMADDWD
//! and VPADDD), and 0x8000 for each word of each register is added at the end. The words that a
//! masked load leaves out are zero, and are treated the same way.
//!
//! An access that crosses a cache line costs twice as much. The AVX-512 blocks therefore process
//! whole lines: lines of the target in a copy, because stores cost more, and of the source
//! otherwise. The first line is masked. If the bytes begin at an odd offset in it, so does each
//! word, and the sum comes out with its bytes swapped (RFC 1071, section 2 B).

use std::arch::asm;

use longshore_mem::fault::RawOutcome;
use longshore_mem::fault_range;
use longshore_mem::isa::{Avx2, Avx512, Scalar};

use crate::kernels::SumKernels;

/// The sign bits to flip in two words, and two ones to multiply by.
const BIAS: u32 = 0x8000_8000;
const ONES: u32 = 0x0001_0001;

/// The AVX-512 block. `$line` is the pointer whose lines are processed.
macro_rules! avx512_block {
    (
        $name:ident, $line:literal, take four: $take_four:expr, take one: $take_one:literal,
        store masked: $store_masked:literal, end: $end:literal
    ) => {
        /// # Safety
        /// As [`SumKernels`]; the machine must have what [`Avx512`] names.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,bmi2")]
        unsafe fn $name(from: *const u8, to: *mut u8, len_bytes: usize) -> (u64, RawOutcome) {
            let (sum, left_bytes, address, cause);
            // SAFETY: reads and, if a copy, writes the caller's ranges; registers as declared.
            unsafe {
                asm!(
                    "xor edx, edx",
                    "vpbroadcastd zmm20, {bias:e}",
                    "vpbroadcastd zmm21, {ones:e}",
                    "vpxord zmm16, zmm16, zmm16",
                    "vpxord zmm17, zmm17, zmm17",
                    "vpxord zmm18, zmm18, zmm18",
                    "vpxord zmm19, zmm19, zmm19",
                    "xor {registers:e}, {registers:e}",
                    concat!("mov {skew}, ", $line),
                    "and {skew}, 63",
                    "jz 3f",
                    // The number of bytes in the first line.
                    "mov {part:e}, 64",
                    "sub {part}, {skew}",
                    "cmp rcx, {part}",
                    "cmovb {part}, rcx",
                    "mov {word}, -1",
                    "bzhi {word}, {word}, {part}",
                    "shlx {word}, {word}, {skew}",
                    "kmovq k1, {word}",
                    "sub rsi, {skew}",
                    "sub rdi, {skew}",
                    "2:",
                    "vmovdqu8 zmm24{{k1}}{{z}}, [rsi]",
                    $store_masked,
                    "vpxord zmm24, zmm24, zmm20",
                    "vpdpwssd zmm19, zmm24, zmm21",
                    "add rsi, 64",
                    "add rdi, 64",
                    "inc {registers}",
                    "sub rcx, {part}",
                    "3:",
                    "cmp rcx, 256",
                    "jb 5f",
                    "4:",
                    $take_four,
                    "vpdpwssd zmm16, zmm24, zmm21",
                    "vpdpwssd zmm17, zmm25, zmm21",
                    "vpdpwssd zmm18, zmm26, zmm21",
                    "vpdpwssd zmm19, zmm27, zmm21",
                    "add rsi, 256",
                    "add rdi, 256",
                    "add {registers}, 4",
                    "sub rcx, 256",
                    "cmp rcx, 256",
                    "jae 4b",
                    "5:",
                    "cmp rcx, 64",
                    "jb 6f",
                    $take_one,
                    "vpdpwssd zmm16, zmm24, zmm21",
                    "add rsi, 64",
                    "add rdi, 64",
                    "inc {registers}",
                    "sub rcx, 64",
                    "jmp 5b",
                    "6:",
                    "test rcx, rcx",
                    "jz 7f",
                    "mov {word}, -1",
                    "bzhi {word}, {word}, rcx",
                    "kmovq k1, {word}",
                    "vmovdqu8 zmm24{{k1}}{{z}}, [rsi]",
                    $store_masked,
                    "vpxord zmm24, zmm24, zmm20",
                    "vpdpwssd zmm17, zmm24, zmm21",
                    "inc {registers}",
                    "xor ecx, ecx",
                    "7:",
                    fault_range!("2b", "7b", "7b"),
                    $end,
                    "vpaddd zmm16, zmm16, zmm17",
                    "vpaddd zmm18, zmm18, zmm19",
                    "vpaddd zmm16, zmm16, zmm18",
                    "vextracti64x4 ymm17, zmm16, 1",
                    "vpaddd ymm16, ymm16, ymm17",
                    "vextracti32x4 xmm17, ymm16, 1",
                    "vpaddd xmm16, xmm16, xmm17",
                    "vpshufd xmm17, xmm16, 0x4e",
                    "vpaddd xmm16, xmm16, xmm17",
                    "vpshufd xmm17, xmm16, 0xb1",
                    "vpaddd xmm16, xmm16, xmm17",
                    "vmovd {word:e}, xmm16",
                    "movsxd {word}, {word:e}",
                    // 32 words per register, 0x8000 each.
                    "shl {registers}, 20",
                    "add {word}, {registers}",
                    "mov {part}, {word}",
                    "rol {part}, 8",
                    "test {skew:l}, 1",
                    "cmovnz {word}, {part}",
                    bias = in(reg) BIAS,
                    ones = in(reg) ONES,
                    registers = out(reg) _,
                    skew = out(reg) _,
                    part = out(reg) _,
                    word = out(reg) sum,
                    inout("rcx") len_bytes => left_bytes,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    out("rax") address,
                    out("rdx") cause,
                    out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                    out("zmm20") _, out("zmm21") _, out("zmm24") _, out("zmm25") _,
                    out("zmm26") _, out("zmm27") _, out("k1") _,
                    options(nostack),
                );
            }
            (sum, RawOutcome { left_bytes, address, cause })
        }
    };
}

avx512_block!(
    sum_avx512,
    "rsi",
    take four: "vpxord zmm24, zmm20, [rsi]
    vpxord zmm25, zmm20, [rsi + 64]
    vpxord zmm26, zmm20, [rsi + 128]
    vpxord zmm27, zmm20, [rsi + 192]",
    take one: "vpxord zmm24, zmm20, [rsi]",
    store masked: "",
    end: ""
);

macro_rules! avx512_copy {
    ($name:ident, $store:literal, end: $end:literal) => {
        avx512_block!(
            $name,
            "rdi",
            take four: concat!(
                "vmovdqu64 zmm24, [rsi]
                vmovdqu64 zmm25, [rsi + 64]
                vmovdqu64 zmm26, [rsi + 128]
                vmovdqu64 zmm27, [rsi + 192]\n",
                $store, " [rdi], zmm24\n",
                $store, " [rdi + 64], zmm25\n",
                $store, " [rdi + 128], zmm26\n",
                $store, " [rdi + 192], zmm27\n",
                "vpxord zmm24, zmm24, zmm20
                vpxord zmm25, zmm25, zmm20
                vpxord zmm26, zmm26, zmm20
                vpxord zmm27, zmm27, zmm20",
            ),
            take one: "vmovdqu64 zmm24, [rsi]
            vmovdqu64 [rdi], zmm24
            vpxord zmm24, zmm24, zmm20",
            store masked: "vmovdqu8 [rdi]{{k1}}, zmm24",
            end: $end
        );
    };
}

avx512_copy!(copy_sum_avx512, "vmovdqu64", end: "");
avx512_copy!(stream_sum_avx512, "vmovntdq", end: "sfence");

/// Sums the last bytes, at most 31 (63 in the scalar block), in words of 8, 4, 2 and 1 bytes.
macro_rules! tail {
    ($store_8:literal, $store_4:literal, $store_2:literal, $store_1:literal) => {
        concat!(
            "25:
            cmp rcx, 8
            jb 26f
            mov {word}, [rsi]\n",
            $store_8,
            "
            add {tail}, {word}
            adc {tail}, 0
            add rsi, 8
            add rdi, 8
            sub rcx, 8
            jmp 25b
            26:
            test cl, 4
            jz 27f
            mov {word:e}, [rsi]\n",
            $store_4,
            "
            add {tail}, {word}
            adc {tail}, 0
            add rsi, 4
            add rdi, 4
            sub rcx, 4
            27:
            test cl, 2
            jz 28f
            movzx {word:e}, word ptr [rsi]\n",
            $store_2,
            "
            add {tail}, {word}
            adc {tail}, 0
            add rsi, 2
            add rdi, 2
            sub rcx, 2
            28:
            test cl, 1
            jz 29f
            movzx {word:e}, byte ptr [rsi]\n",
            $store_1,
            "
            add {tail}, {word}
            adc {tail}, 0
            dec rcx
            29:\n"
        )
    };
}

macro_rules! avx2_block {
    (
        $name:ident, take four: $take_four:expr, take one: $take_one:literal, tail: $tail:expr,
        end: $end:literal
    ) => {
        /// # Safety
        /// As [`SumKernels`]; the machine must have what [`Avx2`] names.
        #[target_feature(enable = "avx2")]
        unsafe fn $name(from: *const u8, to: *mut u8, len_bytes: usize) -> (u64, RawOutcome) {
            let (sum, left_bytes, address, cause);
            // SAFETY: reads and, if a copy, writes the caller's ranges; registers as declared.
            unsafe {
                asm!(
                    "xor edx, edx",
                    "vmovd xmm8, {bias:e}",
                    "vpbroadcastd ymm8, xmm8",
                    "vmovd xmm9, {ones:e}",
                    "vpbroadcastd ymm9, xmm9",
                    "vpxor ymm4, ymm4, ymm4",
                    "vpxor ymm5, ymm5, ymm5",
                    "vpxor ymm6, ymm6, ymm6",
                    "vpxor ymm7, ymm7, ymm7",
                    "xor {registers:e}, {registers:e}",
                    "xor {tail:e}, {tail:e}",
                    "2:",
                    "cmp rcx, 128",
                    "jb 4f",
                    "3:",
                    $take_four,
                    "vpmaddwd ymm0, ymm0, ymm9",
                    "vpmaddwd ymm1, ymm1, ymm9",
                    "vpmaddwd ymm2, ymm2, ymm9",
                    "vpmaddwd ymm3, ymm3, ymm9",
                    "vpaddd ymm4, ymm4, ymm0",
                    "vpaddd ymm5, ymm5, ymm1",
                    "vpaddd ymm6, ymm6, ymm2",
                    "vpaddd ymm7, ymm7, ymm3",
                    "sub rsi, -128",
                    "sub rdi, -128",
                    "add {registers}, 4",
                    "add rcx, -128",
                    "cmp rcx, 128",
                    "jae 3b",
                    "4:",
                    "cmp rcx, 32",
                    "jb 25f",
                    $take_one,
                    "vpmaddwd ymm0, ymm0, ymm9",
                    "vpaddd ymm4, ymm4, ymm0",
                    "add rsi, 32",
                    "add rdi, 32",
                    "inc {registers}",
                    "sub rcx, 32",
                    "jmp 4b",
                    $tail,
                    fault_range!("2b", "29b", "29b"),
                    $end,
                    "vpaddd ymm4, ymm4, ymm5",
                    "vpaddd ymm6, ymm6, ymm7",
                    "vpaddd ymm4, ymm4, ymm6",
                    "vextracti128 xmm5, ymm4, 1",
                    "vpaddd xmm4, xmm4, xmm5",
                    "vpshufd xmm5, xmm4, 0x4e",
                    "vpaddd xmm4, xmm4, xmm5",
                    "vpshufd xmm5, xmm4, 0xb1",
                    "vpaddd xmm4, xmm4, xmm5",
                    "vmovd {word:e}, xmm4",
                    "movsxd {word}, {word:e}",
                    "vzeroupper",
                    // 16 words per register, 0x8000 each.
                    "shl {registers}, 19",
                    "add {word}, {registers}",
                    "add {word}, {tail}",
                    "adc {word}, 0",
                    bias = in(reg) BIAS,
                    ones = in(reg) ONES,
                    registers = out(reg) _,
                    tail = out(reg) _,
                    word = out(reg) sum,
                    inout("rcx") len_bytes => left_bytes,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    out("rax") address,
                    out("rdx") cause,
                    out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                    out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                    out("ymm8") _, out("ymm9") _,
                    // `vzeroupper` also clears the upper halves of these registers, which a caller
                    // built for AVX may use.
                    out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _,
                    out("ymm14") _, out("ymm15") _,
                    options(nostack),
                );
            }
            (sum, RawOutcome { left_bytes, address, cause })
        }
    };
}

avx2_block!(
    sum_avx2,
    take four: "vpxor ymm0, ymm8, [rsi]
    vpxor ymm1, ymm8, [rsi + 32]
    vpxor ymm2, ymm8, [rsi + 64]
    vpxor ymm3, ymm8, [rsi + 96]",
    take one: "vpxor ymm0, ymm8, [rsi]",
    tail: tail!("", "", "", ""),
    end: ""
);

macro_rules! avx2_copy {
    ($name:ident, $store:literal, end: $end:literal) => {
        avx2_block!(
            $name,
            take four: concat!(
                "vmovdqu ymm0, [rsi]
                vmovdqu ymm1, [rsi + 32]
                vmovdqu ymm2, [rsi + 64]
                vmovdqu ymm3, [rsi + 96]\n",
                $store, " [rdi], ymm0\n",
                $store, " [rdi + 32], ymm1\n",
                $store, " [rdi + 64], ymm2\n",
                $store, " [rdi + 96], ymm3\n",
                "vpxor ymm0, ymm0, ymm8
                vpxor ymm1, ymm1, ymm8
                vpxor ymm2, ymm2, ymm8
                vpxor ymm3, ymm3, ymm8",
            ),
            take one: "vmovdqu ymm0, [rsi]
            vmovdqu [rdi], ymm0
            vpxor ymm0, ymm0, ymm8",
            tail: tail!(
                "mov [rdi], {word}", "mov [rdi], {word:e}", "mov [rdi], {word:x}",
                "mov [rdi], {word:l}"
            ),
            end: $end
        );
    };
}

avx2_copy!(copy_sum_avx2, "vmovdqu", end: "");
avx2_copy!(stream_sum_avx2, "vmovntdq", end: "sfence");

/// Adds 64 bytes in one chain of additions with carry.
macro_rules! chain {
    ($chain:literal, $store:literal) => {
        concat!(
            "mov r8, [rsi]
            mov r9, [rsi + 8]
            mov r10, [rsi + 16]
            mov r11, [rsi + 24]
            mov rax, [rsi + 32]
            mov {a}, [rsi + 40]
            mov {b}, [rsi + 48]
            mov {word}, [rsi + 56]\n",
            $store,
            "\nadd ",
            $chain,
            ", r8\n",
            "adc ",
            $chain,
            ", r9\n",
            "adc ",
            $chain,
            ", r10\n",
            "adc ",
            $chain,
            ", r11\n",
            "adc ",
            $chain,
            ", rax\n",
            "adc ",
            $chain,
            ", {a}\n",
            "adc ",
            $chain,
            ", {b}\n",
            "adc ",
            $chain,
            ", {word}\n",
            "adc ",
            $chain,
            ", 0
            add rsi, 64
            add rdi, 64
            sub rcx, 64",
        )
    };
}

/// Two chains in turn, which the processor runs in parallel: each begins with an addition without a
/// carry-in.
macro_rules! scalar_block {
    ($name:ident, $store:literal, $tail:expr) => {
        /// # Safety
        /// As [`SumKernels`].
        unsafe fn $name(from: *const u8, to: *mut u8, len_bytes: usize) -> (u64, RawOutcome) {
            let (sum, left_bytes, address, cause);
            // SAFETY: reads and, if a copy, writes the caller's ranges; registers as declared.
            unsafe {
                asm!(
                    "xor edx, edx",
                    "xor {low:e}, {low:e}",
                    "xor {tail:e}, {tail:e}",
                    "2:",
                    "cmp rcx, 128",
                    "jb 4f",
                    "3:",
                    chain!("{low}", $store),
                    chain!("{tail}", $store),
                    "cmp rcx, 128",
                    "jae 3b",
                    "4:",
                    "cmp rcx, 64",
                    "jb 25f",
                    chain!("{low}", $store),
                    $tail,
                    fault_range!("2b", "29b", "29b"),
                    "mov {word}, {low}",
                    "add {word}, {tail}",
                    "adc {word}, 0",
                    low = out(reg) _,
                    tail = out(reg) _,
                    word = out(reg) sum,
                    a = out(reg) _,
                    b = out(reg) _,
                    inout("rcx") len_bytes => left_bytes,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    out("rax") address,
                    out("rdx") cause,
                    out("r8") _, out("r9") _, out("r10") _, out("r11") _,
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
    "mov [rdi], r8
    mov [rdi + 8], r9
    mov [rdi + 16], r10
    mov [rdi + 24], r11
    mov [rdi + 32], rax
    mov [rdi + 40], {a}
    mov [rdi + 48], {b}
    mov [rdi + 56], {word}",
    tail!("mov [rdi], {word}", "mov [rdi], {word:e}", "mov [rdi], {word:x}", "mov [rdi], {word:l}")
);

macro_rules! kernels {
    ($token:ident, $sum:ident, $copy_sum:ident, $stream_sum:ident) => {
        impl SumKernels for $token {
            #[inline(always)]
            unsafe fn sum_raw(self, from: *const u8, len_bytes: usize) -> (u64, RawOutcome) {
                let nowhere = std::ptr::null_mut();
                // SAFETY: the token proves that the instructions exist, the rest is the caller's
                // promise; the block has no stores.
                unsafe { $sum(from, nowhere, len_bytes) }
            }

            #[inline(always)]
            unsafe fn copy_sum_raw(
                self,
                from: *const u8,
                to: *mut u8,
                len_bytes: usize,
            ) -> (u64, RawOutcome) {
                // SAFETY: the token proves that the instructions exist, the rest is the caller's
                // promise.
                unsafe { $copy_sum(from, to, len_bytes) }
            }

            #[inline(always)]
            unsafe fn stream_sum_raw(
                self,
                from: *const u8,
                to: *mut u8,
                len_bytes: usize,
            ) -> (u64, RawOutcome) {
                // SAFETY: as above.
                unsafe { $stream_sum(from, to, len_bytes) }
            }
        }
    };
}

kernels!(Scalar, sum_scalar, copy_sum_scalar, copy_sum_scalar);
kernels!(Avx2, sum_avx2, copy_sum_avx2, stream_sum_avx2);
kernels!(Avx512, sum_avx512, copy_sum_avx512, stream_sum_avx512);
