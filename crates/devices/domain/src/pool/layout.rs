//! Positions of slots within a chunk.

use longshore_mem::Granule;

/// The usual size of a chunk, which is allocated and mapped at once.
pub(crate) const CHUNK_BYTES: u64 = 2 << 20;

/// The positions of the slots of a chunk.
///
/// ```text
///   chunk   ┌ block ─────────────────┬ block ─────────────────┬ …
///           │ slot ░ slot ░ slot ░   │ slot ░ slot ░ slot ░   │
///           └────────────────────────┴────────────────────────┴
///             ◄stride►             ▲ no slot crosses the end of a block
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The number of used bytes of a slot.
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
    /// Returns the layout of adjacent slots of whole granules.
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

    /// Returns the layout of slots of `slot_bytes` whose IOVAs are multiples of `align`, and of which
    /// none crosses a multiple of `boundary`. A chunk has room for about `count_max` of them at most.
    ///
    /// No length may be zero or above 2^30, and `boundary` must not be shorter than a slot.
    pub(crate) fn of_elements(
        slot_bytes: u64,
        align: Granule,
        boundary: Option<Granule>,
        count_max: u64,
        granule: Granule,
    ) -> Self {
        let stride_bytes = slot_bytes.next_multiple_of(align.bytes());
        // No element crosses a boundary below the alignment, because none is longer than the boundary.
        let boundary = boundary.map(|boundary| boundary.bytes().max(stride_bytes));
        let per_block = |block_bytes: u64| (block_bytes - slot_bytes) / stride_bytes + 1;
        // The index of the last slot, which in a chunk of the usual size is not above this.
        let last = (count_max - 1).min(CHUNK_BYTES / stride_bytes);
        let start_of_last = match boundary {
            Some(block) => last / per_block(block) * block + last % per_block(block) * stride_bytes,
            None => last * stride_bytes,
        };
        let wanted_bytes = (start_of_last + slot_bytes).min(CHUNK_BYTES).max(slot_bytes);
        let chunk_bytes = wanted_bytes.next_multiple_of(granule.bytes());
        let block_bytes = boundary.unwrap_or(chunk_bytes).min(chunk_bytes);
        let span_bytes = boundary.map_or(1, |bytes| bytes.min(chunk_bytes).next_power_of_two());
        let align_bytes = align.bytes().max(span_bytes).max(granule.bytes());
        Self {
            slot_bytes,
            stride_bytes,
            block_bytes,
            slots_per_block: per_block(block_bytes),
            chunk_bytes,
            align: Granule::new(align_bytes).expect("the largest of some powers of two"),
        }
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    pub(crate) fn align(&self) -> Granule {
        self.align
    }

    /// Returns the number of slots of a chunk.
    pub(crate) fn count(&self) -> u32 {
        let blocks = self.chunk_bytes / self.block_bytes;
        let rest_bytes = self.chunk_bytes % self.block_bytes;
        let in_rest = match rest_bytes.checked_sub(self.slot_bytes) {
            Some(room) => room / self.stride_bytes + 1,
            None => 0,
        };
        (blocks * self.slots_per_block + in_rest) as u32
    }

    /// Returns the start of a slot, in bytes from the start of the chunk.
    pub(crate) fn offset_of(&self, nth: u32) -> u64 {
        let (block, within) =
            (u64::from(nth) / self.slots_per_block, u64::from(nth) % self.slots_per_block);
        block * self.block_bytes + within * self.stride_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn power(log2: u32) -> Granule {
        Granule::new(1 << log2).unwrap()
    }

    /// Returns the offsets that a scan of the chunk finds, from the lowest on.
    fn oracle(layout: &Layout, align: Granule, boundary: Option<Granule>) -> Vec<u64> {
        let (len, mut at, mut found) = (layout.slot_bytes, 0, Vec::new());
        while at + len <= layout.chunk_bytes {
            let crosses = boundary
                .is_some_and(|every| every.round_down(at) != every.round_down(at + len - 1));
            if crosses {
                at += align.bytes();
            } else {
                found.push(at);
                at = (at + len).next_multiple_of(align.bytes());
            }
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        #[cfg_attr(miri, ignore = "scans chunks of 2 MiB, without unsafe code")]
        fn elements_are_where_a_scan_finds_them(
            len in prop_oneof![1u64..300, 1u64..70_000, Just(4096u64), Just(3 << 20)],
            align_log2 in 0u32..18,
            boundary_log2 in proptest::option::of(0u32..24),
            count_max in prop_oneof![1u64..200, Just(u64::MAX)],
            granule in prop_oneof![Just(Granule::SIZE_4K), Just(Granule::SIZE_64K)],
        ) {
            let align = power(align_log2);
            let boundary = boundary_log2.map(|log2| power(log2.max(len.next_power_of_two().ilog2())));
            let layout = Layout::of_elements(len, align, boundary, count_max, granule);
            let found = oracle(&layout, align, boundary);
            prop_assert_eq!(layout.count() as usize, found.len());
            for (nth, at) in found.iter().enumerate() {
                prop_assert_eq!(layout.offset_of(nth as u32), *at);
            }
            prop_assert!(granule.is_aligned(layout.chunk_bytes));
            prop_assert!(layout.chunk_bytes <= CHUNK_BYTES.max(len.next_multiple_of(granule.bytes())));
            // Offsets hold for IOVAs only if the chunk begins at a multiple of these.
            prop_assert!(layout.align >= align && layout.align >= granule);
            if let Some(boundary) = boundary {
                let span = layout.chunk_bytes.next_power_of_two();
                prop_assert!(layout.align.bytes() >= boundary.bytes().min(span));
            }
            // There are as many as requested; more are only in the last granule, or the last block.
            if count_max < u64::from(layout.count()) {
                let one_less = layout.chunk_bytes - granule.bytes();
                let fitting = found.iter().filter(|at| **at + len <= one_less).count() as u64;
                prop_assert!(fitting < count_max);
            } else if layout.chunk_bytes < CHUNK_BYTES {
                prop_assert!(u64::from(layout.count()) >= count_max || len > CHUNK_BYTES);
            }
        }
    }

    #[test]
    fn slots_of_granules_fill_a_chunk() {
        let layout = Layout::of_granules(3 * 4096, Granule::SIZE_4K);
        assert_eq!((layout.count(), layout.offset_of(169)), (170, 169 * 3 * 4096));
        let large = Layout::of_granules(64 << 16, Granule::SIZE_64K);
        assert_eq!((large.count(), large.chunk_bytes()), (1, 64 << 16));
    }
}
