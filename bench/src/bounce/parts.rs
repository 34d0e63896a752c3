//! The memory of transfers.
#![expect(unsafe_code, reason = "declares leaked memory as memory for devices")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use anyhow::{Context, Result};
use longshore_heap::Heap;
use longshore_mem::{DmaMemory, FileOffset};

use crate::harness::timed::Drive;

/// The number of transfers in a stretch.
pub(super) const STRETCH: usize = 64;

/// The memory of one transfer: a range of a leaked buffer without references to it.
///
/// It is one word to move, like a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part(&'static Place);

#[derive(Debug)]
struct Place(NonNull<[u8]>);

// SAFETY: memory that is never freed may be used from any thread.
unsafe impl Send for Place {}
// SAFETY: a shared part only gives out the address.
unsafe impl Sync for Place {}

// SAFETY: the memory does not move, and no reference to it is ever made.
unsafe impl DmaMemory for Part {
    #[inline(always)]
    fn host(&self) -> NonNull<[u8]> {
        self.0.0
    }

    #[inline(always)]
    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

impl Part {
    fn of(bytes: NonNull<[u8]>) -> Self {
        Self(Box::leak(Box::new(Place(bytes))))
    }

    /// Returns the start address.
    #[inline(always)]
    pub(super) fn start(self) -> *mut u8 {
        self.0.0.as_ptr().cast()
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        self.0.0.len()
    }

    /// Returns the first `len` bytes.
    pub(super) fn first(self, len: usize) -> Self {
        assert!(len <= self.len());
        Self::of(NonNull::slice_from_raw_parts(self.0.0.cast(), len))
    }
}

/// Times `work` on one stretch of parts after the other, and starts again after the last.
#[inline(always)]
pub(super) fn stretches(
    parts: &[Part],
    drive: Drive<'_>,
    mut work: impl FnMut(&[Part]) -> Result<()>,
) -> Result<()> {
    assert!(!parts.is_empty() && parts.len().is_multiple_of(STRETCH));
    let mut turns = parts.chunks_exact(STRETCH).cycle();
    drive(&mut |meter| {
        let stretch = turns.next().context("there are parts")?;
        meter.time(|| work(stretch))
    })
}

/// Times `work` on each part of a stretch.
#[inline(always)]
pub(super) fn each(
    parts: &[Part],
    drive: Drive<'_>,
    work: impl Fn(&Part) -> Result<()>,
) -> Result<()> {
    stretches(parts, drive, |stretch| stretch.iter().try_for_each(&work))
}

/// Allocates `count` adjacent parts of `len_bytes` each, whose pages are resident.
pub(super) fn parts(count: usize, len_bytes: u64) -> Result<Vec<Part>> {
    let all = count as u64 * len_bytes;
    let mut buffer = Heap::Memfd.allocate(all).context("memory of transfers")?;
    buffer.write()?.fill(0x5a);
    let start: NonNull<u8> = Box::leak(Box::new(buffer)).host().cast();
    let part = |nth: usize| {
        // SAFETY: it lies in the buffer.
        let at = unsafe { start.add(nth * len_bytes as usize) };
        Part::of(NonNull::slice_from_raw_parts(at, len_bytes as usize))
    };
    Ok((0..count).map(part).collect())
}
