//! The memory that is accessed, and the mapping of IOVAs to it.

use std::sync::Arc;

use anyhow::{Context, Result};
use longshore_heap::{Buffer, Heap};
use longshore_mem::DmaMemory;

use super::random::{Random, shuffle};

/// The length in bytes of the IOVA space; all of it is mapped.
pub(super) const SPACE_BYTES: u64 = 1 << 30;
/// The first IOVA.
pub(super) const BASE: u64 = 1 << 38;

/// Memory in the largest pages that are available: with small ones, the bench would mainly measure the
/// processor's TLB.
pub(super) struct Memory {
    buffer: Buffer,
    /// The exposed address, for mappings and lists of accesses.
    address: u64,
}

impl Memory {
    pub(super) fn new() -> Result<Self> {
        let buffer = Heap::Memfd.allocate(SPACE_BYTES).context("1 GiB of memory to access")?;
        let address = buffer.host().cast::<u8>().expose_provenance().get() as u64;
        Ok(Self { buffer, address })
    }

    /// Returns the address of byte `offset` in this process.
    pub(super) fn address(&self, offset: u64) -> u64 {
        assert!(offset < SPACE_BYTES);
        self.address + offset
    }

    /// Returns the page sizes of the memory.
    pub(super) fn pages(&self) -> String {
        self.buffer.page_report().to_string()
    }
}

/// The IOVA space in equal ranges, each mapped to a range of the memory. Their order is arbitrary, so
/// that none continues another.
#[derive(Clone, Debug)]
pub(super) struct Maps {
    piece_log2: u32,
    order: Arc<[u32]>,
}

impl Maps {
    /// Creates `count` mappings, a power of two.
    pub(super) fn new(count: usize) -> Self {
        assert!(count.is_power_of_two());
        let piece_log2 = SPACE_BYTES.ilog2() - count.ilog2();
        assert!(piece_log2 >= 12, "a piece is a page at least");
        let mut order: Vec<u32> = (0..count as u32).collect();
        shuffle(&mut order, &mut Random::new(1));
        Self { piece_log2, order: order.into() }
    }

    pub(super) fn count(&self) -> usize {
        self.order.len()
    }

    pub(super) fn piece_bytes(&self) -> u64 {
        1 << self.piece_log2
    }

    /// Returns the offset into the memory of `place`, an offset into the space.
    pub(super) fn memory_offset(&self, place: u64) -> u64 {
        let piece = self.order[(place >> self.piece_log2) as usize];
        (u64::from(piece) << self.piece_log2) | (place & (self.piece_bytes() - 1))
    }

    /// Returns each range: its offset into the space, and into the memory.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (u64, u64)> {
        let starts = (0..self.order.len() as u64).map(|piece| piece << self.piece_log2);
        starts.map(|place| (place, self.memory_offset(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_memory_once() {
        for count in [1, 16, 4096] {
            let maps = Maps::new(count);
            let mut offsets: Vec<u64> = maps.pieces().map(|(_, offset)| offset).collect();
            offsets.sort_unstable();
            let bytes = maps.piece_bytes();
            assert!(offsets.iter().enumerate().all(|(at, offset)| *offset == at as u64 * bytes));
            assert_eq!(bytes * count as u64, SPACE_BYTES);
            let (place, offset) = maps.pieces().last().unwrap();
            assert_eq!(maps.memory_offset(place + 77), offset + 77);
        }
    }
}
