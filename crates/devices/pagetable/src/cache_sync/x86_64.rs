//! Cleaning on x86-64: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
//! CLWB, CLFLUSHOPT and SFENCE.

use core::arch::asm;

use super::{CacheSync, LINE_BYTES};
use crate::sync::AtomicU64;

/// CPUID leaf 7, subleaf 0, EBX.
const CLFLUSHOPT_BIT: u32 = 23;
const CLWB_BIT: u32 = 24;

fn has(bit: u32) -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    #[allow(unused_unsafe, reason = "safe from Rust 1.94 on")]
    // SAFETY: every x86-64 machine has CPUID.
    let leaf_max = unsafe { __cpuid(0) }.eax;
    if leaf_max < 7 {
        return false;
    }
    #[allow(unused_unsafe, reason = "safe from Rust 1.94 on")]
    // SAFETY: as above.
    let features = unsafe { __cpuid_count(7, 0) };
    features.ebx >> bit & 1 != 0
}

/// `sfence`.
#[inline]
fn fence() {
    // SAFETY: a barrier has no effect but ordering.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Returns the address of each line that holds one of `entries`.
#[inline]
fn lines(entries: &[AtomicU64]) -> impl Iterator<Item = *const u8> {
    let start = entries.as_ptr().cast::<u8>();
    let into_line = start.addr() % LINE_BYTES;
    let line = start.wrapping_sub(into_line);
    (0..into_line + size_of_val(entries)).step_by(LINE_BYTES).map(move |at| line.wrapping_add(at))
}

/// `clwb`: writes a line back and keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Clwb(());

impl Clwb {
    /// Returns `None` if the machine does not have this instruction.
    pub fn new() -> Option<Self> {
        has(CLWB_BIT).then_some(Self(()))
    }
}

impl CacheSync for Clwb {
    const COHERENT: bool = false;

    #[inline]
    fn clean(&self, entries: &[AtomicU64]) {
        for line in lines(entries) {
            // SAFETY: the line holds memory that is borrowed; its content does not change.
            unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }
    }

    #[inline]
    fn fence(&self) {
        fence();
    }
}

/// `clflushopt`: writes a line back and evicts it.
#[derive(Clone, Copy, Debug)]
pub struct ClFlushOpt(());

impl ClFlushOpt {
    /// Returns `None` if the machine does not have this instruction.
    pub fn new() -> Option<Self> {
        has(CLFLUSHOPT_BIT).then_some(Self(()))
    }
}

impl CacheSync for ClFlushOpt {
    const COHERENT: bool = false;

    #[inline]
    fn clean(&self, entries: &[AtomicU64]) {
        for line in lines(entries) {
            // SAFETY: the line holds memory that is borrowed; its content does not change.
            unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }
    }

    #[inline]
    fn fence(&self) {
        fence();
    }
}
