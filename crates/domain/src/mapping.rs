//! Memory that a device can reach.
#![expect(unsafe_code, reason = "hands memory to a backend, and keeps it until it is unmapped")]

use std::fmt;
use std::mem::ManuallyDrop;

use longshore_mem::{AddrRange, DmaMemory, Iova};

use crate::backend::Piece;
use crate::counters::Event;
use crate::direction::Direction;
use crate::domain::{Domain, Door};
use crate::error::{Error, Failed};
use crate::iova::{IovaRange, Placement};

/// Memory that a device can reach at [`iova`](Self::iova), until this is unmapped or dropped.
///
/// It owns the memory, so that nothing can free it meanwhile, even if the mapping itself is forgotten; [`unmap`](Self::unmap) gives it back.
/// Where a mapping that is dropped cannot be unmapped, its memory and its addresses are leaked rather
/// than given to somebody else while the device may still write to them.
#[must_use = "dropped, the memory is unmapped"]
pub struct Mapping<'d, B: DmaMemory + 'static, D: Door = Domain> {
    door: &'d D,
    memory: ManuallyDrop<B>,
    iovas: ManuallyDrop<IovaRange>,
    len_bytes: u64,
    direction: Direction,
}

impl<'d, B: DmaMemory + 'static, D: Door> Mapping<'d, B, D> {
    pub(crate) fn new(
        door: &'d D,
        memory: B,
        direction: Direction,
        placement: Placement,
    ) -> Result<Self, Failed<B>> {
        Self::with(door, memory, direction, |len_bytes| door.take(len_bytes, placement))
    }

    pub(crate) fn at(
        door: &'d D,
        iova: Iova,
        memory: B,
        direction: Direction,
    ) -> Result<Self, Failed<B>> {
        let iovas = &door.domain().iovas();
        Self::with(door, memory, direction, |len_bytes| iovas.take_at(iova, len_bytes))
    }

    #[inline]
    fn with(
        door: &'d D,
        memory: B,
        direction: Direction,
        take: impl FnOnce(u64) -> Result<IovaRange, crate::iova::IovaError>,
    ) -> Result<Self, Failed<B>> {
        let domain = door.domain();
        let host = memory.host();
        let (start, len_bytes) = (host.cast::<u8>().addr().get() as u64, host.len() as u64);
        let granule = domain.limits().granule;
        if !granule.is_aligned(start | len_bytes) {
            return Err(Failed {
                error: Error::Unaligned { start, len_bytes, granule },
                value: memory,
            });
        }
        let iovas = match take(len_bytes) {
            Ok(iovas) => iovas,
            Err(error) => return Err(Failed { error: error.into(), value: memory }),
        };
        let iova = iovas.start();
        // SAFETY: nobody writes through it here, and it is not kept.
        let piece = Piece { host: host.cast(), len_bytes, file: unsafe { memory.file() } };
        // SAFETY: the memory is kept, with no reference to it, until `unmap` has returned `Ok`.
        let mapped = unsafe { domain.backend().map(iova, piece, direction.prot()) };
        if let Err(source) = mapped {
            door.give(iovas);
            let error = Error::Backend { operation: "mapping", iova, len_bytes, source };
            return Err(Failed { error, value: memory });
        }
        door.note(Event::Map);
        let (memory, iovas) = (ManuallyDrop::new(memory), ManuallyDrop::new(iovas));
        Ok(Self { door, memory, iovas, len_bytes, direction })
    }

    /// Where the device finds the memory.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.iovas.start()
    }

    /// How many bytes it finds there.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Who reads and who writes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Takes the memory back. When this returns, the device cannot reach it any more.
    ///
    /// # Errors
    /// [`Error::Backend`], with the mapping, which may still be there.
    pub fn unmap(self) -> Result<B, Failed<Self>> {
        if let Err(error) = self.take_out() {
            return Err(Failed { error, value: self });
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: not used again, and not dropped.
        unsafe { this.give_back() };
        // SAFETY: not used again, and not dropped.
        Ok(unsafe { ManuallyDrop::take(&mut this.memory) })
    }

    pub(crate) fn door(&self) -> &'d D {
        self.door
    }

    /// The addresses that are mapped.
    pub(crate) fn range(&self) -> AddrRange<Iova> {
        AddrRange::new(self.iova(), self.len_bytes).expect("it was mapped")
    }

    /// The memory of a mapping that was unmapped elsewhere.
    pub(crate) fn unmapped(self) -> B {
        let mut this = ManuallyDrop::new(self);
        this.door.note(Event::Unmap);
        // SAFETY: not used again, and not dropped.
        unsafe { this.give_back() };
        // SAFETY: not used again, and not dropped.
        unsafe { ManuallyDrop::take(&mut this.memory) }
    }

    /// Unmaps, and leaves everything else.
    #[inline]
    fn take_out(&self) -> Result<(), Error> {
        let (iova, len_bytes) = (self.iova(), self.len_bytes);
        // SAFETY: mapped by `with` as it is, and the range is this mapping's alone.
        let unmapped = unsafe { self.door.domain().backend().unmap(&[self.range()]) };
        unmapped.map_err(|source| Error::Backend {
            operation: "unmapping",
            iova,
            len_bytes,
            source,
        })?;
        self.door.note(Event::Unmap);
        self.door.note(Event::Flush);
        Ok(())
    }

    /// # Safety
    /// The addresses must be unmapped, and this not be called again.
    #[inline]
    unsafe fn give_back(&mut self) {
        // SAFETY: the caller's promise.
        self.door.give(unsafe { ManuallyDrop::take(&mut self.iovas) });
    }
}

impl<B: DmaMemory + 'static, D: Door> Drop for Mapping<'_, B, D> {
    fn drop(&mut self) {
        if self.take_out().is_err() {
            self.door.note(Event::Leak);
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
            .finish_non_exhaustive()
    }
}
