//! Memory that stays mapped, cut into slots of one size.
#![expect(unsafe_code, reason = "hands out parts of memory that is mapped for a device")]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Instant;

use longshore_heap::{Buffer, Heap};
use longshore_mem::{AddrRange, DmaMemory, Iova};

use super::PoolError;
use super::classes::Class;
use crate::backend::{BackendError, Piece};
use crate::core::Core;
use crate::direction::Direction;
use crate::iova::{IovaRange, Placement};

/// What slots are alike in: their size, and what a device may do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) class: Class,
    pub(crate) direction: Direction,
}

/// A part of a chunk, for one transfer. Not `Clone`: whoever has it has the bytes.
#[derive(Debug)]
#[must_use = "dropped, it is never used again"]
pub(crate) struct Slot {
    pub(crate) host: NonNull<u8>,
    pub(crate) iova: Iova,
    pub(crate) kind: Kind,
    /// Bytes from the start that are perhaps not zero.
    pub(crate) stale_bytes: u32,
    /// Of which chunk, and the how many-th of it.
    pub(super) chunk: u32,
    pub(super) nth: u32,
}

// SAFETY: the bytes are the slot's alone, wherever it is.
unsafe impl Send for Slot {}

/// Bytes that are made and mapped at once.
pub(crate) const CHUNK_BYTES: u64 = 2 << 20;

pub(super) struct Chunk {
    memory: ManuallyDrop<Buffer>,
    iovas: ManuallyDrop<IovaRange>,
    kind: Kind,
    slot_bytes: u64,
    count: u32,
    free_count: u32,
    /// A bit for each slot that is free.
    free: Vec<u64>,
    /// What each slot's `stale_bytes` were when it was given back.
    stale_bytes: Vec<u32>,
    /// Since when all slots are free.
    idle_since: Option<Instant>,
}

impl Chunk {
    /// A chunk in huge pages where there are some, mapped.
    pub(super) fn new(core: &Core, kind: Kind) -> Result<Self, PoolError> {
        let slot_bytes = kind.class.granules() * core.limits.granule.bytes();
        // Granules of 64 KiB have slots that are larger than the usual chunk.
        let len_bytes = CHUNK_BYTES.max(slot_bytes).next_multiple_of(core.limits.granule.bytes());
        let memory = Heap::Memfd.allocate(len_bytes).map_err(PoolError::Memory)?;
        let iovas = core.iovas.take(len_bytes, Placement::ANYWHERE).map_err(PoolError::Iova)?;
        let host = memory.host().cast::<u8>();
        // SAFETY: nobody writes through the descriptor but the device, to what it is given.
        let piece = Piece { host, len_bytes, file: unsafe { memory.file() } };
        let prot = kind.direction.prot();
        // SAFETY: the memory is kept until it is unmapped, and nobody has a reference to it.
        if let Err(error) = unsafe { core.backend.map(iovas.start(), piece, prot) } {
            core.iovas.give(iovas);
            return Err(PoolError::Backend(error));
        }
        let count = (len_bytes / slot_bytes) as u32;
        let mut free = vec![u64::MAX; count.div_ceil(64) as usize];
        if !count.is_multiple_of(64) {
            *free.last_mut().expect("there is a slot") = (1 << (count % 64)) - 1;
        }
        Ok(Self {
            memory: ManuallyDrop::new(memory),
            iovas: ManuallyDrop::new(iovas),
            kind,
            slot_bytes,
            count,
            free_count: count,
            free,
            stale_bytes: vec![0; count as usize],
            idle_since: None,
        })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// Whether all slots are free, and since when.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.idle_since
    }

    /// A slot, for whoever asks for one of the chunk with the number `chunk`.
    pub(super) fn take(&mut self, chunk: u32) -> Option<Slot> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= !(1 << bit);
        self.free_count -= 1;
        self.idle_since = None;
        let nth = word as u32 * 64 + bit;
        let offset = u64::from(nth) * self.slot_bytes;
        // SAFETY: the slot lies in the chunk.
        let host = unsafe { self.memory.host().cast::<u8>().add(offset as usize) };
        let iova = Iova::new(self.iovas.start().raw() + offset);
        let stale_bytes = self.stale_bytes[nth as usize];
        Some(Slot { host, iova, kind: self.kind, stale_bytes, chunk, nth })
    }

    /// Takes a slot of this chunk back.
    pub(super) fn give(&mut self, slot: &Slot) {
        let (word, bit) = ((slot.nth / 64) as usize, slot.nth % 64);
        debug_assert!(self.free[word] & 1 << bit == 0, "{slot:?} is free already");
        self.free[word] |= 1 << bit;
        self.free_count += 1;
        self.stale_bytes[slot.nth as usize] = slot.stale_bytes;
        if self.free_count == self.count {
            self.idle_since = Some(Instant::now());
        }
    }

    /// Unmaps the chunk and frees its memory. All slots must be free.
    ///
    /// # Errors
    /// [`BackendError`]; memory and addresses are leaked then, because a device may still reach them.
    pub(super) fn destroy(mut self, core: &Core) -> Result<(), BackendError> {
        debug_assert_eq!(self.free_count, self.count, "a slot is in use");
        let range = AddrRange::new(self.iovas.start(), self.len_bytes()).expect("it was mapped");
        // SAFETY: mapped by `new` as it is; no other has these addresses.
        unsafe { core.backend.unmap(&[range]) }?;
        // SAFETY: taken once: `self` ends here.
        core.iovas.give(unsafe { ManuallyDrop::take(&mut self.iovas) });
        // SAFETY: unmapped, and dropped once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        Ok(())
    }
}
