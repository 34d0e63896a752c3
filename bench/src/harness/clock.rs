//! The counter for cycles, and the rate of the core's own clock.
#![expect(unsafe_code, reason = "reads a counter, and times a chain of additions in assembly")]

use std::time::{Duration, Instant};

/// Returns the current value of the counter.
#[inline]
pub(crate) fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has this counter, and Linux lets processes read it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a counter that Linux lets processes read.
        unsafe {
            std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, nomem));
        }
        ticks
    }
}

/// Measures the counter's rate, in ticks per second.
pub(crate) fn counter_hz() -> f64 {
    let (began, first) = (Instant::now(), now());
    while began.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    now().wrapping_sub(first) as f64 / began.elapsed().as_secs_f64()
}

/// Measures the core's clock, in cycles per second. Each addition in a chain of dependent ones takes one
/// cycle, on every core since 1995 and at any rate of the time-stamp counter.
pub(crate) fn core_hz() -> f64 {
    const TRIES: usize = 5;
    let best = (0..TRIES).map(|_| time_additions()).fold(0.0, f64::max);
    assert!(best > 1e8, "a core of less than 100 MHz");
    best
}

fn time_additions() -> f64 {
    const TURNS: u64 = 40_000;
    const CHAIN: u64 = 32;
    let began = Instant::now();
    let mut turns = TURNS;
    // SAFETY: only adds numbers in registers.
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
