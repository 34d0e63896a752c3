//! The limit: a copy from an address that somebody translated before.
#![expect(unsafe_code, reason = "copies from and to addresses of memory that is borrowed")]

use std::ptr;

use super::doors::{Door, Doors};
use super::memory::{Maps, Memory};

/// Host addresses.
pub(super) struct Plain<'m> {
    memory: &'m Memory,
    maps: Maps,
}

impl<'m> Plain<'m> {
    pub(super) fn new(memory: &'m Memory, maps: &Maps) -> Self {
        Self { memory, maps: maps.clone() }
    }
}

/// Copies bytes of the memory.
///
/// # Safety
/// They must lie within a [`Memory`] that lives, and no other thread may write to them meanwhile.
#[inline(always)]
pub(super) unsafe fn read(host: u64, into: &mut [u8]) {
    let from = ptr::with_exposed_provenance::<u8>(host as usize);
    // SAFETY: the caller's promise; `into` is memory of our own.
    unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
}

/// Copies bytes to the memory.
///
/// # Safety
/// As [`read`], and no other thread may read them meanwhile.
#[inline(always)]
pub(super) unsafe fn write(host: u64, from: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(host as usize);
    // SAFETY: the caller's promise; `from` is memory of our own.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Reads a word of the memory.
///
/// # Safety
/// As [`read`], at a multiple of eight.
#[inline(always)]
pub(super) unsafe fn read_word(host: u64) -> u64 {
    let from = ptr::with_exposed_provenance::<u64>(host as usize);
    // SAFETY: the caller's promise.
    unsafe { from.read_volatile() }
}

/// Writes a word of the memory.
///
/// # Safety
/// As [`write()`], at a multiple of eight.
#[inline(always)]
pub(super) unsafe fn write_word(host: u64, word: u64) {
    let to = ptr::with_exposed_provenance_mut::<u64>(host as usize);
    // SAFETY: the caller's promise.
    unsafe { to.write_volatile(word) }
}

impl Door for Plain<'_> {
    #[inline(always)]
    fn read(&self, at: u64, into: &mut [u8]) {
        // SAFETY: lists have addresses that `address` made; threads have lists of their own.
        unsafe { read(at, into) }
    }

    #[inline(always)]
    fn write(&self, at: u64, from: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { write(at, from) }
    }

    #[inline(always)]
    fn read_word(&self, at: u64) -> u64 {
        // SAFETY: as in `read`; words of lists are aligned.
        unsafe { read_word(at) }
    }

    #[inline(always)]
    fn write_word(&self, at: u64, word: u64) {
        // SAFETY: as in `read`; words of lists are aligned.
        unsafe { write_word(at, word) }
    }
}

impl<'m> Doors for Plain<'m> {
    type Door<'a>
        = &'a Self
    where
        Self: 'a;

    fn open(&self, _thread: u64) -> &Self {
        self
    }

    fn address(&self, place: u64) -> u64 {
        self.memory.address(self.maps.memory_offset(place))
    }
}
