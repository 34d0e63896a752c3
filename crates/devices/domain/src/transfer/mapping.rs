//! Memory that a device can reach.
#![expect(unsafe_code, reason = "hands memory to a backend, and keeps it until it is unmapped")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;

use longshore_mem::{AddrRange, DmaMemory, Iova};

use super::borrowed::abort_if_borrowed;
use super::bounce::{self, Elsewhere};
use super::place::{Place, check, extent, fill, host, map, map_somewhere, place, read_only};
use super::way::Way;
use crate::counters::Event;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::{Error, Failed};
use crate::handle::sealed::Seal;
use crate::handle::{Handle, await_slot};
use crate::iova::IovaRange;
use crate::local::Local;
use crate::policy::Route;
use crate::pool::chunk::Slot;
use crate::pool::classes::Class;
use crate::pool::kind::Kind;
use crate::state::State;
use crate::trace::{Span, span};
use crate::watch::{MappingInfo, Slack};

/// Memory that a device can reach at [`iova`](Self::iova), until this is unmapped or dropped.
///
/// It owns the memory, so that no code can free it meanwhile, even if the mapping is leaked;
/// [`unmap`](Self::unmap) gives it back. If a dropped mapping cannot be unmapped, its memory and its
/// addresses are leaked, because the device may still write to them.
#[must_use = "if dropped, the memory is unmapped"]
#[repr(C)]
pub struct Mapping<'d, B: DmaMemory + 'static, D: Handle = Domain> {
    memory: ManuallyDrop<B>,
    place: ManuallyDrop<Place>,
    handle: &'d D,
    way: Way,
}

impl Domain {
    /// Maps all of `memory` for the device in this direction, until the mapping is unmapped.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[track_caller]
    pub fn map<B: DmaMemory + 'static>(
        &self,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B>, Failed<B>> {
        Mapping::new(self, memory, direction, false)
    }

    /// Maps memory that the device only writes, if it reports how many bytes it has written. The
    /// previous bytes are not copied to a bounce buffer. [`Mapping::complete`] takes the memory back.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[track_caller]
    pub fn map_reported<B: DmaMemory + 'static>(
        &self,
        memory: B,
    ) -> Result<Mapping<'_, B>, Failed<B>> {
        Mapping::new(self, memory, Direction::FromDevice, true)
    }

    /// Maps memory as [`map`](Self::map), at an address that the caller chooses. It is never bounced.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[track_caller]
    pub fn map_at<B: DmaMemory + 'static>(
        &self,
        iova: Iova,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B>, Failed<B>> {
        Mapping::at(self, iova, memory, direction)
    }
}

impl Local<'_> {
    /// Maps memory as [`Domain::map`], without a lock once the handle is warm.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[inline(always)]
    #[track_caller]
    pub fn map<B: DmaMemory + 'static>(
        &self,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B, Self>, Failed<B>> {
        Mapping::new(self, memory, direction, false)
    }

    /// Maps memory as [`Domain::map_reported`], without a lock once the handle is warm.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[inline(always)]
    #[track_caller]
    pub fn map_reported<B: DmaMemory + 'static>(
        &self,
        memory: B,
    ) -> Result<Mapping<'_, B, Self>, Failed<B>> {
        Mapping::new(self, memory, Direction::FromDevice, true)
    }
}

impl<'d, B: DmaMemory + 'static, D: Handle> Mapping<'d, B, D> {
    #[inline(always)]
    #[track_caller]
    pub(crate) fn new(
        handle: &'d D,
        memory: B,
        direction: Direction,
        is_reported: bool,
    ) -> Result<Self, Failed<B>> {
        let span = span!("map", direction = direction; len_bytes, iova, is_bounced);
        let made = Self::make(handle, memory, direction, is_reported);
        if let Ok(mapping) = &made {
            mapping.tell(&span);
        }
        made
    }

    /// As [`new`](Self::new), without a span. If a subscriber panics when a span is left, the function's
    /// return value is leaked, and a mapping of borrowed bytes must not be leaked.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn make(
        handle: &'d D,
        memory: B,
        direction: Direction,
        is_reported: bool,
    ) -> Result<Self, Failed<B>> {
        let checked = check(&memory, direction);
        match checked.and_then(|()| place(handle, &memory, direction, is_reported)) {
            Ok(place) => Ok(Self::of(handle, memory, place, direction, is_reported)),
            Err(error) => Err(Failed { error, value: memory }),
        }
    }

    /// Maps the granules of the memory, without a bounce buffer.
    #[track_caller]
    pub(crate) fn direct(
        handle: &'d D,
        memory: B,
        direction: Direction,
    ) -> Result<Self, Failed<B>> {
        let checked = check(&memory, direction);
        match checked.and_then(|()| map_somewhere(handle, &memory, direction)) {
            Ok(place) => Ok(Self::of(handle, memory, place, direction, false)),
            Err(error) => Err(Failed { error, value: memory }),
        }
    }

    /// Makes a mapping through a slot that `copy` fills. Returns the memory if the transfer is to be
    /// mapped instead.
    #[track_caller]
    pub(crate) fn slotted(
        handle: &'d D,
        memory: B,
        direction: Direction,
        copy: impl FnOnce(&mut Slot) -> Result<(), Box<Error>>,
    ) -> Result<Result<Self, B>, Failed<B>> {
        if let Err(error) = check(&memory, direction) {
            return Err(Failed { error, value: memory });
        }
        let State { core, policy, .. } = handle.state();
        let (start, len_bytes) = extent(&memory);
        let for_slot = core.slot_direction(direction, false);
        let route = policy.route(core.limits.granule, start, len_bytes, for_slot);
        let Route::Bounce { kind, else_direct } = route else { return Ok(Err(memory)) };
        let mut slot = match handle.take_slot(kind) {
            Ok(slot) => slot,
            Err(_) if else_direct => return Ok(Err(memory)),
            Err(error) => match await_slot(handle, kind, error) {
                Ok(slot) => slot,
                Err(error) => {
                    let error = Error::from(error).into();
                    return Err(Failed { error, value: memory });
                }
            },
        };
        if let Err(error) = copy(&mut slot) {
            handle.give_slot(slot);
            return Err(Failed { error, value: memory });
        }
        handle.add(Event::Bounce, 1);
        Ok(Ok(Self::of(handle, memory, Place::Slot(slot), direction, false)))
    }

    /// Makes a mapping through a slot. There must be slots of that length.
    #[track_caller]
    pub(crate) fn bounced(
        handle: &'d D,
        memory: B,
        direction: Direction,
    ) -> Result<Self, Failed<B>> {
        let (start, len_bytes) = extent(&memory);
        let len_bytes = handle.state().policy.slot_offset(start) + len_bytes;
        let class = Class::of_bytes(len_bytes, handle.state().core.limits.granule.log2());
        let kind = Kind { class: class.expect("a slot has room for it"), direction };
        let slot = check(&memory, direction)
            .and_then(|()| handle.take_slot(kind).map_err(|error| Box::new(error.into())));
        match slot.and_then(|slot| fill(handle, slot, kind, &memory, false)) {
            Ok(slot) => Ok(Self::of(handle, memory, Place::Slot(slot), direction, false)),
            Err(error) => Err(Failed { error, value: memory }),
        }
    }

    #[track_caller]
    fn at(handle: &'d D, iova: Iova, memory: B, direction: Direction) -> Result<Self, Failed<B>> {
        let core = &handle.state().core;
        let (start, len_bytes) = extent(&memory);
        let placed = if let Err(error) = check(&memory, direction) {
            Err(error)
        } else if core.limits.granule.is_aligned(start | len_bytes) {
            let taken = core.iovas.take_at(iova, len_bytes).map_err(Error::from);
            taken.map_err(Box::new).and_then(|iovas| map(handle, &memory, direction, iovas))
        } else {
            Err(Error::Unaligned { start, len_bytes, granule: core.limits.granule }.into())
        };
        match placed {
            Ok(place) => Ok(Self::of(handle, memory, place, direction, false)),
            Err(error) => Err(Failed { error, value: memory }),
        }
    }

    #[inline(always)]
    #[track_caller]
    fn of(handle: &'d D, memory: B, place: Place, direction: Direction, is_reported: bool) -> Self {
        handle.add(Event::Map, 1);
        let (memory, place) = (ManuallyDrop::new(memory), ManuallyDrop::new(place));
        let way = Way::new(direction, is_reported);
        let mapping = Self { handle, memory, place, way };
        if handle.state().watch.is_some() {
            return mapping.watched(Location::caller());
        }
        mapping
    }

    /// Registers the mapping with the checker. It takes the mapping by value: a mapping whose address
    /// is taken cannot stay in registers, which costs more than making and ending it.
    #[cold]
    #[inline(never)]
    fn watched(self, by: &'static Location<'static>) -> Self {
        if let Some(watch) = &self.handle.state().watch {
            let (iova, is_bounced) = (self.iova(), self.is_bounced());
            let (len_bytes, direction) = (self.len(), self.way.direction());
            let host = self.host().addr().get() as u64;
            let made = MappingInfo { iova, len_bytes, direction, is_bounced, by };
            // SAFETY: the bytes belong to this mapping, which was just made.
            unsafe { watch.begin(made, host, self.slack(0)) };
        }
        self
    }

    /// As [`end`](Self::end), with a checker. `said` is the source location at which the program reports
    /// the written bytes.
    #[cold]
    #[inline(never)]
    fn end_watched(
        mut self,
        written_bytes: u64,
        said: Option<&'static Location<'static>>,
        copy_back: impl FnOnce(&Self) -> Result<(), Box<Error>>,
    ) -> Result<B, Failed<Self>> {
        match self.unreach() {
            Ok(()) => self.take_watched(written_bytes, said, copy_back),
            Err(error) => Err(Failed { error, value: self }),
        }
    }

    /// Does the rest of `end_watched`, when the device cannot reach the mapping any more. If a report
    /// panics, the mapping is dropped.
    fn take_watched(
        mut self,
        written_bytes: u64,
        said: Option<&'static Location<'static>>,
        copy_back: impl FnOnce(&Self) -> Result<(), Box<Error>>,
    ) -> Result<B, Failed<Self>> {
        self.set_unmapped();
        let iova = self.iova();
        if let Some(watch) = &self.handle.state().watch {
            match said {
                Some(at) => watch.completed(iova, written_bytes, at),
                None if self.way.is_reported() => watch.silent(iova),
                None => {}
            }
            // SAFETY: the bytes belong to this mapping.
            unsafe { watch.ending(iova, self.slack(written_bytes)) };
        }
        if let Err(error) = copy_back(&self) {
            return Err(Failed { error, value: self });
        }
        // Before another mapping can get the address.
        if let Some(watch) = &self.handle.state().watch {
            watch.ended(iova);
        }
        Ok(Self::into_memory(ManuallyDrop::new(self)))
    }

    #[inline(always)]
    pub(crate) fn tell(&self, span: &Span) {
        if cfg!(feature = "tracing") {
            span.tell("len_bytes", self.len());
            span.tell("iova", self.iova().raw());
            span.tell("is_bounced", self.is_bounced().into());
        }
    }

    /// Returns the address of the first byte for the device.
    #[inline]
    pub fn iova(&self) -> Iova {
        match &*self.place {
            Place::Direct(iovas) => Iova::new(iovas.start().raw() + self.offset()),
            Place::Slot(slot) => Iova::new(slot.iova().raw() + self.slot_offset()),
            Place::Unaligned(unaligned) => {
                Iova::new(unaligned.iovas.start().raw() + unaligned.offset)
            }
        }
    }

    /// Returns the length in bytes, which is not zero.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "a mapping has at least one byte")]
    pub fn len(&self) -> u64 {
        let (_, len_bytes) = extent(&*self.memory);
        len_bytes
    }

    /// Returns the direction.
    pub fn direction(&self) -> Direction {
        self.way.direction()
    }

    /// Returns true if the transfer or one of its ends goes through a bounce buffer.
    pub fn is_bounced(&self) -> bool {
        !matches!(*self.place, Place::Direct(..))
    }

    /// Unmaps the memory and returns it, with the bytes that the device has written. When this
    /// returns, the device cannot reach it any more.
    ///
    /// If the device reports how many bytes it has written ([`map_reported`](Domain::map_reported)),
    /// call [`complete`](Self::complete) with that number instead: this function assumes that it wrote
    /// none.
    ///
    /// # Errors
    /// [`Error::Backend`] with the mapping, which may still be mapped; [`Error::Copy`] with the
    /// mapping.
    #[inline(always)]
    pub fn unmap(self) -> Result<B, Failed<Self>> {
        let written_bytes = if self.way.is_reported() { 0 } else { self.len() };
        let copy_back = |mapping: &Self| mapping.copy_back(written_bytes);
        if self.handle.state().watch.is_some() {
            return self.end_watched(written_bytes, None, copy_back);
        }
        Self::end(ManuallyDrop::new(self), written_bytes, copy_back)
    }

    /// Unmaps the memory, of which the device has written the first `written_bytes` bytes. Only these
    /// are copied back from bounce buffers: the bytes after them are as before, even if the device wrote
    /// there.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap); [`Error::Reported`] with the mapping if `written_bytes` is more
    /// than its length.
    #[inline(always)]
    #[track_caller]
    pub fn complete(self, written_bytes: u64) -> Result<B, Failed<Self>> {
        let at = Location::caller();
        self.finish(written_bytes, at, |mapping| mapping.copy_back(written_bytes))
    }

    /// Ends a mapping of which the device has written this many bytes, which `copy_back` copies to
    /// the memory.
    #[inline(always)]
    pub(crate) fn finish(
        self,
        written_bytes: u64,
        at: &'static Location<'static>,
        copy_back: impl FnOnce(&Self) -> Result<(), Box<Error>>,
    ) -> Result<B, Failed<Self>> {
        if written_bytes > self.len() {
            let len_bytes = self.len();
            let error = Error::Reported { iova: self.iova(), len_bytes, written_bytes };
            return Err(Failed { error: error.into(), value: self });
        }
        if self.handle.state().watch.is_some() {
            return self.end_watched(written_bytes, Some(at), copy_back);
        }
        Self::end(ManuallyDrop::new(self), written_bytes, copy_back)
    }

    /// `ManuallyDrop` keeps drop glue out of this path: unwinding leaks the mapping, and in return
    /// it stays in registers.
    #[inline(always)]
    fn end(
        mut this: ManuallyDrop<Self>,
        written_bytes: u64,
        copy_back: impl FnOnce(&Self) -> Result<(), Box<Error>>,
    ) -> Result<B, Failed<Self>> {
        let span = span!("unmap", written_bytes = written_bytes; len_bytes, iova, is_bounced);
        this.tell(&span);
        if let Err(error) = this.unreach() {
            return Err(Failed { error, value: ManuallyDrop::into_inner(this) });
        }
        if let Err(error) = copy_back(&this) {
            this.set_unmapped();
            return Err(Failed { error, value: ManuallyDrop::into_inner(this) });
        }
        Ok(Self::into_memory(this))
    }

    /// As [`unmap`](Self::unmap), without a span. A panic drops the mapping.
    pub(crate) fn unmap_lent(mut self) -> Result<(), Failed<Self>> {
        if let Err(error) = self.unreach() {
            return Err(Failed { error, value: self });
        }
        let len_bytes = self.len();
        let copy_back = |mapping: &Self| mapping.copy_back(len_bytes);
        self.take_watched(len_bytes, None, copy_back).map(drop)
    }

    /// Enters the span of unmapping, with its fields.
    pub(crate) fn unmap_span(&self) -> Span {
        let span = span!("unmap", written_bytes = self.len(); len_bytes, iova, is_bounced);
        self.tell(&span);
        span
    }

    /// Notes that the backend has unmapped it.
    pub(crate) fn set_unmapped(&mut self) {
        if let Place::Unaligned(unaligned) = &mut *self.place {
            unaligned.set_unmapped();
        }
        self.way.set_unmapped();
    }

    /// Returns true if the device reports how many bytes it has written.
    pub(crate) fn is_reported(&self) -> bool {
        self.way.is_reported()
    }

    /// Returns the address of the memory in this process.
    pub(crate) fn host(&self) -> NonNull<u8> {
        host(&*self.memory)
    }

    /// Returns the bytes that the device accesses in slots, and not in the memory.
    pub(crate) fn elsewhere(&self) -> [Option<Elsewhere>; 2] {
        match &*self.place {
            Place::Direct(..) => [None, None],
            Place::Slot(slot) => {
                // SAFETY: within the slot.
                let host = unsafe { slot.host().add(self.slot_offset() as usize) };
                [Some(Elsewhere { host, at: 0, len_bytes: self.len() }), None]
            }
            Place::Unaligned(unaligned) => unaligned.elsewhere(),
        }
    }

    /// Returns the bytes of a slot after those that the device may have written: address, length,
    /// and offset in the transfer.
    #[inline(always)]
    fn slack(&self, written_bytes: u64) -> Option<Slack> {
        let written_bytes = if self.way.is_reported() { written_bytes } else { self.len() };
        let granule = self.handle.state().core.limits.granule.bytes();
        match &*self.place {
            Place::Slot(slot) => {
                let slot_bytes = slot.kind().class.granules() * granule;
                let end = self.slot_offset() + written_bytes;
                // SAFETY: within the slot.
                let start = unsafe { slot.host().add(end as usize) };
                Some((start, slot_bytes - end, written_bytes))
            }
            Place::Unaligned(unaligned) => unaligned.slack(granule, written_bytes),
            Place::Direct(..) => None,
        }
    }

    /// Returns an error if the memory is read-only.
    pub(crate) fn check_writable(&self, operation: &'static str) -> Result<(), Error> {
        if self.memory.is_writable() {
            return Ok(());
        }
        Err(*read_only(extent(&*self.memory), operation))
    }

    pub(crate) fn handle(&self) -> &'d D {
        self.handle
    }

    /// Adds the ranges that the backend must unmap: none for a bounced mapping, and up to three for one
    /// with bounced ends.
    pub(crate) fn add_mapped(&self, ranges: &mut Vec<AddrRange<Iova>>) {
        match &*self.place {
            Place::Direct(_) if self.way.is_unmapped() => {}
            Place::Direct(iovas) => ranges.push(self.range(iovas)),
            Place::Slot(_) => {}
            Place::Unaligned(unaligned) => {
                let granule = self.handle.state().core.limits.granule.bytes();
                ranges.extend(unaligned.mapped(granule));
            }
        }
    }

    /// Returns the offset of the memory in its granule.
    #[inline(always)]
    fn offset(&self) -> u64 {
        let (start, _) = extent(&*self.memory);
        start & (self.handle.state().core.limits.granule.bytes() - 1)
    }

    /// Returns the offset of a bounced transfer in its slot.
    #[inline(always)]
    fn slot_offset(&self) -> u64 {
        let (start, _) = extent(&*self.memory);
        self.handle.state().policy.slot_offset(start)
    }

    /// Returns the range of a mapping that is not bounced.
    #[inline(always)]
    fn range(&self, iovas: &IovaRange) -> AddrRange<Iova> {
        let granule = self.handle.state().core.limits.granule.bytes();
        let len_bytes = (self.offset() + self.len()).next_multiple_of(granule);
        AddrRange::new(iovas.start(), len_bytes).expect("it was mapped")
    }

    /// Returns the memory of a mapping that was unmapped by a batch.
    ///
    /// # Errors
    /// [`Error::Copy`] with the mapping.
    pub(crate) fn unmapped(mut self) -> Result<B, Failed<Self>> {
        self.set_unmapped();
        let written_bytes = if self.way.is_reported() { 0 } else { self.len() };
        if self.handle.state().watch.is_some() {
            let copy_back = |mapping: &Self| mapping.copy_back(written_bytes);
            return self.take_watched(written_bytes, None, copy_back);
        }
        match self.copy_back(written_bytes) {
            Ok(()) => Ok(Self::into_memory(ManuallyDrop::new(self))),
            Err(error) => Err(Failed { error, value: self }),
        }
    }

    /// Takes the memory out of a mapping that the device cannot reach any more.
    #[inline(always)]
    fn into_memory(mut this: ManuallyDrop<Self>) -> B {
        // SAFETY: not used again, and not dropped.
        unsafe { this.give_back() };
        // SAFETY: not used again, and not dropped.
        unsafe { ManuallyDrop::take(&mut this.memory) }
    }

    /// Unmaps the memory, unless it was unmapped already.
    #[inline(always)]
    fn unreach(&mut self) -> Result<(), Box<Error>> {
        if self.way.is_unmapped() {
            return Ok(());
        }
        if let Place::Direct(iovas) = &*self.place {
            return self.unmap_range(self.range(iovas));
        }
        let len_bytes = self.len();
        match &mut *self.place {
            Place::Unaligned(unaligned) => unaligned.unmap(self.handle, len_bytes),
            Place::Direct(..) | Place::Slot(_) => Ok(()),
        }
    }

    #[inline(always)]
    fn unmap_range(&self, range: AddrRange<Iova>) -> Result<(), Box<Error>> {
        // SAFETY: exactly this range was mapped, and this mapping alone owns it.
        let unmapped = unsafe { self.handle.state().core.backend.unmap(&[range]) };
        let (iova, len_bytes) = (self.iova(), self.len());
        unmapped.map_err(|source| Error::Backend {
            operation: "unmapping",
            iova,
            len_bytes,
            source,
        })?;
        self.handle.add(Event::Flush, 1);
        Ok(())
    }

    /// Copies the bytes that the device has written from bounce buffers to the memory.
    #[inline(always)]
    fn copy_back(&self, written_bytes: u64) -> Result<(), Box<Error>> {
        if self.way.direction() == Direction::ToDevice || written_bytes == 0 {
            return Ok(());
        }
        let host = host(&*self.memory);
        let copied = match &*self.place {
            Place::Direct(..) => return Ok(()),
            Place::Slot(slot) => {
                // SAFETY: both have this many bytes. The mapping owns the memory, to which there is no
                // reference, and which is writable, because the direction is not `ToDevice`.
                let copied =
                    unsafe { bounce::copy_out(slot, self.slot_offset(), host, written_bytes) };
                copied.map(|()| written_bytes)
            }
            // SAFETY: `host` is the memory that was mapped; the rest is as above.
            Place::Unaligned(unaligned) => unsafe { unaligned.copy_back(host, written_bytes) },
        };
        let copied = copied.map_err(|source| Error::Copy { iova: self.iova(), source })?;
        self.handle.add(Event::Copied, copied);
        Ok(())
    }

    /// Gives the addresses or slots back.
    ///
    /// # Safety
    /// The memory must be unmapped, and this must not be called twice.
    #[inline(always)]
    unsafe fn give_back(&mut self) {
        self.handle.add(Event::Unmap, 1);
        // SAFETY: the caller's promise.
        match unsafe { ManuallyDrop::take(&mut self.place) } {
            Place::Direct(iovas) => self.handle.give(Seal, iovas),
            Place::Slot(slot) => {
                self.handle.give_slot(bounce::used(slot, &self.handle.state().core));
            }
            Place::Unaligned(unaligned) => unaligned.give(self.handle),
        }
    }
}

impl<B: DmaMemory + 'static, D: Handle> Drop for Mapping<'_, B, D> {
    fn drop(&mut self) {
        // The bytes that the device has written are not copied back.
        if let Err(error) = self.unreach() {
            abort_if_borrowed::<B>(&error);
            self.handle.add(Event::Leak, 1);
            return;
        }
        if let Some(watch) = &self.handle.state().watch {
            watch.ended(self.iova());
        }
        // SAFETY: the memory is unmapped, and this is called once.
        unsafe { self.give_back() };
        // SAFETY: the device cannot reach the memory any more, and this is called once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl<B: DmaMemory + 'static, D: Handle> fmt::Debug for Mapping<'_, B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("iova", &self.iova())
            .field("len_bytes", &self.len())
            .field("direction", &self.way.direction())
            .field("is_bounced", &self.is_bounced())
            .finish_non_exhaustive()
    }
}
