//! CRCs for x86-64.
//!
//! With SSE4.2 (the token [`Avx2`]): the CRC32 instruction, which takes three cycles and can be
//! begun in each, on three streams side by side, over bytes that were brought into a buffer.
//!
//! With VPCLMULQDQ ([`Avx512`]), copying: one block of assembly that loads, stores and folds 256 bytes a turn
//! in four registers, of which each is carried over the next 256 bytes by two carry-less
//! multiplications ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! Gopal et al., Intel 2009). What is left in the end goes through the CRC32 instruction, which
//! also does the reduction. Bytes of our own that are not copied need not be taken in order: there
//! the two ways run side by side, on units of the core that do not wait for each other.

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi32_si128,
    _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x, _mm_xor_si128,
    _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32,
    _mm512_loadu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use longshore_mem::copy::CopyFault;
use longshore_mem::fault::RawOutcome;
use longshore_mem::fault_range;
use longshore_mem::isa::{Avx2, Avx512, Scalar};

use super::CrcKernels;
use super::polynomial::{fold_factors, power_of_x};
use super::table::crc_by_table;
use crate::through_buffer::copy_through_buffer;

impl CrcKernels for Scalar {
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
        crc_by_table(register, bytes)
    }
}

impl CrcKernels for Avx2 {
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
        // SAFETY: the token proves the instructions.
        unsafe { crc_by_streams(register, bytes) }
    }
}

impl CrcKernels for Avx512 {
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
        // SAFETY: the token proves the instructions.
        let (register, bytes) = unsafe { side_by_side::<64>(register, bytes) };
        // SAFETY: as above.
        let (register, bytes) = unsafe { side_by_side::<8>(register, bytes) };
        let (from, nowhere) = (bytes.as_ptr(), std::ptr::null_mut());
        // SAFETY: the token proves the instructions; the bytes are borrowed, the block has no
        // stores.
        unsafe { crc_avx512(register, from, nowhere, bytes.len()) }.0
    }

    #[inline(always)]
    unsafe fn copy_crc(
        self,
        register: &mut u32,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        let (done, outcome) = match to {
            // SAFETY: the token proves the instructions, the rest is the caller's promise.
            Some(to) => unsafe { copy_crc_avx512(*register, from, to, len_bytes) },
            // SAFETY: as above; the block has no stores.
            None => unsafe { crc_avx512(*register, from, std::ptr::null_mut(), len_bytes) },
        };
        *register = done;
        if outcome.fault().is_none() {
            return Ok(());
        }
        // On to the exact byte.
        let done_bytes = len_bytes - outcome.left_bytes;
        // SAFETY: within the range.
        let from = unsafe { from.add(done_bytes) };
        // SAFETY: as above.
        let to = to.map(|to| unsafe { to.add(done_bytes) });
        let absorb = |bytes: &[u8]| *register = self.crc_own(*register, bytes);
        // SAFETY: the caller's promise.
        let rest = unsafe { copy_through_buffer(self, from, to, outcome.left_bytes, absorb) };
        rest.map_err(|stop| CopyFault { done_bytes: done_bytes + stop.done_bytes, ..stop })
    }
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
fn crc_by_streams(register: u32, bytes: &[u8]) -> u32 {
    let (register, bytes) = three_streams::<640>(register, bytes);
    let (register, bytes) = three_streams::<80>(register, bytes);
    let (words, rest) = bytes.as_chunks();
    let register = words.iter().fold(u64::from(register), |register, word| {
        _mm_crc32_u64(register, u64::from_le_bytes(*word))
    });
    rest.iter().fold(register as u32, |register, byte| _mm_crc32_u8(register, *byte))
}

/// Takes in as many pieces of three times `STREAM` bytes as there are; the rest.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn three_streams<const STREAM: usize>(mut register: u32, bytes: &[u8]) -> (u32, &[u8]) {
    let mut pieces = bytes.chunks_exact(3 * STREAM);
    for piece in &mut pieces {
        let (one, rest) = piece.split_at(STREAM);
        let (two, three) = rest.split_at(STREAM);
        let mut registers = [u64::from(register), 0, 0];
        let words = one.as_chunks().0.iter().zip(two.as_chunks().0).zip(three.as_chunks().0);
        for ((one, two), three) in words {
            registers[0] = _mm_crc32_u64(registers[0], u64::from_le_bytes(*one));
            registers[1] = _mm_crc32_u64(registers[1], u64::from_le_bytes(*two));
            registers[2] = _mm_crc32_u64(registers[2], u64::from_le_bytes(*three));
        }
        let carried = carry(registers[0], const { power_of_x(16 * STREAM as u32 - 33) })
            ^ carry(registers[1], const { power_of_x(8 * STREAM as u32 - 33) });
        register = (_mm_crc32_u64(0, carried) ^ registers[2]) as u32;
    }
    (register, pieces.remainder())
}

/// Bytes of a turn that are folded, and those that each of three streams takes in meanwhile: what
/// the units of a Zen 4 core do in the same 16 cycles (eight multiplications, one in two cycles; 15
/// CRC32, one a cycle).
const FOLDED_BYTES: usize = 256;
const STREAM_BYTES: usize = 40;

/// Takes in as many pieces of `TURNS` turns as there are; the rest. The first part of a piece is
/// folded, the three after it go through the CRC32 instruction.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,sse4.2,pclmulqdq")]
fn side_by_side<const TURNS: usize>(mut register: u32, bytes: &[u8]) -> (u32, &[u8]) {
    let mut pieces = bytes.chunks_exact(TURNS * (FOLDED_BYTES + 3 * STREAM_BYTES));
    for piece in &mut pieces {
        let (folded, rest) = piece.split_at(TURNS * FOLDED_BYTES);
        let (one, rest) = rest.split_at(TURNS * STREAM_BYTES);
        let (two, three) = rest.split_at(TURNS * STREAM_BYTES);
        let factors = factors_of(&FACTORS[0]);
        let mut folds: Option<[__m512i; 4]> = None;
        let mut registers = [0; 3];
        let turns = folded.as_chunks::<FOLDED_BYTES>().0.iter();
        let streams = one.as_chunks().0.iter().zip(two.as_chunks().0).zip(three.as_chunks().0);
        for (data, ((one, two), three)) in turns.zip(streams) {
            let data = load_four(data);
            folds = Some(match folds {
                None => {
                    let [first, second, third, fourth] = data;
                    let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(register as i32));
                    [_mm512_xor_si512(first, start), second, third, fourth]
                }
                Some([first, second, third, fourth]) => [
                    fold_over(first, factors, data[0]),
                    fold_over(second, factors, data[1]),
                    fold_over(third, factors, data[2]),
                    fold_over(fourth, factors, data[3]),
                ],
            });
            registers[0] = crc_of_stream(registers[0], one);
            registers[1] = crc_of_stream(registers[1], two);
            registers[2] = crc_of_stream(registers[2], three);
        }
        let folded = folds.map_or(u64::from(register), |folds| reduce(folds));
        const STREAM_BITS: u32 = 8 * STREAM_BYTES as u32;
        let carried = carry(folded, const { power_of_x(3 * STREAM_BITS * TURNS as u32 - 33) })
            ^ carry(registers[0], const { power_of_x(2 * STREAM_BITS * TURNS as u32 - 33) })
            ^ carry(registers[1], const { power_of_x(STREAM_BITS * TURNS as u32 - 33) });
        register = (_mm_crc32_u64(0, carried) ^ registers[2]) as u32;
    }
    (register, pieces.remainder())
}

#[target_feature(enable = "sse4.2")]
fn crc_of_stream(register: u64, bytes: &[u8; STREAM_BYTES]) -> u64 {
    bytes
        .as_chunks()
        .0
        .iter()
        .fold(register, |register, word| _mm_crc32_u64(register, u64::from_le_bytes(*word)))
}

#[target_feature(enable = "avx512f")]
fn load_four(bytes: &[u8; FOLDED_BYTES]) -> [__m512i; 4] {
    let at = |vector: usize| {
        // SAFETY: a vector of 64 bytes, one of the four in the array, at any alignment.
        unsafe { _mm512_loadu_si512(bytes[64 * vector..][..64].as_ptr().cast()) }
    };
    [at(0), at(1), at(2), at(3)]
}

#[target_feature(enable = "avx512f")]
fn factors_of(factors: &[u64; 2]) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x(factors[1] as i64, factors[0] as i64))
}

/// A register carried over a distance by its factors, with new data in.
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_over(register: __m512i, factors: __m512i, data: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(register, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(register, factors);
    _mm512_ternarylogic_epi64::<0x96>(low, high, data)
}

/// Four registers into one, its four lanes into one, and that through the CRC32 instruction.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.2")]
fn reduce([first, second, third, fourth]: [__m512i; 4]) -> u64 {
    let factors = factors_of(&FACTORS[1]);
    let folded = fold_over(first, factors, second);
    let folded = fold_over(folded, factors, third);
    let folded = fold_over(folded, factors, fourth);
    let lanes = [
        _mm512_extracti32x4_epi32::<0>(folded),
        _mm512_extracti32x4_epi32::<1>(folded),
        _mm512_extracti32x4_epi32::<2>(folded),
        _mm512_extracti32x4_epi32::<3>(folded),
    ];
    let factors = _mm_set_epi64x(FACTORS[2][1] as i64, FACTORS[2][0] as i64);
    let [lane, rest @ ..] = lanes;
    let lane = rest.into_iter().fold(lane, |lane, next| {
        let low = _mm_clmulepi64_si128::<0x00>(lane, factors);
        let high = _mm_clmulepi64_si128::<0x11>(lane, factors);
        _mm_xor_si128(_mm_xor_si128(low, high), next)
    });
    let register = _mm_crc32_u64(0, _mm_cvtsi128_si64(lane) as u64);
    _mm_crc32_u64(register, _mm_extract_epi64::<1>(lane) as u64)
}

/// A register times `factor`: in 64 bits reflected one place too low, which, with the 32 places of
/// the CRC32 instruction, is why 33 places are taken off the factor's power.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn carry(register: u64, factor: u32) -> u64 {
    let register = _mm_cvtsi64_si128(register as i64);
    let factor = _mm_cvtsi64_si128(i64::from(factor));
    _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(register, factor)) as u64
}

/// The factors for 2048, 512 and 128 bits, in the block's order.
static FACTORS: [[u64; 2]; 3] = [fold_factors(2048), fold_factors(512), fold_factors(128)];

/// A register carried over a distance by the factors in `$by`, with new data in: clobbers zmm26.
macro_rules! fold {
    ($register:literal, $by:literal, $data:literal) => {
        concat!(
            "vpclmulqdq zmm26, ",
            $register,
            ", ",
            $by,
            ", 0x11\n",
            "vpclmulqdq ",
            $register,
            ", ",
            $register,
            ", ",
            $by,
            ", 0x00\n",
            "vpternlogq ",
            $register,
            ", zmm26, ",
            $data,
            ", 0x96\n",
        )
    };
}

/// One lane of 128 bits, carried over the next.
macro_rules! fold_lane {
    ($lane:literal) => {
        concat!(
            "vextracti32x4 xmm21, zmm16, ",
            $lane,
            "\n",
            "vpclmulqdq xmm22, xmm20, xmm25, 0x11\n",
            "vpclmulqdq xmm20, xmm20, xmm25, 0x00\n",
            "vpternlogq xmm20, xmm22, xmm21, 0x96\n",
        )
    };
}

macro_rules! avx512_block {
    (
        $name:ident, $store_four:literal, $store_one:literal,
        $store_8:literal, $store_4:literal, $store_2:literal, $store_1:literal
    ) => {
        /// The register after the bytes done.
        ///
        /// # Safety
        /// As [`copy`](longshore_mem::copy::copy); the machine must have what [`Avx512`] names.
        #[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,sse4.2")]
        unsafe fn $name(
            register: u32,
            from: *const u8,
            to: *mut u8,
            len_bytes: usize,
        ) -> (u32, RawOutcome) {
            let (done, left_bytes, address, cause): (u64, usize, usize, usize);
            // SAFETY: reads and, if a copy, writes the caller's ranges, and reads the factors;
            // registers as declared.
            unsafe {
                asm!(
                    "xor edx, edx",
                    "cmp rcx, 256",
                    "jb 25f",
                    "vbroadcasti32x4 zmm23, [{factors}]",
                    "vbroadcasti32x4 zmm24, [{factors} + 16]",
                    "vmovdqu64 xmm25, [{factors} + 32]",
                    // The first 256 bytes, with the register in the first 32 bits.
                    "2:",
                    "vmovdqu64 zmm27, [rsi]",
                    "vmovdqu64 zmm28, [rsi + 64]",
                    "vmovdqu64 zmm29, [rsi + 128]",
                    "vmovdqu64 zmm30, [rsi + 192]",
                    $store_four,
                    "3:",
                    fault_range!("2b", "3b", "29f"),
                    "vmovd xmm16, {crc:e}",
                    "vpxorq zmm16, zmm16, zmm27",
                    "vmovdqa64 zmm17, zmm28",
                    "vmovdqa64 zmm18, zmm29",
                    "vmovdqa64 zmm19, zmm30",
                    "add rsi, 256",
                    "add rdi, 256",
                    "sub rcx, 256",
                    "cmp rcx, 256",
                    "jb 5f",
                    "4:",
                    "vmovdqu64 zmm27, [rsi]",
                    "vmovdqu64 zmm28, [rsi + 64]",
                    "vmovdqu64 zmm29, [rsi + 128]",
                    "vmovdqu64 zmm30, [rsi + 192]",
                    $store_four,
                    fold!("zmm16", "zmm23", "zmm27"),
                    fold!("zmm17", "zmm23", "zmm28"),
                    fold!("zmm18", "zmm23", "zmm29"),
                    fold!("zmm19", "zmm23", "zmm30"),
                    "add rsi, 256",
                    "add rdi, 256",
                    "sub rcx, 256",
                    "cmp rcx, 256",
                    "jae 4b",
                    "5:",
                    fault_range!("4b", "5b", "5b"),
                    // Four registers into one.
                    fold!("zmm16", "zmm24", "zmm17"),
                    fold!("zmm16", "zmm24", "zmm18"),
                    fold!("zmm16", "zmm24", "zmm19"),
                    "test edx, edx",
                    "jnz 7f",
                    "6:",
                    "cmp rcx, 64",
                    "jb 7f",
                    "vmovdqu64 zmm27, [rsi]",
                    $store_one,
                    fold!("zmm16", "zmm24", "zmm27"),
                    "add rsi, 64",
                    "add rdi, 64",
                    "sub rcx, 64",
                    "jmp 6b",
                    "7:",
                    fault_range!("6b", "7b", "7b"),
                    // Four lanes into one, and that through the CRC32 instruction.
                    "vmovdqa64 xmm20, xmm16",
                    fold_lane!("1"),
                    fold_lane!("2"),
                    fold_lane!("3"),
                    "xor {crc:e}, {crc:e}",
                    "vmovq {word}, xmm20",
                    "crc32 {crc}, {word}",
                    "vpshufd xmm20, xmm20, 0xee",
                    "vmovq {word}, xmm20",
                    "crc32 {crc}, {word}",
                    "test edx, edx",
                    "jnz 29f",
                    "25:",
                    "cmp rcx, 8",
                    "jb 26f",
                    "mov {word}, [rsi]",
                    $store_8,
                    "crc32 {crc}, {word}",
                    "add rsi, 8",
                    "add rdi, 8",
                    "sub rcx, 8",
                    "jmp 25b",
                    "26:",
                    "test cl, 4",
                    "jz 27f",
                    "mov {word:e}, [rsi]",
                    $store_4,
                    "crc32 {crc:e}, {word:e}",
                    "add rsi, 4",
                    "add rdi, 4",
                    "sub rcx, 4",
                    "27:",
                    "test cl, 2",
                    "jz 28f",
                    "movzx {word:e}, word ptr [rsi]",
                    $store_2,
                    "crc32 {crc:e}, {word:x}",
                    "add rsi, 2",
                    "add rdi, 2",
                    "sub rcx, 2",
                    "28:",
                    "test cl, 1",
                    "jz 29f",
                    "movzx {word:e}, byte ptr [rsi]",
                    $store_1,
                    "crc32 {crc:e}, {word:l}",
                    "dec rcx",
                    "29:",
                    fault_range!("25b", "29b", "29b"),
                    factors = in(reg) FACTORS.as_ptr(),
                    crc = inout(reg) u64::from(register) => done,
                    word = out(reg) _,
                    inout("rcx") len_bytes => left_bytes,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    out("rax") address,
                    out("rdx") cause,
                    out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                    out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                    out("zmm28") _, out("zmm29") _, out("zmm30") _,
                    options(nostack),
                );
            }
            (done as u32, RawOutcome { left_bytes, address, cause })
        }
    };
}

avx512_block!(crc_avx512, "", "", "", "", "", "");
avx512_block!(
    copy_crc_avx512,
    "vmovdqu64 [rdi], zmm27
    vmovdqu64 [rdi + 64], zmm28
    vmovdqu64 [rdi + 128], zmm29
    vmovdqu64 [rdi + 192], zmm30",
    "vmovdqu64 [rdi], zmm27",
    "mov [rdi], {word}",
    "mov [rdi], {word:e}",
    "mov [rdi], {word:x}",
    "mov [rdi], {word:l}"
);
