//! Making changed entries visible to a walker that does not snoop the CPU's caches.
//!
//! *Cleaning* writes a line back to memory and may go on while other things happen; a *fence*
//! waits until all cleaning before it is done. Cleaning is cheap, a fence costs some 200 ns: an
//! operation cleans each run of changed entries once, and fences once or twice.
#![cfg_attr(
    not(miri),
    expect(unsafe_code, reason = "cache maintenance instructions have no safe wrapper")
)]

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod aarch64;
mod counting;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub use aarch64::DcCvac;
pub use counting::{Counting, Counts};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use x86_64::{ClFlushOpt, Clwb};

use crate::sync::AtomicU64;

/// Bytes of a cache line, where lines are counted: what x86-64 machines and all common Arm ones
/// have.
pub const LINE_BYTES: usize = 64;

/// How changed entries reach the walker.
pub trait CacheSync {
    /// Whether the walker snoops the CPU's caches, so that cleaning does nothing.
    const COHERENT: bool;

    /// Begins to write back every line that holds one of `entries`.
    fn clean(&self, entries: &[AtomicU64]);

    /// Waits until everything written before is where the walker looks: what was cleaned, or, if
    /// the walker is coherent, what was stored.
    fn fence(&self);
}

impl<S: CacheSync + ?Sized> CacheSync for &S {
    const COHERENT: bool = S::COHERENT;

    #[inline]
    fn clean(&self, entries: &[AtomicU64]) {
        (**self).clean(entries);
    }

    #[inline]
    fn fence(&self) {
        (**self).fence();
    }
}

/// The walker snoops the CPU's caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coherent;

impl CacheSync for Coherent {
    const COHERENT: bool = true;

    #[inline]
    fn clean(&self, _entries: &[AtomicU64]) {}

    #[inline]
    fn fence(&self) {
        // x86-64 stores in order. Elsewhere a walker is an observer of its own, for which only this
        // barrier is specified to work.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: a barrier has no effect but order.
        unsafe {
            core::arch::asm!("dsb ishst", options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "aarch64", not(miri))))]
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
    }
}
