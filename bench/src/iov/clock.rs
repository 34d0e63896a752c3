//! How fast the core runs now.
#![expect(unsafe_code, reason = "a chain of additions that no compiler shortens")]

use std::time::Instant;

/// Cycles a second. A chain of dependent additions takes one cycle each on every core since 1995,
/// whatever the time-stamp counter's rate is.
pub(crate) fn core_hz() -> f64 {
    const TRIES: usize = 5;
    let best = (0..TRIES).map(|_| try_once()).fold(0.0, f64::max);
    assert!(best > 1e8, "a core of less than 100 MHz");
    best
}

fn try_once() -> f64 {
    const TURNS: u64 = 40_000;
    const CHAIN: u64 = 32;
    let began = Instant::now();
    let mut turns = TURNS;
    // SAFETY: adds up numbers in registers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "2:",
            ".rept 32",
            "add {sum}, {one}",
            ".endr",
            "dec {turns}",
            "jnz 2b",
            sum = inout(reg) 0u64 => _,
            one = in(reg) 1u64,
            turns = inout(reg) turns,
            options(nostack, nomem),
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "2:",
            ".rept 32",
            "add {sum}, {sum}, {one}",
            ".endr",
            "subs {turns}, {turns}, #1",
            "b.ne 2b",
            sum = inout(reg) 0u64 => _,
            one = in(reg) 1u64,
            turns = inout(reg) turns,
            options(nostack, nomem),
        );
    }
    assert_eq!(turns, 0);
    (TURNS * CHAIN) as f64 / began.elapsed().as_secs_f64()
}
