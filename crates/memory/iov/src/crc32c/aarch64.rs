//! CRCs for AArch64, by the CRC32C instructions on bytes in a buffer.

use std::arch::aarch64::{__crc32cb, __crc32cd};

use longshore_mem::isa::{Neon, Scalar};

use super::table::crc_by_table;
use crate::kernels::CrcKernels;

impl CrcKernels for Scalar {
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
        crc_by_table(register, bytes)
    }
}

impl CrcKernels for Neon {
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32 {
        // SAFETY: the token proves that the instructions exist.
        unsafe { crc_by_instruction(register, bytes) }
    }
}

#[target_feature(enable = "crc")]
fn crc_by_instruction(register: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let register = words
        .iter()
        .fold(register, |register, word| __crc32cd(register, u64::from_le_bytes(*word)));
    rest.iter().fold(register, |register, byte| __crc32cb(register, *byte))
}
