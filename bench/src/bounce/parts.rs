//! The memory of transfers.
#![expect(unsafe_code, reason = "gives memory to devices that it never frees")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use anyhow::{Context, Result};
use longshore_heap::Heap;
use longshore_mem::{DmaMemory, FileOffset};

use crate::harness::timed::Drive;

/// Transfers of one stretch.
pub(super) const STRETCH: usize = 64;

/// Memory of one transfer: of a buffer without references to it, which is never freed.
///
/// One word to move, as a buffer is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part(&'static Place);

#[derive(Debug)]
struct Place(NonNull<[u8]>);

// SAFETY: memory that is never freed may be used from any thread.
unsafe impl Send for Place {}
// SAFETY: a shared part only tells the address.
unsafe impl Sync for Place {}

// SAFETY: the memory stays where it is, and no reference to it is ever made.
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

    /// Where it begins.
    #[inline(always)]
    pub(super) fn start(self) -> *mut u8 {
        self.0.0.as_ptr().cast()
    }

    /// How long it is.
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        self.0.0.len()
    }

    /// Its first `len` bytes.
    pub(super) fn first(self, len: usize) -> Self {
        assert!(len <= self.len());
        Self::of(NonNull::slice_from_raw_parts(self.0.0.cast(), len))
    }
}

/// Times `work` on one stretch of the parts after the other, and again from the first.
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

/// Times the same work on each part of a stretch.
#[inline(always)]
pub(super) fn each(
    parts: &[Part],
    drive: Drive<'_>,
    work: impl Fn(&Part) -> Result<()>,
) -> Result<()> {
    stretches(parts, drive, |stretch| stretch.iter().try_for_each(&work))
}

/// `count` parts of `len_bytes`, one beside the other, whose pages are there.
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
