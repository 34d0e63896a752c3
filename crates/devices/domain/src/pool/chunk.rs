//! Memory that stays mapped, cut into slots of one size.
#![expect(unsafe_code, reason = "hands out parts of memory that is mapped for a device")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Instant;

use longshore_heap::{Buffer, Heap};
use longshore_mem::{AddrRange, DmaMemory, Iova};

use super::error::PoolError;
use super::kind::Kind;
use super::layout::Layout;
use crate::backend::{BackendError, Piece};
use crate::core::Core;
use crate::direction::Direction;
use crate::iova::{IovaRange, Placement};
use crate::undo::Undo;

/// A part of a chunk with one owner. It is not `Clone`, because its holder owns the bytes.
///
/// It is a pointer to its state beside the chunk, so that it is small: it moves with every transfer.
#[must_use = "if dropped, it is never used again"]
pub(crate) struct Slot<T = Bounced>(NonNull<Known<T>>);

/// The state of a slot.
#[derive(Debug)]
struct Known<T> {
    host: NonNull<u8>,
    iova: Iova,
    /// The number of its chunk, and its index in the chunk.
    chunk: u32,
    nth: u32,
    state: T,
}

/// The state of a bounce slot, which its owner can change.
#[derive(Debug)]
pub(crate) struct Bounced {
    kind: Kind,
    /// The number of bytes from the start that may be non-zero.
    stale_bytes: u32,
}

impl Bounced {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, stale_bytes: 0 }
    }
}

// SAFETY: the slot alone owns its bytes and their state, in any thread.
unsafe impl<T: Send> Send for Slot<T> {}
// SAFETY: a shared slot gives access to values that do not change, and to `T`.
unsafe impl<T: Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    fn known(&self) -> &Known<T> {
        // SAFETY: a chunk and the states of its slots live until all slots are given back.
        unsafe { self.0.as_ref() }
    }

    /// Returns the address in this process.
    pub(crate) fn host(&self) -> NonNull<u8> {
        self.known().host
    }

    /// Returns the address for a device.
    pub(crate) fn iova(&self) -> Iova {
        self.known().iova
    }

    /// Returns the number of its chunk.
    pub(super) fn chunk(&self) -> u32 {
        self.known().chunk
    }

    pub(crate) fn state(&self) -> &T {
        &self.known().state
    }

    /// Returns another handle to the same slot.
    ///
    /// # Safety
    /// Only one of the handles may be given back, after the last use of the others, and `T` must not be
    /// changed through any of them.
    pub(crate) unsafe fn share(&self) -> Self {
        Self(self.0)
    }
}

impl Slot {
    pub(crate) fn kind(&self) -> Kind {
        self.state().kind
    }

    /// Returns the number of bytes from the start that may be non-zero.
    pub(crate) fn stale_bytes(&self) -> u64 {
        self.state().stale_bytes.into()
    }

    pub(crate) fn set_stale_bytes(&mut self, bytes: u64) {
        // SAFETY: as in `known`; bounce slots are not shared, so no other handle leads to this state.
        unsafe { self.0.as_mut() }.state.stale_bytes = bytes as u32;
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("iova", &self.iova()).finish_non_exhaustive()
    }
}

/// A chunk: memory that stays mapped, with slots of one size.
pub(crate) struct Chunk<T> {
    memory: ManuallyDrop<Buffer>,
    iovas: ManuallyDrop<IovaRange>,
    count: u32,
    free_count: u32,
    /// A bit for each slot, which is set if it is free.
    free: Vec<u64>,
    /// The states of the slots. Until all slots are back, only the slots access them.
    known: NonNull<[Known<T>]>,
    /// The time since which all slots are free.
    idle_since: Option<Instant>,
}

// SAFETY: the owner of a slot, in any thread, owns its state; the chunk owns all else.
unsafe impl<T: Send> Send for Chunk<T> {}

impl<T> Chunk<T> {
    /// Returns the length of the states of all slots in bytes.
    pub(crate) fn known_bytes(layout: &Layout) -> u64 {
        u64::from(layout.count()) * size_of::<Known<T>>() as u64
    }

    /// Allocates and maps a chunk with this number, in huge pages if there are some. All its slots
    /// are free, and `state` returns the state of each.
    pub(crate) fn new(
        core: &Core,
        layout: &Layout,
        direction: Direction,
        number: u32,
        mut state: impl FnMut() -> T,
    ) -> Result<Self, PoolError> {
        let len_bytes = layout.chunk_bytes();
        let memory = Heap::Memfd.allocate(len_bytes).map_err(PoolError::Memory)?;
        let host = memory.host().cast::<u8>();
        let start = host.addr().get() as u64;
        let take = |len_bytes, placement: Placement| {
            core.iovas.take(len_bytes, placement.aligned(placement.align.max(layout.align())))
        };
        let iovas = core.take_for(start, len_bytes, take).map_err(PoolError::Iova)?;
        // SAFETY: only the device writes through the descriptor, and only to memory that it may write.
        let piece = Piece { host, len_bytes, file: unsafe { memory.file() } };
        let iovas = Undo::new(iovas, |iovas| core.iovas.give(iovas));
        // SAFETY: the memory is kept until it is unmapped, and there is no reference to it.
        unsafe { core.backend.map(iovas.get().start(), piece, direction.prot()) }
            .map_err(PoolError::Backend)?;
        // From here on the device can reach it.
        let (iovas, memory) = (ManuallyDrop::new(iovas.keep()), ManuallyDrop::new(memory));
        let count = layout.count();
        let mut free = vec![u64::MAX; count.div_ceil(64) as usize];
        if !count.is_multiple_of(64) {
            *free.last_mut().expect("there is a slot") = (1 << (count % 64)) - 1;
        }
        let known = |nth: u32| {
            let offset = layout.offset_of(nth);
            // SAFETY: the slot lies in the chunk.
            let host = unsafe { host.add(offset as usize) };
            let iova = Iova::new(iovas.start().raw() + offset);
            Known { host, iova, chunk: number, nth, state: state() }
        };
        let known: Box<[Known<T>]> = (0..count).map(known).collect();
        Ok(Self {
            memory,
            iovas,
            count,
            free_count: count,
            free,
            known: NonNull::from(Box::leak(known)),
            idle_since: Some(Instant::now()),
        })
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.memory.len()
    }

    /// Returns how many slots there are, and how many of them are free.
    pub(super) fn slots(&self) -> (u32, u32) {
        (self.count, self.free_count)
    }

    /// Returns the time since which all slots are free; `None` if one is in use.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.idle_since
    }

    /// Takes a free slot.
    pub(super) fn take(&mut self) -> Option<Slot<T>> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= !(1 << bit);
        self.free_count -= 1;
        self.idle_since = None;
        let nth = word * 64 + bit as usize;
        // SAFETY: there is a state for each bit.
        Some(Slot(unsafe { self.known.cast::<Known<T>>().add(nth) }))
    }

    /// Takes a slot of this chunk back.
    #[expect(clippy::needless_pass_by_value, reason = "the caller gives its slot up")]
    pub(super) fn give(&mut self, slot: Slot<T>) {
        let nth = slot.known().nth;
        let (word, bit) = ((nth / 64) as usize, nth % 64);
        debug_assert!(self.free[word] & 1 << bit == 0, "{slot:?} is free already");
        self.free[word] |= 1 << bit;
        self.free_count += 1;
        if self.free_count == self.count {
            self.idle_since = Some(Instant::now());
        }
    }

    /// Returns the addresses at which it is mapped.
    pub(super) fn range(&self) -> AddrRange<Iova> {
        AddrRange::new(self.iovas.start(), self.len_bytes()).expect("it was mapped")
    }

    /// Unmaps the chunk and frees its memory. All slots must be free.
    ///
    /// # Errors
    /// [`BackendError`]; memory and addresses are leaked then, because a device may still use them.
    pub(crate) fn destroy(mut self, core: &Core) -> Result<(), BackendError> {
        debug_assert_eq!(self.free_count, self.count, "a slot is in use");
        // SAFETY: `new` mapped exactly this range, and no other code uses it.
        unsafe { core.backend.unmap(&[self.range()]) }?;
        // SAFETY: taken once: `self` ends here.
        core.iovas.give(unsafe { ManuallyDrop::take(&mut self.iovas) });
        // SAFETY: unmapped, and dropped once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        // SAFETY: leaked by `new`; all slots are back, so no pointer to a state is left.
        drop(unsafe { Box::from_raw(self.known.as_ptr()) });
        Ok(())
    }
}
