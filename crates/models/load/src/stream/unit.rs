//! Units: ranges of a file that a stream reads into memory of their own.

use std::ops::Range;

use longshore_mem::Granule;

use super::selection::Pick;
use crate::fill::place_alignment;
use crate::plan::{Plan, PlannedFile};

/// The length from which a tensor stays in the memory of the stream. Shorter ones are copied.
pub(super) const LARGE_BYTES: u64 = 1 << 20;

/// The maximum length of a unit of several tensors. It is shorter if the memory of the stream is small.
const GROUP_MAX_BYTES: u64 = 4 << 20;

/// The longest gap between two tensors of a unit, which is read, too.
const GAP_MAX_BYTES: u64 = 4096;

/// The unit of the memory of a stream. Tensors of one length begin at different offsets in their blocks, and
/// the place of one must be large enough for any of them.
const MEMORY_UNIT: Granule = Granule::SIZE_64K;

/// A range of a file that is read into memory of its own: a large tensor, or several small ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// The index of the file in the plan.
    pub(super) file: usize,
    /// The range of the file that is read: whole blocks, except at the end of the file.
    pub(super) read: Range<u64>,
    /// The indices of the tensors.
    pub(super) members: Range<usize>,
    /// The alignment of its memory.
    pub(super) alignment: Granule,
}

impl Unit {
    /// Returns the offset of the first byte that is read, from the start of the unit's memory: a direct
    /// read needs an address that is aligned like the offset in the file.
    pub(super) fn skip_bytes(&self) -> u64 {
        self.read.start % self.alignment.bytes()
    }

    /// Returns the length of the unit's memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self.read.is_empty() {
            true => 0,
            // A file has no more than 2^63 bytes, and both are powers of two that divide that.
            false => (self.skip_bytes() + self.read.end - self.read.start)
                .next_multiple_of(self.alignment.max(MEMORY_UNIT).bytes()),
        }
    }
}

/// Divides tensors, which are sorted by file and offset, into units for a stream with `memory_bytes`.
pub(super) fn units(picks: &[Pick], plan: &Plan, memory_bytes: u64) -> Vec<Unit> {
    let group_max_bytes = GROUP_MAX_BYTES.min(memory_bytes / 4);
    let mut units = Vec::new();
    let mut at = 0;
    while at < picks.len() {
        let first = &picks[at];
        let mut end = first.data.end;
        let mut next = at + 1;
        let is_small = |pick: &Pick| pick.data.end - pick.data.start < LARGE_BYTES;
        while is_small(first)
            && let Some(pick) = picks.get(next)
            && is_small(pick)
            && pick.file == first.file
            && pick.data.start <= end + GAP_MAX_BYTES
            && pick.data.end - first.data.start <= group_max_bytes
        {
            end = end.max(pick.data.end);
            next += 1;
        }
        let file = &plan.files()[first.file];
        units.push(Unit {
            file: first.file,
            read: whole_blocks(file, first.data.start..end),
            members: at..next,
            alignment: place_alignment(file),
        });
        at = next;
    }
    units
}

/// Rounds a range out to the blocks that direct I/O reads.
fn whole_blocks(file: &PlannedFile, range: Range<u64>) -> Range<u64> {
    let Some((_, way)) = file.source().direct() else { return range };
    if range.is_empty() {
        return range;
    }
    let block = way.offset.max(way.memory);
    let end = block.checked_round_up(range.end).unwrap_or(range.end);
    block.round_down(range.start)..end.min(file.source().len())
}
