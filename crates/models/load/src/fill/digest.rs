//! Checksums, which are computed while the reads go on.

use std::ops::Range;

use longshore_heap::Reservation;

use super::tracker::Tracker;
use crate::digest_kind::DigestKind;
use crate::open::read_exact;
use crate::plan::{Plan, PlannedFile};
use crate::verify::FileHasher;

/// The number of bytes that are hashed at once. If the hash keeps up with the reads, they are still in
/// the CPU cache.
const STEP_BYTES: u64 = 1 << 20;

/// Follows a fill, and computes the checksums of each file over the bytes that are complete, in the
/// order of the file. If the fill fails, the result is incomplete.
pub(super) fn follow(
    plan: &Plan,
    reservation: &Reservation,
    tracker: &Tracker<'_>,
    kinds: &[DigestKind],
) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for file in plan.files() {
        let mut hasher = FileHasher::new(kinds, file);
        let mut hash = |bytes: &[u8]| hasher.update(bytes);
        let mut reached = file.range().start().raw();
        for part in file.parts() {
            // An aligned layout does not contain the header of the file and the gaps between tensors.
            if !hash_aside(file, reached..part.file_offset, tracker, &mut hash) {
                return all;
            }
            let (mut at, end) = (part.buffer_offset, part.buffer_offset + part.len_bytes);
            while at < end {
                let Some(complete) = tracker.wait_complete(at, end) else { return all };
                // The reads may be far ahead, or finished, and would not notice a cancellation.
                if tracker.should_stop() {
                    return all;
                }
                let upto = complete.min(at + STEP_BYTES);
                let Some(bytes) = completed(reservation, at..upto) else { return all };
                hash(bytes);
                at = upto;
            }
            reached = part.file_offset + part.len_bytes;
        }
        let end = file.range().start().raw() + file.range().len();
        if !hash_aside(file, reached..end, tracker, &mut hash) {
            return all;
        }
        match hasher.finish() {
            Ok(digests) => all.push(digests),
            Err(error) => {
                tracker.fail(error);
                return all;
            }
        }
    }
    all
}

/// Hashes bytes of the file that have no place in the buffer. Returns `false` if the fill fails or is
/// stopped.
pub(crate) fn hash_aside(
    file: &PlannedFile,
    range: Range<u64>,
    tracker: &Tracker<'_>,
    hash: &mut impl FnMut(&[u8]),
) -> bool {
    let mut bytes = vec![0; (range.end - range.start).min(STEP_BYTES) as usize];
    let mut at = range.start;
    while at < range.end {
        let wanted = (range.end - at).min(STEP_BYTES) as usize;
        if tracker.should_stop() {
            return false;
        }
        if let Err(error) = read_exact(file.source(), &mut bytes[..wanted], at) {
            tracker.fail(error);
            return false;
        }
        hash(&bytes[..wanted]);
        at += wanted as u64;
    }
    true
}

#[expect(unsafe_code, reason = "reads a buffer that is still being filled")]
fn completed(reservation: &Reservation, range: Range<u64>) -> Option<&[u8]> {
    // SAFETY: the tracker has reported the range complete, so its reads have ended, and no piece is
    // read twice.
    unsafe { reservation.filled(range) }.ok()
}
