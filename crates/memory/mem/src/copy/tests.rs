use core::ptr::NonNull;
use std::thread;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::volatile::{VolatileSlice, VolatileSliceMut};

fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at.wrapping_mul(167) ^ (at >> 8)) as u8).collect()
}

/// Copies every length at all pairs of `skews`, and checks the bytes around the target.
fn copies_exactly(token: IsaToken, lens: impl Iterator<Item = usize> + Clone, skews: &[usize]) {
    const MARGIN: usize = 80;
    for len_bytes in lens {
        for from_skew in skews {
            for to_skew in skews {
                let source = pattern(from_skew + len_bytes);
                let mut target = vec![0xa5u8; to_skew + len_bytes + MARGIN];
                // SAFETY: both lie within their vectors.
                let from = unsafe { source.as_ptr().add(*from_skew) };
                // SAFETY: as above.
                let to = unsafe { target.as_mut_ptr().add(*to_skew) };
                // SAFETY: both vectors are this test's own.
                let copied = dispatch_isa!(token, isa => unsafe { copy(isa, from, to, len_bytes) });
                copied.unwrap();
                let end = to_skew + len_bytes;
                assert_eq!(&target[*to_skew..end], &source[*from_skew..], "{:?}", token.isa());
                let around = target[..*to_skew].iter().chain(&target[end..]);
                assert!(around.clone().all(|byte| *byte == 0xa5), "{:?} {len_bytes}", token.isa());
            }
        }
    }
}

fn fills_exactly(token: IsaToken, lens: impl Iterator<Item = usize>, skews: &[usize]) {
    for len_bytes in lens {
        for skew in skews {
            let mut target = vec![0xa5u8; skew + len_bytes + 80];
            // SAFETY: within the vector.
            let to = unsafe { target.as_mut_ptr().add(*skew) };
            // SAFETY: the vector is this test's own.
            dispatch_isa!(token, isa => unsafe { fill(isa, to, 0x3c, len_bytes) }).unwrap();
            let expected = (0..target.len())
                .map(|at| if (*skew..skew + len_bytes).contains(&at) { 0x3c } else { 0xa5 });
            assert!(target.iter().copied().eq(expected), "{:?} {len_bytes}", token.isa());
        }
    }
}

#[test]
fn every_length_at_every_small_misalignment() {
    let (len_max, skews): (usize, &[usize]) =
        if cfg!(miri) { (40, &[0, 3]) } else { (700, &[0, 1, 7, 31, 63]) };
    for token in IsaToken::all() {
        copies_exactly(token, 0..len_max, skews);
        fills_exactly(token, 0..len_max, skews);
    }
}

#[test]
#[cfg_attr(miri, ignore = "the same code, and slow")]
fn lengths_around_every_threshold() {
    let around = |at: usize| [at - 1, at, at + 1, at + 65];
    let lens = [1 << 8, 1 << 12, 1 << 16, 1 << 20].into_iter().flat_map(around);
    for token in IsaToken::all() {
        copies_exactly(token, lens.clone(), &[0, 5]);
        fills_exactly(token, lens.clone(), &[0, 5]);
        copies_exactly(token, around(STREAM_MIN_BYTES).into_iter(), &[5]);
    }
}

/// Miri reports a data race if one of these accesses is not atomic.
#[test]
fn foreign_bytes_may_be_written_while_they_are_read() {
    const LEN_BYTES: usize = 40;
    let mut memory = [0u64; LEN_BYTES / 8];
    let start = NonNull::from(&mut memory).cast();
    // SAFETY: the memory outlives the threads, and is accessed by views only while they run.
    let read = unsafe { VolatileSlice::from_raw_parts(start, LEN_BYTES) };
    // SAFETY: as above.
    let mut written = unsafe { VolatileSliceMut::from_raw_parts(start, LEN_BYTES) };
    thread::scope(|scope| {
        scope.spawn(move || {
            for byte in [1, 2, 3] {
                written.write(0, &[byte; LEN_BYTES]).unwrap();
                written.zero(9, 8).unwrap();
                // SAFETY: the bytes of the view.
                unsafe { fill_all(written.as_mut_ptr(), byte, LEN_BYTES) };
            }
        });
        for _ in 0..3 {
            let mut bytes = [9; LEN_BYTES];
            read.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte <= 3), "{bytes:?}");
            for offset in [8, 13] {
                let number = read.read_u64_le(offset).unwrap();
                assert!(number.to_le_bytes().iter().all(|byte| *byte <= 3), "{number:#x}");
            }
        }
    });
    assert_eq!(memory, [0x0303_0303_0303_0303; LEN_BYTES / 8]);
}

/// # Safety
/// As [`fill`].
unsafe fn fill_all(to: *mut u8, byte: u8, len_bytes: usize) {
    // SAFETY: the caller's promise.
    dispatch_isa!(IsaToken::active(), isa => unsafe { fill(isa, to, byte, len_bytes) }).unwrap();
}
