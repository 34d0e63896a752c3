//! Walking a cursor and doing something with each byte while it is copied: the loops that copies,
//! checksums and digests share.
#![expect(unsafe_code, reason = "hands segments to blocks of assembly")]

use longshore_mem::copy::{CopyFault, CopyKernels, copy};
use longshore_mem::fault::Fault;
use longshore_mem::isa::Path;
use longshore_mem::with_path;

use crate::checksum::SumKernels;
use crate::crc32c::CrcKernels;
use crate::direction::{Dest, Source};
use crate::error::Error;
use crate::source::SegmentSource;

/// What stores past the caches want their target aligned to.
pub(crate) const LINE_BYTES: usize = 64;

/// All that a set of instructions can do.
pub(crate) trait Kernels: CopyKernels + SumKernels + CrcKernels {}

impl<T: CopyKernels + SumKernels + CrcKernels> Kernels for T {}

/// Something that takes bytes in while they are copied.
pub(crate) trait Absorb {
    /// Copies `len_bytes` bytes, or reads them only where `to` is none, and takes in those that
    /// were done.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// As [`copy`].
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault>;

    /// Takes in bytes that are our own.
    fn take_own<T: Kernels>(&mut self, token: T, bytes: &[u8]) {
        // SAFETY: the bytes are borrowed.
        let taken = unsafe { self.take(token, bytes.as_ptr(), None, bytes.len()) };
        debug_assert!(taken.is_ok(), "own memory does not fault");
    }
}

/// Takes in nothing: a plain copy.
pub(crate) struct Nothing;

impl Absorb for Nothing {
    #[inline(always)]
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        match to {
            // SAFETY: the caller's promise.
            Some(to) => unsafe { copy(token, from, to, len_bytes) },
            None => Ok(()),
        }
    }
}

/// Copies the next bytes of `source` to `into`.
pub(crate) fn read(
    path: Path,
    source: &mut impl SegmentSource<Source>,
    into: &mut [u8],
    absorb: &mut impl Absorb,
) -> Result<usize, Error> {
    let mut met = None;
    let done = with_path!(path, token => source.iterate(into.len(), |segment, done| {
        let len_bytes = segment.len_bytes();
        // A kind of a user's own may say anything of where it is.
        let Some(into) = into.get_mut(done..).and_then(|rest| rest.get_mut(..len_bytes)) else {
            return len_bytes;
        };
        let (from, to) = (segment.as_ptr(), Some(into.as_mut_ptr()));
        // SAFETY: the segment is valid, as its maker promised; the target is borrowed.
        undone(unsafe { absorb.take(token, from, to, len_bytes) }, len_bytes, &mut met)
    }));
    ended(done, met)
}

/// Copies `from` to the next bytes of `dest`. Those that go to no memory are taken in too.
pub(crate) fn write(
    path: Path,
    dest: &mut impl SegmentSource<Dest>,
    from: &[u8],
    absorb: &mut impl Absorb,
) -> Result<usize, Error> {
    let mut met = None;
    let mut seen = 0;
    let done = with_path!(path, token => dest.iterate(from.len(), |mut segment, done| {
        let len_bytes = segment.len_bytes();
        let Some(from) = from.get(done..).and_then(|rest| rest.get(..len_bytes)) else {
            return len_bytes;
        };
        let (from, to) = (from.as_ptr(), Some(segment.as_mut_ptr()));
        // SAFETY: the segment is valid, as its maker promised; the source is borrowed.
        let left = undone(unsafe { absorb.take(token, from, to, len_bytes) }, len_bytes, &mut met);
        seen = done + len_bytes - left;
        left
    }));
    if let Some(unseen) = from.get(seen..done)
        && !unseen.is_empty()
    {
        own(path, unseen, absorb);
    }
    ended(done, met)
}

/// Copies the next bytes of `source` to the next of `dest`.
pub(crate) fn transfer(
    path: Path,
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
    absorb: &mut impl Absorb,
) -> Result<usize, Error> {
    let mut done = 0;
    let mut met = None;
    let mut overlaps = false;
    while done < len_bytes && dest.remaining() > 0 {
        let Some(from) = source.next_segment(len_bytes - done) else { break };
        let from_bytes = from.len_bytes();
        let moved = with_path!(path, token => dest.iterate(from_bytes, |mut to, at| {
            let len_bytes = to.len_bytes();
            let Ok(part) = from.view().subslice(at, len_bytes) else { return len_bytes };
            let (from, to) = (part.as_ptr(), to.as_mut_ptr());
            if from.addr().abs_diff(to.addr()) < len_bytes {
                overlaps = true;
                return len_bytes;
            }
            // SAFETY: the segments are valid, as their makers promised, and do not overlap.
            undone(unsafe { absorb.take(token, from, Some(to), len_bytes) }, len_bytes, &mut met)
        }));
        source.advance(moved);
        done += moved;
        if moved < from_bytes {
            break;
        }
    }
    if overlaps {
        return Err(Error::Overlap { done_bytes: done });
    }
    ended(done, met)
}

/// Takes in the next bytes of `source` and copies them nowhere.
pub(crate) fn walk(
    path: Path,
    source: &mut impl SegmentSource<Source>,
    len_bytes: usize,
    absorb: &mut impl Absorb,
) -> Result<usize, Error> {
    let mut met = None;
    let done = with_path!(path, token => source.iterate(len_bytes, |segment, _| {
        let len_bytes = segment.len_bytes();
        // SAFETY: the segment is valid, as its maker promised.
        let taken = unsafe { absorb.take(token, segment.as_ptr(), None, len_bytes) };
        undone(taken, len_bytes, &mut met)
    }));
    ended(done, met)
}

/// Takes in bytes of our own.
pub(crate) fn own(path: Path, bytes: &[u8], absorb: &mut impl Absorb) {
    with_path!(path, token => absorb.take_own(token, bytes));
}

/// How many of `len_bytes` bytes a step left undone, and in `met` why.
#[inline(always)]
fn undone(taken: Result<(), CopyFault>, len_bytes: usize, met: &mut Option<Fault>) -> usize {
    match taken {
        Ok(()) => 0,
        Err(stop) => {
            *met = Some(stop.fault);
            len_bytes - stop.done_bytes
        }
    }
}

pub(crate) fn ended(done_bytes: usize, met: Option<Fault>) -> Result<usize, Error> {
    match met {
        None => Ok(done_bytes),
        Some(fault) => Err(Error::Fault { done_bytes, fault }),
    }
}
