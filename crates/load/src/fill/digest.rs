//! Checksums, computed behind the reads.

use std::ops::Range;

use longshore_heap::Reservation;

use super::ledger::Ledger;
use crate::plan::Plan;
use crate::verify::{DigestKind, Hasher};

/// Bytes hashed between two looks at what else is complete: they are in the cache from the read
/// if the hash keeps up with it.
const STEP_BYTES: u64 = 1 << 20;

/// Follows a fill and computes the checksums of each file as its bytes come to be complete, in
/// order. Returns less where the fill fails.
pub(super) fn follow(
    plan: &Plan,
    reservation: &Reservation,
    ledger: &Ledger<'_>,
    kinds: &[DigestKind],
) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for file in plan.files() {
        let mut hashers: Vec<Hasher> = kinds.iter().copied().map(Hasher::new).collect();
        let Range { start: mut at, end } = file.buffer_range();
        while at < end {
            let Some(complete) = ledger.wait_complete(at, end) else { return all };
            // The reads may be far ahead, or over.
            if ledger.should_stop() {
                return all;
            }
            let upto = complete.min(at + STEP_BYTES);
            let Some(bytes) = completed(reservation, at..upto) else { return all };
            for hasher in &mut hashers {
                hasher.update(bytes);
            }
            at = upto;
        }
        all.push(hashers.into_iter().map(Hasher::finish).collect());
    }
    all
}

#[expect(unsafe_code, reason = "looks at bytes of a buffer that is still being filled")]
fn completed(reservation: &Reservation, range: Range<u64>) -> Option<&[u8]> {
    // SAFETY: the ledger reported the range complete: its reads are over, and no piece is read
    // twice.
    unsafe { reservation.filled(range) }.ok()
}
