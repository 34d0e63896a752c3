//! CRCs for x86-64.
//!
//! A core has two units that can compute a CRC at the same time. One multiplies without carry,
//! which folds a register of data into data behind it ("Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ Instruction", Gopal et al., Intel 2009). The other executes the
//! CRC32 instruction: one per cycle, with a latency of three cycles. Each iteration (turn)
//! therefore takes some words and four vectors. The words go through the CRC32 instruction, from
//! zero, and the result is XORed into the first 32 bits of the vector behind them, which is where
//! the CRC register would have been. The vectors are folded over the length of one iteration. So
//! the words of an iteration do not wait for those of the one before, the bytes are processed in
//! order, and a fault ends a block after whole iterations.
//!
//! The best number of words depends on the other work of an iteration, because both units must stay
//! busy: on a Zen 4 core, a multiplication takes two cycles, for 16 bytes as well as for 64.

use std::arch::asm;

use longshore_mem::copy::{CopyFault, STREAM_MIN_BYTES};
use longshore_mem::fault::RawOutcome;
use longshore_mem::fault_range;
use longshore_mem::isa::{Avx2, Avx512, Scalar};

use super::polynomial::fold_factors;
use super::table::crc_by_table;
use crate::kernels::CrcKernels;
use crate::kernels::LINE_BYTES;
use crate::through_buffer::copy_through_buffer;

impl CrcKernels for Scalar {
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
        crc_by_table(register, bytes)
    }
}

/// Returns `true` if a copy uses non-temporal stores and its target is aligned for them.
fn streams(to: *mut u8, len_bytes: usize) -> bool {
    len_bytes >= STREAM_MIN_BYTES - LINE_BYTES && to.addr().is_multiple_of(LINE_BYTES)
}

/// Continues after a fault, up to the exact byte that faults.
///
/// # Safety
/// As [`copy`](longshore_mem::copy::copy).
#[cold]
#[inline(never)]
unsafe fn go_on<T: CrcKernels>(
    token: T,
    register: &mut u32,
    from: *const u8,
    to: Option<*mut u8>,
    len_bytes: usize,
) -> Result<(), CopyFault> {
    let absorb = |bytes: &[u8]| *register = token.crc_own(*register, bytes);
    // SAFETY: the caller's promise.
    unsafe { copy_through_buffer(token, from, to, len_bytes, absorb) }
}

/// Implements `CrcKernels` by the blocks of one instruction set.
macro_rules! kernels {
    ($token:ident, $own:ident, $read:ident, $copy:ident, $stream:ident) => {
        impl CrcKernels for $token {
            fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
                let (from, nowhere) = (bytes.as_ptr(), std::ptr::null_mut());
                // SAFETY: the token proves the instructions; the bytes are borrowed, and the block
                // has no stores.
                unsafe { $own(register, from, nowhere, bytes.len()) }.0
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
                    Some(to) if streams(to, len_bytes) => unsafe {
                        $stream(*register, from, to, len_bytes)
                    },
                    // SAFETY: as above.
                    Some(to) => unsafe { $copy(*register, from, to, len_bytes) },
                    // SAFETY: as above; the block has no stores.
                    None => unsafe { $read(*register, from, std::ptr::null_mut(), len_bytes) },
                };
                *register = done;
                if outcome.is_complete() {
                    return Ok(());
                }
                let done_bytes = len_bytes - outcome.left_bytes;
                // SAFETY: within the range.
                let from = unsafe { from.add(done_bytes) };
                // SAFETY: as above.
                let to = to.map(|to| unsafe { to.add(done_bytes) });
                // SAFETY: the caller's promise.
                unsafe { go_on(self, register, from, to, outcome.left_bytes) }
                    .map_err(|stop| CopyFault { done_bytes: done_bytes + stop.done_bytes, ..stop })
            }
        }
    };
}

kernels!(Avx2, own_avx2, read_avx2, copy_avx2, stream_avx2);
kernels!(Avx512, own_avx512, read_avx512, copy_avx512, stream_avx512);

/// The last bytes of a block: at most seven words and seven bytes.
macro_rules! tail {
    (read) => {
        tail!(
            "crc32 {crc}, qword ptr [rsi]",
            "crc32 {crc:e}, dword ptr [rsi]",
            "crc32 {crc:e}, word ptr [rsi]",
            "crc32 {crc:e}, byte ptr [rsi]"
        )
    };
    (copy) => {
        tail!(
            "mov rax, [rsi]
            mov [rdi], rax
            crc32 {crc}, rax",
            "mov eax, [rsi]
            mov [rdi], eax
            crc32 {crc:e}, eax",
            "movzx eax, word ptr [rsi]
            mov [rdi], ax
            crc32 {crc:e}, ax",
            "movzx eax, byte ptr [rsi]
            mov [rdi], al
            crc32 {crc:e}, al"
        )
    };
    ($take_8:literal, $take_4:literal, $take_2:literal, $take_1:literal) => {
        concat!(
            "25:
            cmp rcx, 8
            jb 26f\n",
            $take_8,
            "
            add rsi, 8
            add rdi, 8
            sub rcx, 8
            jmp 25b
            26:
            test cl, 4
            jz 27f\n",
            $take_4,
            "
            add rsi, 4
            add rdi, 4
            sub rcx, 4
            27:
            test cl, 2
            jz 28f\n",
            $take_2,
            "
            add rsi, 2
            add rdi, 2
            sub rcx, 2
            28:
            test cl, 1
            jz 29f\n",
            $take_1,
            "
            dec rcx
            29:\n"
        )
    };
}

/// The folding factors of a block, in the order in which it reads them. They fold a vector of
/// `vector_bytes` over an iteration of `turn_bytes`; a vector over the next three, two and one
/// vectors of an iteration, which begin `stride_bytes` apart; a vector over the vector behind it;
/// and a lane of a register over the next three, two and one lanes.
const fn factors(turn_bytes: u32, stride_bytes: u32, vector_bytes: u32) -> [[u64; 2]; 9] {
    let stride = 8 * stride_bytes;
    [
        fold_factors(8 * turn_bytes),
        fold_factors(3 * stride),
        fold_factors(2 * stride),
        fold_factors(stride),
        fold_factors(8 * vector_bytes),
        fold_factors(3 * 128),
        fold_factors(2 * 128),
        fold_factors(128),
        [0, 0],
    ]
}

/// Takes the words at the offsets `$at` through the CRC32 instruction.
macro_rules! words {
    (read, $at:literal) => {
        concat!(".irp at,", $at, "\ncrc32 r8, qword ptr [rsi + \\at]\n.endr\n")
    };
    ($store:literal, $at:literal) => {
        concat!(
            ".irp at,",
            $at,
            "\n",
            "mov rax, [rsi + \\at]\n",
            $store,
            " [rdi + \\at], rax\n",
            "crc32 r8, rax\n",
            ".endr\n"
        )
    };
}

/// Loads the vector at the offset `$at`, and stores it if this is a copy.
macro_rules! vector {
    (read, $load:literal $register:literal, $at:literal) => {
        concat!($load, " ", $register, ", [rsi + ", $at, "]\n")
    };
    ($store:literal, $load:literal $register:literal, $at:literal) => {
        concat!(
            $load,
            " ",
            $register,
            ", [rsi + ",
            $at,
            "]\n",
            $store,
            " [rdi + ",
            $at,
            "], ",
            $register,
            "\n",
        )
    };
}

/// Folds a register by the factors in `$by`, and adds new data.
macro_rules! fold_512 {
    ($register:literal, $by:literal, $data:literal) => {
        concat!(
            "vpclmulqdq zmm21, ",
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
            ", zmm21, ",
            $data,
            ", 0x96\n",
        )
    };
}

/// A block. `$turn` is an iteration without the instructions that advance the pointers. In a block
/// that can fault (`$faults`), all loads and stores of an iteration come before the first change of
/// an accumulator.
macro_rules! avx512_block {
    (
        $name:ident, words: $words_bytes:literal, turn: $turn:expr, vector: $vector:tt,
        tail: $tail:tt, faults: $faults:expr, end: $end:literal
    ) => {
        /// Returns the CRC register after the bytes that were done.
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
            const TURN_BYTES: u32 = $words_bytes + 4 * 64;
            static FACTORS: [[u64; 2]; 9] = factors(TURN_BYTES, 64, 64);
            let (done, left_bytes, address, cause): (u64, usize, usize, usize);
            // SAFETY: reads and, if a copy, writes the caller's ranges, and reads the factors;
            // registers as declared.
            unsafe {
                asm!(
                    "xor edx, edx",
                    "cmp rcx, 64",
                    "jb 25f",
                    "vpxorq zmm16, zmm16, zmm16",
                    "vbroadcasti32x4 zmm22, [{factors} + 64]",
                    "cmp rcx, {turn}",
                    "jb 5f",
                    "vpxorq zmm17, zmm17, zmm17",
                    "vpxorq zmm18, zmm18, zmm18",
                    "vpxorq zmm19, zmm19, zmm19",
                    "vbroadcasti32x4 zmm23, [{factors}]",
                    "2:",
                    $turn,
                    "xor {crc:e}, {crc:e}",
                    "add rsi, {turn}",
                    "add rdi, {turn}",
                    "sub rcx, {turn}",
                    "cmp rcx, {turn}",
                    "jae 2b",
                    "4:",
                    // Fold four registers into one.
                    "vbroadcasti32x4 zmm24, [{factors} + 16]",
                    "vbroadcasti32x4 zmm25, [{factors} + 32]",
                    fold_512!("zmm18", "zmm22", "zmm19"),
                    fold_512!("zmm17", "zmm25", "zmm18"),
                    fold_512!("zmm16", "zmm24", "zmm17"),
                    "test edx, edx",
                    "jnz 7f",
                    "cmp rcx, 64",
                    "jb 7f",
                    // One vector per iteration, without words.
                    "5:",
                    vector!($vector, "vmovdqu64" "zmm24", "0"),
                    "vmovd xmm20, {crc:e}",
                    "vpxorq zmm24, zmm24, zmm20",
                    fold_512!("zmm16", "zmm22", "zmm24"),
                    "xor {crc:e}, {crc:e}",
                    "add rsi, 64",
                    "add rdi, 64",
                    "sub rcx, 64",
                    "cmp rcx, 64",
                    "jae 5b",
                    "7:",
                    // Fold four lanes into one, and take that through the CRC32 instruction.
                    "vmovdqu64 zmm24, [{factors} + 80]",
                    "vextracti32x4 xmm25, zmm16, 3",
                    "vpclmulqdq zmm17, zmm16, zmm24, 0x11",
                    "vpclmulqdq zmm16, zmm16, zmm24, 0x00",
                    "vpxorq zmm16, zmm16, zmm17",
                    "vextracti64x4 ymm17, zmm16, 1",
                    "vpxorq ymm16, ymm16, ymm17",
                    "vextracti32x4 xmm17, ymm16, 1",
                    "vpternlogq xmm16, xmm17, xmm25, 0x96",
                    "xor r8d, r8d",
                    "vmovq rax, xmm16",
                    "crc32 r8, rax",
                    "vpshufd xmm16, xmm16, 0xee",
                    "vmovq rax, xmm16",
                    "crc32 r8, rax",
                    "xor {crc:e}, r8d",
                    "test edx, edx",
                    "jnz 29f",
                    tail!($tail),
                    $faults,
                    $end,
                    factors = in(reg) FACTORS.as_ptr(),
                    crc = inout(reg) u64::from(register) => done,
                    turn = const TURN_BYTES,
                    inout("rcx") len_bytes => left_bytes,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    out("rax") address,
                    out("rdx") cause,
                    out("r8") _,
                    out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                    out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                    options(nostack),
                );
            }
            (done as u32, RawOutcome { left_bytes, address, cause })
        }
    };
}

/// The ranges in which a block can fault. The iteration or vector that faults is not done, and the
/// rest of the block is skipped.
macro_rules! faults {
    () => {
        concat!(
            fault_range!("2b", "4b", "4b"),
            fault_range!("5b", "7b", "7b"),
            fault_range!("25b", "29b", "29b"),
        )
    };
}

// Private memory does not fault, so an iteration may change registers before it has read all bytes:
// words and vectors alternate, and neither unit waits for the other.
avx512_block!(
    own_avx512,
    words: 104,
    turn: concat!(
        "mov r8d, {crc:e}\n",
        words!(read, "0,8,16,24"),
        vector!(read, "vmovdqu64" "zmm24", "104"),
        fold_512!("zmm16", "zmm23", "zmm24"),
        words!(read, "32,40,48,56"),
        vector!(read, "vmovdqu64" "zmm25", "168"),
        fold_512!("zmm17", "zmm23", "zmm25"),
        words!(read, "64,72,80,88"),
        vector!(read, "vmovdqu64" "zmm26", "232"),
        fold_512!("zmm18", "zmm23", "zmm26"),
        words!(read, "96"),
        vector!(read, "vmovdqu64" "zmm27", "296"),
        fold_512!("zmm19", "zmm23", "zmm27"),
        "vmovd xmm20, r8d
        vpxorq zmm16, zmm16, zmm20\n",
    ),
    vector: read,
    tail: read,
    faults: "",
    end: ""
);

// Storing a word costs as much time as the CRC32 instruction saves, so these blocks have vectors
// only.
macro_rules! avx512_fused {
    ($name:ident, $vector:tt, tail: $tail:tt, end: $end:literal) => {
        avx512_block!(
            $name,
            words: 0,
            turn: concat!(
                vector!($vector, "vmovdqu64" "zmm24", "0"),
                vector!($vector, "vmovdqu64" "zmm25", "64"),
                vector!($vector, "vmovdqu64" "zmm26", "128"),
                vector!($vector, "vmovdqu64" "zmm27", "192"),
                "vmovd xmm20, {crc:e}
                vpxorq zmm24, zmm24, zmm20\n",
                fold_512!("zmm16", "zmm23", "zmm24"),
                fold_512!("zmm17", "zmm23", "zmm25"),
                fold_512!("zmm18", "zmm23", "zmm26"),
                fold_512!("zmm19", "zmm23", "zmm27"),
            ),
            vector: $vector,
            tail: $tail,
            faults: faults!(),
            end: $end
        );
    };
}

avx512_fused!(read_avx512, read, tail: read, end: "");
avx512_fused!(copy_avx512, "vmovdqu64", tail: copy, end: "");
avx512_fused!(stream_avx512, "vmovntdq", tail: copy, end: "sfence");

/// As `fold_512`.
macro_rules! fold_128 {
    ($register:literal, $by:literal, $data:literal) => {
        concat!(
            "vpclmulqdq xmm13, ",
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
            "vpxor xmm13, xmm13, ",
            $data,
            "\n",
            "vpxor ",
            $register,
            ", ",
            $register,
            ", xmm13\n",
        )
    };
}

/// As `avx512_block`, with vectors of 16 bytes.
macro_rules! avx2_block {
    (
        $name:ident, words: $words_bytes:literal, turn: $turn:expr, vector: $vector:tt,
        tail: $tail:tt, faults: $faults:expr, end: $end:literal
    ) => {
        /// Returns the CRC register after the bytes that were done.
        ///
        /// # Safety
        /// As [`copy`](longshore_mem::copy::copy); the machine must have what [`Avx2`] names.
        #[target_feature(enable = "avx2,pclmulqdq,sse4.2")]
        unsafe fn $name(
            register: u32,
            from: *const u8,
            to: *mut u8,
            len_bytes: usize,
        ) -> (u32, RawOutcome) {
            const TURN_BYTES: u32 = $words_bytes + 4 * 16;
            static FACTORS: [[u64; 2]; 9] = factors(TURN_BYTES, TURN_BYTES / 4, 16);
            let (done, left_bytes, address, cause): (u64, usize, usize, usize);
            // SAFETY: reads and, if a copy, writes the caller's ranges, and reads the factors;
            // registers as declared.
            unsafe {
                asm!(
                    "xor edx, edx",
                    "cmp rcx, 16",
                    "jb 25f",
                    "vpxor xmm0, xmm0, xmm0",
                    "vmovdqu xmm10, [{factors} + 64]",
                    "cmp rcx, {turn}",
                    "jb 5f",
                    "vpxor xmm1, xmm1, xmm1",
                    "vpxor xmm2, xmm2, xmm2",
                    "vpxor xmm3, xmm3, xmm3",
                    "vmovdqu xmm11, [{factors}]",
                    "2:",
                    $turn,
                    "xor {crc:e}, {crc:e}",
                    "add rsi, {turn}",
                    "add rdi, {turn}",
                    "sub rcx, {turn}",
                    "cmp rcx, {turn}",
                    "jae 2b",
                    "4:",
                    // Fold four registers into one.
                    "vmovdqu xmm4, [{factors} + 16]",
                    "vmovdqu xmm5, [{factors} + 32]",
                    "vmovdqu xmm6, [{factors} + 48]",
                    fold_128!("xmm2", "xmm6", "xmm3"),
                    fold_128!("xmm1", "xmm5", "xmm2"),
                    fold_128!("xmm0", "xmm4", "xmm1"),
                    "test edx, edx",
                    "jnz 7f",
                    "cmp rcx, 16",
                    "jb 7f",
                    // One vector per iteration, without words.
                    "5:",
                    vector!($vector, "vmovdqu" "xmm4", "0"),
                    "vmovd xmm12, {crc:e}",
                    "vpxor xmm4, xmm4, xmm12",
                    fold_128!("xmm0", "xmm10", "xmm4"),
                    "xor {crc:e}, {crc:e}",
                    "add rsi, 16",
                    "add rdi, 16",
                    "sub rcx, 16",
                    "cmp rcx, 16",
                    "jae 5b",
                    "7:",
                    // Take the rest through the CRC32 instruction.
                    "xor r8d, r8d",
                    "vmovq rax, xmm0",
                    "crc32 r8, rax",
                    "vpshufd xmm0, xmm0, 0xee",
                    "vmovq rax, xmm0",
                    "crc32 r8, rax",
                    "xor {crc:e}, r8d",
                    "test edx, edx",
                    "jnz 29f",
                    tail!($tail),
                    $faults,
                    $end,
                    factors = in(reg) FACTORS.as_ptr(),
                    crc = inout(reg) u64::from(register) => done,
                    turn = const TURN_BYTES,
                    inout("rcx") len_bytes => left_bytes,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    out("rax") address,
                    out("rdx") cause,
                    out("r8") _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                    options(nostack),
                );
            }
            (done as u32, RawOutcome { left_bytes, address, cause })
        }
    };
}

/// Takes words and the vector behind them, with the CRC of the words XORed into the vector.
macro_rules! group_128 {
    ($word:tt, $words:literal, $vector:tt, $register:literal, $at:literal) => {
        concat!(
            words!($word, $words),
            vector!($vector, "vmovdqu" $register, $at),
            "vmovd xmm12, r8d\n",
            "vpxor ", $register, ", ", $register, ", xmm12\n",
        )
    };
}

macro_rules! avx2_fused {
    ($name:ident, $word:tt, $vector:tt, tail: $tail:tt, faults: $faults:expr, end: $end:literal) => {
        avx2_block!(
            $name,
            words: 128,
            turn: concat!(
                "mov r8d, {crc:e}\n",
                group_128!($word, "0,8,16,24", $vector, "xmm4", "32"),
                "xor r8d, r8d\n",
                group_128!($word, "48,56,64,72", $vector, "xmm5", "80"),
                "xor r8d, r8d\n",
                group_128!($word, "96,104,112,120", $vector, "xmm6", "128"),
                "xor r8d, r8d\n",
                group_128!($word, "144,152,160,168", $vector, "xmm7", "176"),
                fold_128!("xmm0", "xmm11", "xmm4"),
                fold_128!("xmm1", "xmm11", "xmm5"),
                fold_128!("xmm2", "xmm11", "xmm6"),
                fold_128!("xmm3", "xmm11", "xmm7"),
            ),
            vector: $vector,
            tail: $tail,
            faults: $faults,
            end: $end
        );
    };
}

avx2_fused!(own_avx2, read, read, tail: read, faults: "", end: "");
avx2_fused!(read_avx2, read, read, tail: read, faults: faults!(), end: "");
avx2_fused!(copy_avx2, "mov", "vmovdqu", tail: copy, faults: faults!(), end: "");
avx2_fused!(stream_avx2, "movnti", "vmovntdq", tail: copy, faults: faults!(), end: "sfence");
