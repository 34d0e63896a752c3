//! The loops of copies, checksums and digests: they walk a cursor and process each byte while it is
//! copied.
//!
//! A [`SegmentSource`] of another crate may return any valid segment, and report any place and any
//! number of bytes. These loops access no memory but the segments, and return no number above the
//! requested length.
#![expect(unsafe_code, reason = "hands segments to blocks of assembly")]

use longshore_mem::copy::CopyFault;
use longshore_mem::dispatch_isa;
use longshore_mem::fault::Fault;
use longshore_mem::isa::IsaToken;

use crate::direction::{Dest, Source};
use crate::error::Error;
use crate::sink::Absorb;
use crate::source::SegmentSource;

/// Copies the next bytes of `source` to `into`.
#[inline]
pub(crate) fn read(
    token: IsaToken,
    source: &mut impl SegmentSource<Source>,
    into: &mut [u8],
    absorb: &mut impl Absorb,
) -> Result<usize, Error> {
    let mut met = None;
    let done = dispatch_isa!(token, isa => source.iterate(into.len(), |segment, done| {
        let len_bytes = segment.len();
        let Some(into) = into.get_mut(done..).and_then(|rest| rest.get_mut(..len_bytes)) else {
            return len_bytes;
        };
        let (from, to) = (segment.as_ptr(), Some(into.as_mut_ptr()));
        // SAFETY: the segment is valid, as its constructor requires; the target is borrowed.
        undone(unsafe { absorb.take(isa, from, to, len_bytes) }, len_bytes, &mut met)
    }));
    ended(done.min(into.len()), met)
}

/// Copies `from` to the next bytes of `dest`. The sink also gets the bytes that are discarded.
#[inline]
pub(crate) fn write(
    token: IsaToken,
    dest: &mut impl SegmentSource<Dest>,
    from: &[u8],
    absorb: &mut impl Absorb,
) -> Result<usize, Error> {
    let mut met = None;
    let mut seen = 0;
    let done = dispatch_isa!(token, isa => dest.iterate(from.len(), |mut segment, done| {
        let len_bytes = segment.len();
        let Some(from) = from.get(done..).and_then(|rest| rest.get(..len_bytes)) else {
            return len_bytes;
        };
        let (from, to) = (from.as_ptr(), Some(segment.as_mut_ptr()));
        // SAFETY: the segment is valid, as its constructor requires; the source is borrowed.
        let left = undone(unsafe { absorb.take(isa, from, to, len_bytes) }, len_bytes, &mut met);
        seen = done + len_bytes - left;
        left
    }));
    let done = done.min(from.len());
    if let Some(unseen) = from.get(seen..done)
        && !unseen.is_empty()
    {
        own(token, unseen, absorb);
    }
    ended(done, met)
}

/// Copies the next bytes of `source` to the next of `dest`.
#[inline]
pub(crate) fn transfer(
    token: IsaToken,
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
        // Distrust the source: it may return more than was requested, or an empty segment.
        let from_bytes = from.len().min(len_bytes - done);
        if from_bytes == 0 {
            break;
        }
        let moved = dispatch_isa!(token, isa => dest.iterate(from_bytes, |mut to, at| {
            let len_bytes = to.len();
            let Ok(part) = from.view().subslice(at, len_bytes) else { return len_bytes };
            let (from, to) = (part.as_ptr(), to.as_mut_ptr());
            if from.addr().abs_diff(to.addr()) < len_bytes {
                overlaps = true;
                return len_bytes;
            }
            // SAFETY: the segments are valid, as their constructors require, and do not overlap.
            undone(unsafe { absorb.take(isa, from, Some(to), len_bytes) }, len_bytes, &mut met)
        }));
        let moved = moved.min(from_bytes);
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

/// Passes the next bytes of `source` to the sink, without copying them.
#[inline]
pub(crate) fn walk(
    token: IsaToken,
    source: &mut impl SegmentSource<Source>,
    len_bytes: usize,
    absorb: &mut impl Absorb,
) -> Result<usize, Error> {
    let mut met = None;
    let done = dispatch_isa!(token, isa => source.iterate(len_bytes, |segment, _| {
        let len_bytes = segment.len();
        // SAFETY: the segment is valid, as its constructor requires.
        let taken = unsafe { absorb.take(isa, segment.as_ptr(), None, len_bytes) };
        undone(taken, len_bytes, &mut met)
    }));
    ended(done.min(len_bytes), met)
}

/// Passes private bytes to the sink.
#[inline]
pub(crate) fn own(token: IsaToken, bytes: &[u8], absorb: &mut impl Absorb) {
    dispatch_isa!(token, isa => absorb.take_own(isa, bytes));
}

/// Returns how many of `len_bytes` bytes a step left undone, and sets `met` to the fault.
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
