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
use crate::iova::IovaRange;

/// What slots are alike in: their size, and what a device may do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) class: Class,
    pub(crate) direction: Direction,
}

/// A part of a chunk, for one transfer. Not `Clone`: whoever has it has the bytes.
///
/// It is the address of what is known of it, which lies beside its chunk: short, because it is moved
/// about with every transfer.
#[derive(Debug)]
#[must_use = "dropped, it is never used again"]
pub(crate) struct Slot(NonNull<Known>);

/// What is known of a slot. Its owner has it alone.
#[derive(Debug)]
struct Known {
    host: NonNull<u8>,
    iova: Iova,
    kind: Kind,
    /// Bytes from the start that are perhaps not zero.
    stale_bytes: u32,
    /// Of which chunk, and the how many-th of it.
    chunk: u32,
    nth: u32,
}

// SAFETY: the bytes and what is known of them are the slot's alone, wherever it is.
unsafe impl Send for Slot {}
// SAFETY: a shared slot only tells what does not change.
unsafe impl Sync for Slot {}

impl Slot {
    fn known(&self) -> &Known {
        // SAFETY: a chunk, and what is known of its slots, lives until all of them are given back.
        unsafe { self.0.as_ref() }
    }

    /// Where its bytes are in this process.
    pub(crate) fn host(&self) -> NonNull<u8> {
        self.known().host
    }

    /// Where a device finds them.
    pub(crate) fn iova(&self) -> Iova {
        self.known().iova
    }

    pub(crate) fn kind(&self) -> Kind {
        self.known().kind
    }

    /// The number of its chunk.
    pub(super) fn chunk(&self) -> u32 {
        self.known().chunk
    }

    /// Bytes from the start that are perhaps not zero.
    pub(crate) fn stale_bytes(&self) -> u64 {
        self.known().stale_bytes.into()
    }

    pub(crate) fn set_stale_bytes(&mut self, bytes: u64) {
        // SAFETY: as in `known`; and no other slot is this one.
        unsafe { self.0.as_mut() }.stale_bytes = bytes as u32;
    }
}

/// Bytes that are made and mapped at once.
pub(crate) const CHUNK_BYTES: u64 = 2 << 20;

/// A chunk: so many slots of one kind.
pub(super) struct Chunk {
    memory: ManuallyDrop<Buffer>,
    iovas: ManuallyDrop<IovaRange>,
    count: u32,
    free_count: u32,
    /// A bit for each slot that is free.
    free: Vec<u64>,
    /// What is known of each. Reached by slots' addresses alone, until all of them are back.
    known: NonNull<[Known]>,
    /// Since when all slots are free.
    idle_since: Option<Instant>,
}

// SAFETY: what is known of a slot is its owner's, who may be anywhere; the rest is the chunk's alone.
unsafe impl Send for Chunk {}

impl Chunk {
    /// The chunk with that number, in huge pages where there are some, mapped.
    pub(super) fn new(core: &Core, kind: Kind, number: u32) -> Result<Self, PoolError> {
        let slot_bytes = kind.class.granules() * core.limits.granule.bytes();
        // Granules of 64 KiB have slots that are larger than the usual chunk.
        let len_bytes = CHUNK_BYTES.max(slot_bytes).next_multiple_of(core.limits.granule.bytes());
        let memory = Heap::Memfd.allocate(len_bytes).map_err(PoolError::Memory)?;
        let host = memory.host().cast::<u8>();
        let start = host.addr().get() as u64;
        let take = |len_bytes, placement| core.iovas.take(len_bytes, placement);
        let iovas = core.take_for(start, len_bytes, take).map_err(PoolError::Iova)?;
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
        let known = |nth: u32| {
            let offset = u64::from(nth) * slot_bytes;
            // SAFETY: the slot lies in the chunk.
            let host = unsafe { host.add(offset as usize) };
            let iova = Iova::new(iovas.start().raw() + offset);
            Known { host, iova, kind, stale_bytes: 0, chunk: number, nth }
        };
        let known: Box<[Known]> = (0..count).map(known).collect();
        Ok(Self {
            memory: ManuallyDrop::new(memory),
            iovas: ManuallyDrop::new(iovas),
            count,
            free_count: count,
            free,
            known: NonNull::from(Box::leak(known)),
            idle_since: None,
        })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// How many slots, and how many of them are free.
    pub(super) fn slots(&self) -> (u32, u32) {
        (self.count, self.free_count)
    }

    /// Whether all slots are free, and since when.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.idle_since
    }

    /// A slot that is free.
    pub(super) fn take(&mut self) -> Option<Slot> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= !(1 << bit);
        self.free_count -= 1;
        self.idle_since = None;
        let nth = word * 64 + bit as usize;
        // SAFETY: there are as many as bits.
        Some(Slot(unsafe { self.known.cast::<Known>().add(nth) }))
    }

    /// Takes a slot of this chunk back.
    #[expect(clippy::needless_pass_by_value, reason = "the caller has it no more")]
    pub(super) fn give(&mut self, slot: Slot) {
        let nth = slot.known().nth;
        let (word, bit) = ((nth / 64) as usize, nth % 64);
        debug_assert!(self.free[word] & 1 << bit == 0, "{slot:?} is free already");
        self.free[word] |= 1 << bit;
        self.free_count += 1;
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
        // SAFETY: leaked by `new`; all slots are back, so nobody has the address of one.
        drop(unsafe { Box::from_raw(self.known.as_ptr()) });
        Ok(())
    }
}
