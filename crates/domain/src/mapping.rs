//! Memory that a device can reach.
#![expect(unsafe_code, reason = "hands memory to a backend, and keeps it until it is unmapped")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use longshore_mem::{AddrRange, DmaMemory, Iova};

use crate::backend::Piece;
use crate::bounce;
use crate::counters::Event;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::{Error, Failed};
use crate::iova::IovaRange;
use crate::local::Door;
use crate::policy::Route;
use crate::pool::chunk::{Kind, Slot};
use crate::ragged::Ragged;

/// Memory that a device can reach at [`iova`](Self::iova), until this is unmapped or dropped.
///
/// It owns the memory, so that nothing can free it meanwhile, even if the mapping itself is forgotten;
/// [`unmap`](Self::unmap) gives it back. Where a mapping that is dropped cannot be unmapped, its memory
/// and its addresses are leaked rather than given to somebody else while the device may still write to
/// them.
#[must_use = "dropped, the memory is unmapped"]
pub struct Mapping<'d, B: DmaMemory + 'static, D: Door = Domain> {
    door: &'d D,
    memory: ManuallyDrop<B>,
    place: ManuallyDrop<Place>,
    len_bytes: u64,
    direction: Direction,
    /// The device says how much it has written.
    is_reported: bool,
}

/// Where the device finds the bytes.
enum Place {
    /// In the memory, so many bytes behind the start of these addresses.
    Direct(IovaRange, u64),
    /// In a bounce buffer.
    Slot(Slot),
    /// In the memory, but for the ends.
    Ragged(Box<Ragged>),
}

impl<'d, B: DmaMemory + 'static, D: Door> Mapping<'d, B, D> {
    #[inline]
    pub(crate) fn new(
        door: &'d D,
        memory: B,
        direction: Direction,
        is_reported: bool,
    ) -> Result<Self, Failed<B>> {
        match place(door, &memory, direction, is_reported) {
            Ok(place) => Ok(Self::of(door, memory, place, direction, is_reported)),
            Err(error) => Err(Failed { error, value: memory }),
        }
    }

    /// Whole granules, never bounced.
    pub(crate) fn direct(door: &'d D, memory: B, direction: Direction) -> Result<Self, Failed<B>> {
        match map_somewhere(door, &memory, direction) {
            Ok(place) => Ok(Self::of(door, memory, place, direction, false)),
            Err(error) => Err(Failed { error, value: memory }),
        }
    }

    pub(crate) fn at(
        door: &'d D,
        iova: Iova,
        memory: B,
        direction: Direction,
    ) -> Result<Self, Failed<B>> {
        let core = &door.domain().core;
        let (start, len_bytes) = extent(&memory);
        let placed = if core.limits.granule.is_aligned(start | len_bytes) {
            let taken = core.iovas.take_at(iova, len_bytes).map_err(Error::from);
            taken.and_then(|iovas| map(door, &memory, direction, iovas))
        } else {
            Err(Error::Unaligned { start, len_bytes, granule: core.limits.granule })
        };
        match placed {
            Ok(place) => Ok(Self::of(door, memory, place, direction, false)),
            Err(error) => Err(Failed { error, value: memory }),
        }
    }

    #[inline]
    fn of(door: &'d D, memory: B, place: Place, direction: Direction, is_reported: bool) -> Self {
        door.add(Event::Map, 1);
        let (_, len_bytes) = extent(&memory);
        let (memory, place) = (ManuallyDrop::new(memory), ManuallyDrop::new(place));
        Self { door, memory, place, len_bytes, direction, is_reported }
    }

    /// Where the device finds the memory's first byte.
    #[inline]
    pub fn iova(&self) -> Iova {
        match &*self.place {
            Place::Direct(iovas, offset) => Iova::new(iovas.start().raw() + offset),
            Place::Slot(slot) => slot.iova(),
            Place::Ragged(ragged) => Iova::new(ragged.iovas.start().raw() + ragged.offset),
        }
    }

    /// How many bytes it finds there.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Who reads and who writes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether the transfer, or the ends of it, go through bounce buffers.
    pub fn is_bounced(&self) -> bool {
        !matches!(*self.place, Place::Direct(..))
    }

    /// Takes the memory back, with what the device has written. When this returns, the device cannot
    /// reach it any more.
    ///
    /// Of a mapping whose device says how much it has written
    /// ([`map_reported`](Domain::map_reported)), that much must be said ([`complete`](Self::complete)):
    /// here nothing counts as written.
    ///
    /// # Errors
    /// [`Error::Backend`] with the mapping, which may still be there; [`Error::Copy`] with the mapping.
    pub fn unmap(self) -> Result<B, Failed<Self>> {
        let written_bytes = if self.is_reported { 0 } else { self.len_bytes };
        self.end(written_bytes)
    }

    /// The same when the device has written `written_bytes` from the start. No more is copied back
    /// from bounce buffers: what lies behind is as it was before, whatever the device did there.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap); [`Error::Reported`] with the mapping, where that is more than there
    /// is.
    pub fn complete(self, written_bytes: u64) -> Result<B, Failed<Self>> {
        if written_bytes > self.len_bytes {
            let len_bytes = self.len_bytes;
            let error = Error::Reported { iova: self.iova(), len_bytes, written_bytes };
            return Err(Failed { error, value: self });
        }
        self.end(written_bytes)
    }

    #[inline]
    fn end(self, written_bytes: u64) -> Result<B, Failed<Self>> {
        if let Err(error) = self.take_out(written_bytes) {
            return Err(Failed { error, value: self });
        }
        Ok(self.into_memory())
    }

    pub(crate) fn door(&self) -> &'d D {
        self.door
    }

    /// What the backend must unmap: nothing of a mapping that is bounced, and up to three ranges of
    /// one whose ends are.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = AddrRange<Iova>> {
        let granule = self.door.domain().core.limits.granule.bytes();
        let (direct, ragged) = match &*self.place {
            Place::Direct(iovas, offset) => {
                let len_bytes = (offset + self.len_bytes).next_multiple_of(granule);
                let range = AddrRange::new(iovas.start(), len_bytes).expect("it was mapped");
                (Some(range), None)
            }
            Place::Slot(_) => (None, None),
            Place::Ragged(ragged) => (None, Some(ragged.mapped(granule))),
        };
        direct.into_iter().chain(ragged.into_iter().flatten())
    }

    /// The memory of a mapping that was unmapped elsewhere.
    ///
    /// # Errors
    /// [`Error::Copy`] with the mapping.
    pub(crate) fn unmapped(self) -> Result<B, Failed<Self>> {
        let written_bytes = if self.is_reported { 0 } else { self.len_bytes };
        match self.copy_back(written_bytes) {
            Ok(()) => Ok(self.into_memory()),
            Err(error) => Err(Failed { error, value: self }),
        }
    }

    /// Of a mapping that the device cannot reach any more.
    #[inline]
    fn into_memory(self) -> B {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: not used again, and not dropped.
        unsafe { this.give_back() };
        // SAFETY: not used again, and not dropped.
        unsafe { ManuallyDrop::take(&mut this.memory) }
    }

    /// Makes the memory the caller's again, and leaves everything else.
    #[inline]
    fn take_out(&self, written_bytes: u64) -> Result<(), Error> {
        let mut ranges = self.mapped();
        if let Some(first) = ranges.next() {
            let core = &self.door.domain().core;
            let unmapped = match ranges.next() {
                // SAFETY: mapped as it is, and the range is this mapping's alone.
                None => unsafe { core.backend.unmap(&[first]) },
                Some(second) => {
                    let all: Vec<_> = [first, second].into_iter().chain(ranges).collect();
                    // SAFETY: the same, of each.
                    unsafe { core.backend.unmap(&all) }
                }
            };
            unmapped.map_err(|source| Error::Backend {
                operation: "unmapping",
                iova: self.iova(),
                len_bytes: self.len_bytes,
                source,
            })?;
            self.door.add(Event::Flush, 1);
        }
        self.copy_back(written_bytes)
    }

    /// Copies what the device has written in bounce buffers.
    #[inline]
    fn copy_back(&self, written_bytes: u64) -> Result<(), Error> {
        if self.direction == Direction::ToDevice || written_bytes == 0 {
            return Ok(());
        }
        let host = host(&*self.memory);
        let copied = match &*self.place {
            Place::Direct(..) => return Ok(()),
            Place::Slot(slot) => {
                // SAFETY: both have as many bytes; the memory is owned here, and nobody has a
                // reference to it.
                let copied = unsafe { bounce::copy_out(slot, host, written_bytes) };
                copied.map(|()| written_bytes)
            }
            // SAFETY: it is what was mapped; the rest as above.
            Place::Ragged(ragged) => unsafe { ragged.copy_back(host, written_bytes) },
        };
        let copied = copied.map_err(|source| Error::Copy { iova: self.iova(), source })?;
        self.door.add(Event::Copied, copied);
        Ok(())
    }

    /// # Safety
    /// The memory must be the caller's again, and this not be called twice.
    #[inline]
    unsafe fn give_back(&mut self) {
        self.door.add(Event::Unmap, 1);
        // SAFETY: the caller's promise.
        match unsafe { ManuallyDrop::take(&mut self.place) } {
            Place::Direct(iovas, _) => self.door.give(iovas),
            Place::Slot(slot) => self.door.give_slot(bounce::used(slot, self.door.domain())),
            Place::Ragged(ragged) => ragged.give(self.door),
        }
    }
}

/// Makes the memory reachable.
#[inline]
fn place<B: DmaMemory, D: Door>(
    door: &D,
    memory: &B,
    direction: Direction,
    is_reported: bool,
) -> Result<Place, Error> {
    let Domain { core, policy, .. } = door.domain();
    let granule = core.limits.granule;
    let (start, len_bytes) = extent(memory);
    match policy.route(granule, start, len_bytes, direction) {
        Route::Bounce { kind, else_direct } => {
            let slot = match door.take_slot(kind) {
                Ok(slot) => slot,
                Err(_) if else_direct => return map_somewhere(door, memory, direction),
                Err(error) => return Err(error.into()),
            };
            fill(door, slot, kind, memory, is_reported).map(Place::Slot)
        }
        Route::Direct => map_somewhere(door, memory, direction),
        Route::Ragged => {
            // SAFETY: the mapping keeps the memory, with no reference to it, until it is taken back.
            let ragged =
                unsafe { Ragged::map(door, host(memory), len_bytes, direction, is_reported) };
            ragged.map(|ragged| Place::Ragged(Box::new(ragged)))
        }
    }
}

/// Copies what the device may read, and what it may leave as it is, into a slot.
#[inline]
fn fill<B: DmaMemory, D: Door>(
    door: &D,
    mut slot: Slot,
    kind: Kind,
    memory: &B,
    is_reported: bool,
) -> Result<Slot, Error> {
    let (_, len_bytes) = extent(memory);
    if !is_reported {
        // SAFETY: the slot has as many bytes, and the memory is the caller's.
        if let Err(source) = unsafe { bounce::copy_in(&mut slot, host(memory), len_bytes) } {
            let iova = slot.iova();
            door.give_slot(slot);
            return Err(Error::Copy { iova, source });
        }
        door.add(Event::Copied, len_bytes);
    }
    debug_assert_eq!(slot.kind(), kind);
    door.add(Event::Bounce, 1);
    Ok(slot)
}

fn map_somewhere<B: DmaMemory, D: Door>(
    door: &D,
    memory: &B,
    direction: Direction,
) -> Result<Place, Error> {
    let core = &door.domain().core;
    let (start, len_bytes) = extent(memory);
    let offset = start & (core.limits.granule.bytes() - 1);
    // No bytes are no transfer; their one granule would be somebody else's.
    let bytes = if len_bytes == 0 { 0 } else { offset + len_bytes };
    let iovas = door.take(bytes, core.placement)?;
    map(door, memory, direction, iovas)
}

/// Maps the granules of the memory at `iovas`.
fn map<B: DmaMemory, D: Door>(
    door: &D,
    memory: &B,
    direction: Direction,
    iovas: IovaRange,
) -> Result<Place, Error> {
    let core = &door.domain().core;
    let granule = core.limits.granule;
    let (start, len_bytes) = extent(memory);
    let offset = start & (granule.bytes() - 1);
    let len_bytes = (offset + len_bytes).next_multiple_of(granule.bytes());
    // SAFETY: nobody writes through it here, and it is not kept.
    let file = unsafe { memory.file() };
    let file = file.filter(|(_, at)| at.raw() >= offset);
    let piece = Piece {
        host: bounce::granule_of(host(memory), offset),
        len_bytes,
        file: file.map(|(file, at)| (file, longshore_mem::FileOffset::new(at.raw() - offset))),
    };
    // SAFETY: the memory is kept, with no reference to it, until `unmap` has returned `Ok`.
    match unsafe { core.backend.map(iovas.start(), piece, direction.prot()) } {
        Ok(()) => Ok(Place::Direct(iovas, offset)),
        Err(source) => {
            let iova = iovas.start();
            door.give(iovas);
            Err(Error::Backend { operation: "mapping", iova, len_bytes, source })
        }
    }
}

#[inline]
fn host<B: DmaMemory>(memory: &B) -> NonNull<u8> {
    memory.host().cast()
}

/// Where the memory is in this process, and how long it is.
#[inline]
fn extent<B: DmaMemory>(memory: &B) -> (u64, u64) {
    let host = memory.host();
    (host.cast::<u8>().addr().get() as u64, host.len() as u64)
}

impl<B: DmaMemory + 'static, D: Door> Drop for Mapping<'_, B, D> {
    fn drop(&mut self) {
        // Nobody looks at what the device has written.
        if self.take_out(0).is_err() {
            self.door.add(Event::Leak, 1);
            return;
        }
        // SAFETY: unmapped, and this is the end.
        unsafe { self.give_back() };
        // SAFETY: the device cannot reach it any more, and this is the end.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl<B: DmaMemory + 'static, D: Door> fmt::Debug for Mapping<'_, B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("iova", &self.iova())
            .field("len_bytes", &self.len_bytes)
            .field("direction", &self.direction)
            .field("is_bounced", &self.is_bounced())
            .finish_non_exhaustive()
    }
}
