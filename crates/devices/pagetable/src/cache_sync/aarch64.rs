//! Cleaning on AArch64: Arm Architecture Reference Manual (DDI 0487), C5.4 `DC CVAC`, C6.2 `DSB`,
//! D24 `CTR_EL0`.

use core::arch::asm;

use super::CacheSync;
use crate::sync::AtomicU64;

/// `dc cvac`: writes a line back to the point of coherency and keeps it.
#[derive(Clone, Copy, Debug)]
pub struct DcCvac {
    line_bytes: usize,
}

impl DcCvac {
    /// Returns the cache maintenance for this machine's line size.
    pub fn new() -> Self {
        let cache_type: u64;
        // SAFETY: reads a register that Linux lets every program read.
        unsafe {
            asm!("mrs {}, ctr_el0", out(reg) cache_type, options(nomem, nostack, preserves_flags));
        }
        // DminLine: the number of four-byte words in the smallest data cache line, as a logarithm.
        Self { line_bytes: 4 << (cache_type >> 16 & 0xf) }
    }
}

impl Default for DcCvac {
    fn default() -> Self {
        Self::new()
    }
}

impl CacheSync for DcCvac {
    const COHERENT: bool = false;

    #[inline]
    fn clean(&self, entries: &[AtomicU64]) {
        let start = entries.as_ptr().cast::<u8>();
        let into_line = start.addr() % self.line_bytes;
        for at in (0..into_line + size_of_val(entries)).step_by(self.line_bytes) {
            let line = start.wrapping_sub(into_line).wrapping_add(at);
            // SAFETY: the line holds memory that is borrowed; its content does not change.
            unsafe { asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    }

    #[inline]
    fn fence(&self) {
        // SAFETY: a barrier has no effect but ordering.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}
