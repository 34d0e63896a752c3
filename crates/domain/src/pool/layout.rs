//! Positions of slots within a chunk.

use longshore_mem::Granule;

/// The usual size of a chunk: what is allocated and mapped at once.
pub(crate) const CHUNK_BYTES: u64 = 2 << 20;

/// Where the slots of a chunk begin.
///
/// ```text
///   chunk   ┌ block ─────────────────┬ block ─────────────────┬ …
///           │ slot ░ slot ░ slot ░   │ slot ░ slot ░ slot ░   │
///           └────────────────────────┴────────────────────────┴
///             ◄stride►             ▲ no slot crosses the end of a block
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// How many bytes of a slot are used.
    slot_bytes: u64,
    /// The distance between two slots of one block.
    stride_bytes: u64,
    block_bytes: u64,
    slots_per_block: u64,
    chunk_bytes: u64,
    /// The alignment of the chunk's IOVA.
    align: Granule,
}

impl Layout {
    /// Slots of whole granules, one behind the other.
    pub(crate) fn of_granules(slot_bytes: u64, granule: Granule) -> Self {
        // Granules of 64 KiB have slots that are larger than the usual chunk.
        let chunk_bytes = CHUNK_BYTES.max(slot_bytes).next_multiple_of(granule.bytes());
        Self {
            slot_bytes,
            stride_bytes: slot_bytes,
            block_bytes: chunk_bytes,
            slots_per_block: chunk_bytes / slot_bytes,
            chunk_bytes,
            align: granule,
        }
    }

    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    pub(crate) fn align(&self) -> Granule {
        self.align
    }

    /// How many slots a chunk has.
    pub(crate) fn count(&self) -> u32 {
        let blocks = self.chunk_bytes / self.block_bytes;
        let rest_bytes = self.chunk_bytes % self.block_bytes;
        let in_rest = match rest_bytes.checked_sub(self.slot_bytes) {
            Some(room) => room / self.stride_bytes + 1,
            None => 0,
        };
        (blocks * self.slots_per_block + in_rest) as u32
    }

    /// Where a slot begins, in bytes from the chunk's start.
    pub(crate) fn offset_of(&self, nth: u32) -> u64 {
        let (block, within) =
            (u64::from(nth) / self.slots_per_block, u64::from(nth) % self.slots_per_block);
        block * self.block_bytes + within * self.stride_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_granules_fill_a_chunk() {
        let layout = Layout::of_granules(3 * 4096, Granule::SIZE_4K);
        assert_eq!((layout.count(), layout.offset_of(169)), (170, 169 * 3 * 4096));
        let large = Layout::of_granules(64 << 16, Granule::SIZE_64K);
        assert_eq!((large.count(), large.chunk_bytes()), (1, 64 << 16));
    }
}
