//! The counter that cycles are read from.
#![expect(unsafe_code, reason = "reads a counter that has no safe name")]

use std::time::{Duration, Instant};

/// The counter now.
#[inline]
pub(crate) fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has it, and Linux lets processes read it.
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

/// Its ticks a second, measured.
pub(crate) fn hz() -> f64 {
    let (began, first) = (Instant::now(), now());
    while began.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    now().wrapping_sub(first) as f64 / began.elapsed().as_secs_f64()
}

/// What passed on the counter, and in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) ticks: f64,
    pub(crate) ns: f64,
}

impl Span {
    /// Of `work`.
    #[inline]
    pub(crate) fn of(work: impl FnOnce()) -> Self {
        let (began, first) = (Instant::now(), now());
        work();
        let last = now();
        let ns = began.elapsed().as_nanos() as f64;
        Self { ticks: last.wrapping_sub(first) as f64, ns }
    }

    /// Nothing yet.
    pub(crate) const fn zero() -> Self {
        Self { ticks: 0.0, ns: 0.0 }
    }

    /// Both, one after the other.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { ticks: self.ticks + other.ticks, ns: self.ns + other.ns }
    }

    /// For each of `count` parts.
    pub(crate) fn each(self, count: usize) -> Self {
        Self { ticks: self.ticks / count as f64, ns: self.ns / count as f64 }
    }

    /// The shorter one.
    pub(crate) fn best(self, other: Self) -> Self {
        if other.ticks < self.ticks { other } else { self }
    }
}
