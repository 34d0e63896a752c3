//! The memory that is accessed, and how the space of IOVAs is mapped to it.

use std::sync::Arc;

use anyhow::{Context, Result};
use longshore_heap::{Buffer, Heap};
use longshore_mem::DmaMemory;

use super::random::{Random, shuffle};

/// What is mapped, all of it.
pub(super) const SPACE_BYTES: u64 = 1 << 30;
/// Where it begins, as a device sees it.
pub(super) const BASE: u64 = 1 << 38;

/// Memory in the largest pages to be had: with small ones the processor's own TLB would be most of
/// what is measured.
pub(super) struct Memory {
    buffer: Buffer,
    /// Its address, exposed: what mappings and lists of accesses carry.
    address: u64,
}

impl Memory {
    pub(super) fn new() -> Result<Self> {
        let buffer = Heap::Memfd.allocate(SPACE_BYTES).context("1 GiB of memory to access")?;
        let address = buffer.host().cast::<u8>().expose_provenance().get() as u64;
        Ok(Self { buffer, address })
    }

    /// Where byte `offset` is in this process.
    pub(super) fn address(&self, offset: u64) -> u64 {
        assert!(offset < SPACE_BYTES);
        self.address + offset
    }

    /// The sizes of its pages.
    pub(super) fn pages(&self) -> String {
        self.buffer.page_report().to_string()
    }
}

/// The space in equal pieces, each mapped to a piece of the memory. Their order is arbitrary, so
/// that none continues another.
#[derive(Clone, Debug)]
pub(super) struct Maps {
    piece_log2: u32,
    order: Arc<[u32]>,
}

impl Maps {
    /// `count` mappings, a power of two.
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

    /// Where `place`, an offset into the space, is in memory.
    pub(super) fn memory_offset(&self, place: u64) -> u64 {
        let piece = self.order[(place >> self.piece_log2) as usize];
        (u64::from(piece) << self.piece_log2) | (place & (self.piece_bytes() - 1))
    }

    /// Each piece: an offset into the space, and into memory.
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
