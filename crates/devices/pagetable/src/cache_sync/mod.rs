//! Cache maintenance: makes changed entries visible to a walker that does not snoop the CPU's
//! caches.
//!
//! *Cleaning* starts to write a cache line back to memory; a *fence* waits until all earlier
//! cleaning is complete. Cleaning is cheap, and a fence takes some 200 ns. So an operation cleans
//! each run of changed entries once, and issues one or two fences.
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

/// The size of a cache line in bytes, for counting lines: that of x86-64 machines and all common
/// Arm machines.
pub const LINE_BYTES: usize = 64;

/// Cache maintenance for changed entries.
pub trait CacheSync {
    /// `true` if the walker snoops the CPU's caches, so that cleaning does nothing.
    const COHERENT: bool;

    /// Starts to write back every line that holds one of `entries`.
    fn clean(&self, entries: &[AtomicU64]);

    /// Waits until the walker can see all earlier changes: those that were cleaned, or, if the
    /// walker is coherent, all stores.
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

/// Cache maintenance for a walker that snoops the CPU's caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coherent;

impl CacheSync for Coherent {
    const COHERENT: bool = true;

    #[inline]
    fn clean(&self, _entries: &[AtomicU64]) {}

    #[inline]
    fn fence(&self) {
        // x86-64 keeps stores in order. On AArch64 a walker is a separate observer, and this is the
        // only barrier that is specified to order stores for it.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: a barrier has no effect but ordering.
        unsafe {
            core::arch::asm!("dsb ishst", options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "aarch64", not(miri))))]
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
    }
}
