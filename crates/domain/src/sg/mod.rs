//! Scatter-gather: one transfer whose bytes lie in several places.
#![expect(unsafe_code, reason = "hands memory to a backend, and keeps it until it is unmapped")]

mod layout;

use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;

use longshore_iov::kinds::Kind as IovKind;
use longshore_iov::{Cursor, Dest, SegmentSource as _, Source};
use longshore_mem::copy::{CopyFault, copy_bytes};
use longshore_mem::{AddrRange, DmaMemory, Granule, Iova};

use crate::bounce;
use crate::counters::Event;
use crate::direction::Direction;
use crate::domain::{Domain, Inner};
use crate::error::{Error, Failed};
use crate::iova::IovaRange;
use crate::local::{Door, Local, await_slot};
use crate::pieces::{Partly, map_all};
use crate::policy::WhenFull;
use crate::pool::chunk::{Kind, Slot};
use crate::pool::classes::Class;
use crate::scoped::{Ending, Lent};
use crate::trace::span;
use crate::watch::Made;
use layout::{Layout, Run, runs};

/// What a device can take of a scattered transfer. Everything, unless it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SgLimits {
    segments: usize,
    segment_bytes: u64,
    boundary: Option<Granule>,
}

impl Default for SgLimits {
    fn default() -> Self {
        Self { segments: usize::MAX, segment_bytes: u64::MAX, boundary: None }
    }
}

impl SgLimits {
    /// No limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most segments that a transfer may have.
    #[must_use]
    pub fn segments(self, most: usize) -> Self {
        Self { segments: most, ..self }
    }

    /// The most bytes of a segment.
    #[must_use]
    pub fn segment_bytes(self, most: NonZero<u64>) -> Self {
        Self { segment_bytes: most.get(), ..self }
    }

    /// No segment lies on both sides of a multiple of this.
    #[must_use]
    pub fn boundary(self, boundary: Granule) -> Self {
        Self { boundary: Some(boundary), ..self }
    }

    /// Cuts what lies side by side into segments that the device can take.
    fn split(&self, whole: impl Iterator<Item = (Iova, u64)>) -> Result<Vec<SgSegment>, Error> {
        let mut segments = Vec::new();
        let mut all_bytes = 0;
        for (iova, len_bytes) in whole {
            let (mut at, mut left) = (iova.raw(), len_bytes);
            while left != 0 {
                let to_boundary = self
                    .boundary
                    .map_or(u64::MAX, |every| every.bytes() - (at & (every.bytes() - 1)));
                let len_bytes = left.min(self.segment_bytes).min(to_boundary);
                segments.push(SgSegment { iova: Iova::new(at), len_bytes });
                at = at.wrapping_add(len_bytes);
                left -= len_bytes;
            }
            all_bytes += len_bytes;
        }
        let (count, most) = (segments.len(), self.segments);
        if count > most {
            return Err(Error::TooManySegments { len_bytes: all_bytes, segments: count, most });
        }
        Ok(segments)
    }
}

/// Bytes that a device finds side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SgSegment {
    /// Where.
    pub iova: Iova,
    /// How many.
    pub len_bytes: u64,
}

/// One transfer of bytes in several places, which a device finds in [`segments`](Self::segments).
///
/// It owns the memory as a [`Mapping`](crate::Mapping) does, and leaks it as that does.
#[must_use = "dropped, the memory is unmapped"]
pub struct SgMapping<'d, M, D: Door = Domain> {
    door: &'d D,
    memory: ManuallyDrop<M>,
    place: ManuallyDrop<Place>,
    runs: Vec<Run>,
    segments: Vec<SgSegment>,
    len_bytes: u64,
    direction: Direction,
}

// SAFETY: the places are memory's that may be sent, and nobody else uses it while it is mapped.
unsafe impl Send for Run {}

enum Place {
    /// All of it in one bounce buffer.
    Slot(Slot),
    /// In the memory, but for what shares a granule with something else.
    Spread(Spread),
}

struct Spread {
    iovas: IovaRange,
    layout: Layout,
    /// One for each place that is copied.
    slots: Vec<Slot>,
    /// The device can reach it: not any more, where it was unmapped and could not be copied back.
    is_mapped: bool,
}

/// Bytes of the transfer that the device finds in a slot.
struct Elsewhere {
    slot: NonNull<u8>,
    host: NonNull<u8>,
    /// Where in the transfer, and how many.
    at: u64,
    len_bytes: u64,
}

impl<'d, M, D: Door> SgMapping<'d, M, D> {
    /// # Safety
    /// The places must be memory that `M` keeps where it is, and to which it lets nobody have a
    /// reference that a device's access would contradict; where `M` does not, the caller must, until
    /// this is unmapped.
    #[track_caller]
    unsafe fn new(
        door: &'d D,
        memory: M,
        places: impl IntoIterator<Item = Run>,
        direction: Direction,
        limits: &SgLimits,
    ) -> Result<Self, Failed<M>> {
        let _span = span!("map_sg", direction = direction);
        let runs = runs(places);
        // SAFETY: the caller's promise.
        let (place, segments) = match unsafe { place(door, &runs, direction, limits) } {
            Ok(placed) => placed,
            Err(error) => return Err(Failed { error: error.into(), value: memory }),
        };
        door.add(Event::Map, 1);
        let len_bytes = runs.iter().map(|run| run.len_bytes).sum();
        let (memory, place) = (ManuallyDrop::new(memory), ManuallyDrop::new(place));
        let mapping = Self { door, memory, place, runs, segments, len_bytes, direction };
        if let Some(watch) = &door.inner().watch {
            let (iova, is_bounced, by) =
                (mapping.first(), mapping.is_bounced(), Location::caller());
            watch.made(Made { iova, len_bytes, direction, is_bounced, by }, 0..0);
        }
        Ok(mapping)
    }

    /// Where the device finds the bytes, in their order.
    pub fn segments(&self) -> &[SgSegment] {
        &self.segments
    }

    /// How many bytes there are.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Who reads and who writes.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether any of it goes through bounce buffers.
    pub fn is_bounced(&self) -> bool {
        match &*self.place {
            Place::Slot(_) => true,
            Place::Spread(spread) => !spread.slots.is_empty(),
        }
    }

    /// Makes what the device has written to these bytes visible in the memory. The device must be
    /// through with them.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Copy`].
    pub fn sync_for_cpu(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        self.check(&bytes)?;
        if self.direction == Direction::ToDevice {
            return Ok(());
        }
        self.copy_out(&bytes).map_err(|error| *error)
    }

    /// Makes what the memory has in these bytes visible to the device.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Copy`].
    pub fn sync_for_device(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        self.check(&bytes)?;
        let copied = copy_each(self.elsewhere(), &bytes, |slot, host| (host, slot));
        self.count(copied).map_err(|error| *error)
    }

    /// Takes the memory back, as [`Mapping::unmap`](crate::Mapping::unmap) does.
    ///
    /// # Errors
    /// [`Error::Backend`] with the mapping, which may still be there; [`Error::Copy`] with the mapping.
    pub fn unmap(self) -> Result<M, Failed<Self>> {
        let written_bytes = self.len_bytes;
        self.end(written_bytes)
    }

    /// The same when the device has written `written_bytes` from the start. Of what lies behind,
    /// nothing is copied back from bounce buffers.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap); [`Error::Reported`] with the mapping, where that is more than there
    /// is.
    #[track_caller]
    pub fn complete(self, written_bytes: u64) -> Result<M, Failed<Self>> {
        let (iova, len_bytes) = (self.first(), self.len_bytes);
        if written_bytes > len_bytes {
            let error = Error::Reported { iova, len_bytes, written_bytes };
            return Err(Failed { error: error.into(), value: self });
        }
        if let Some(watch) = &self.door.inner().watch {
            watch.completed(iova, written_bytes, Location::caller());
        }
        self.end(written_bytes)
    }

    fn end(mut self, written_bytes: u64) -> Result<M, Failed<Self>> {
        let _span = span!("unmap_sg", written_bytes = written_bytes);
        if let Err(error) = self.take_out(written_bytes) {
            return Err(Failed { error, value: self });
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: not used again, and not dropped.
        unsafe { this.give_back() };
        drop(std::mem::take(&mut this.runs));
        drop(std::mem::take(&mut this.segments));
        // SAFETY: not used again, and not dropped.
        Ok(unsafe { ManuallyDrop::take(&mut this.memory) })
    }

    /// Where it is known to be.
    fn first(&self) -> Iova {
        match &*self.place {
            Place::Slot(slot) => slot.iova(),
            Place::Spread(spread) => spread.iovas.start(),
        }
    }

    /// Makes the memory the caller's again, and leaves everything else.
    fn take_out(&mut self, written_bytes: u64) -> Result<(), Box<Error>> {
        if let Place::Spread(spread) = &*self.place
            && spread.is_mapped
        {
            let ranges: Vec<_> = spread.pieces(self.granule()).map(|(range, _)| range).collect();
            // SAFETY: mapped as they are, and this mapping's alone.
            let unmapped = unsafe { self.door.inner().core.backend.unmap(&ranges) };
            unmapped.map_err(|source| Error::Backend {
                operation: "unmapping",
                iova: self.first(),
                len_bytes: self.len_bytes,
                source,
            })?;
            self.door.add(Event::Flush, 1);
        }
        if let Place::Spread(spread) = &mut *self.place {
            spread.is_mapped = false;
        }
        if self.direction == Direction::ToDevice {
            return Ok(());
        }
        self.copy_out(&(0..written_bytes))
    }

    fn copy_out(&self, bytes: &Range<u64>) -> Result<(), Box<Error>> {
        self.count(copy_each(self.elsewhere(), bytes, |slot, host| (slot, host)))
    }

    fn count(&self, copied: Result<u64, CopyFault>) -> Result<(), Box<Error>> {
        let copied = copied.map_err(|source| Error::Copy { iova: self.first(), source })?;
        self.door.add(Event::Copied, copied);
        Ok(())
    }

    fn elsewhere(&self) -> Box<dyn Iterator<Item = Elsewhere> + '_> {
        match &*self.place {
            Place::Slot(slot) => Box::new(in_slot(slot, &self.runs)),
            Place::Spread(spread) => Box::new(spread.elsewhere()),
        }
    }

    fn granule(&self) -> u64 {
        self.door.inner().core.limits.granule.bytes()
    }

    fn check(&self, bytes: &Range<u64>) -> Result<(), Error> {
        let (iova, len_bytes) = (self.first(), self.len_bytes);
        let Range { start, end } = *bytes;
        if start <= end && end <= len_bytes {
            return Ok(());
        }
        Err(Error::Outside { iova, len_bytes, start, end })
    }

    /// # Safety
    /// The memory must be the caller's again, and this not be called twice.
    unsafe fn give_back(&mut self) {
        self.door.add(Event::Unmap, 1);
        if let Some(watch) = &self.door.inner().watch {
            watch.ended(self.first());
        }
        // SAFETY: the caller's promise.
        match unsafe { ManuallyDrop::take(&mut self.place) } {
            Place::Slot(slot) => self.door.give_slot(bounce::used(slot, self.door.inner())),
            Place::Spread(spread) => spread.give(self.door),
        }
    }
}

impl<M, D: Door> Drop for SgMapping<'_, M, D> {
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

impl<M, D: Door> fmt::Debug for SgMapping<'_, M, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SgMapping")
            .field("segments", &self.segments)
            .field("direction", &self.direction)
            .field("is_bounced", &self.is_bounced())
            .finish_non_exhaustive()
    }
}

impl Spread {
    /// What is mapped: the slots, and then the memory.
    fn pieces(&self, granule: u64) -> impl Iterator<Item = (AddrRange<Iova>, NonNull<u8>)> + Clone {
        let range = move |at: u64, len_bytes: u64| {
            let start = Iova::new(self.iovas.start().raw() + at);
            AddrRange::new(start, len_bytes).expect("it is within the range")
        };
        let slots = self.layout.copied.iter().zip(&self.slots);
        let slots = slots.map(move |(copied, slot)| (range(copied.at, granule), slot.host()));
        let mapped = self.layout.mapped.iter();
        slots.chain(mapped.map(move |mapped| (range(mapped.at, mapped.len_bytes), mapped.host)))
    }

    fn elsewhere(&self) -> impl Iterator<Item = Elsewhere> {
        self.layout.copied.iter().zip(&self.slots).map(|(copied, slot)| {
            // SAFETY: the bytes lie within the slot.
            let slot = unsafe { slot.host().add(copied.in_slot as usize) };
            let (host, at, len_bytes) = (copied.host, copied.in_transfer, copied.len_bytes);
            Elsewhere { slot, host, at, len_bytes }
        })
    }

    /// Gives slots and addresses back, of a transfer that is not mapped.
    fn give<D: Door>(self, door: &D) {
        let Self { iovas, slots, .. } = self;
        slots.into_iter().for_each(|slot| door.give_slot(bounce::used(slot, door.inner())));
        door.give(iovas);
    }
}

/// All of a transfer, in one slot.
fn in_slot<'r>(slot: &Slot, runs: &'r [Run]) -> impl Iterator<Item = Elsewhere> + use<'r> {
    let start = slot.host();
    let mut at = 0;
    runs.iter().map(move |run| {
        // SAFETY: the slot has room for all of them.
        let slot = unsafe { start.add(at as usize) };
        let part = Elsewhere { slot, host: run.host, at, len_bytes: run.len_bytes };
        at += run.len_bytes;
        part
    })
}

/// Copies of these parts what lies within `bytes`; `order` says which way. How many bytes that were.
fn copy_each(
    parts: impl Iterator<Item = Elsewhere>,
    bytes: &Range<u64>,
    order: impl Fn(NonNull<u8>, NonNull<u8>) -> (NonNull<u8>, NonNull<u8>),
) -> Result<u64, CopyFault> {
    let mut all_bytes = 0;
    for part in parts {
        let start = bytes.start.max(part.at);
        let end = bytes.end.min(part.at + part.len_bytes);
        let Some(len_bytes) = end.checked_sub(start).filter(|len| *len != 0) else { continue };
        // SAFETY: within the part.
        let slot = unsafe { part.slot.add((start - part.at) as usize) };
        // SAFETY: the same.
        let host = unsafe { part.host.add((start - part.at) as usize) };
        let (from, to) = order(slot, host);
        // SAFETY: both have as many bytes; slot and memory are one mapping's.
        unsafe { copy_bytes(from.as_ptr(), to.as_ptr(), len_bytes as usize) }?;
        all_bytes += len_bytes;
    }
    Ok(all_bytes)
}

/// Makes the places reachable: in one bounce buffer where that is better, or else as few segments as
/// they make.
///
/// # Safety
/// The bytes must stay where they are, and no reference to them be used, until they are unmapped.
unsafe fn place<D: Door>(
    door: &D,
    runs: &[Run],
    direction: Direction,
    limits: &SgLimits,
) -> Result<(Place, Vec<SgSegment>), Error> {
    let Inner { core, policy, .. } = door.inner();
    let len_bytes = runs.iter().map(|run| run.len_bytes).sum();
    let class = Class::of_bytes(len_bytes, core.limits.granule.log2());
    let class = class.filter(|_| len_bytes != 0);
    let kind = class.map(|class| Kind { class, direction: core.slot_direction(direction, false) });
    if let Some(kind) = kind
        && policy.bounces(len_bytes)
    {
        match door.take_slot(kind) {
            Ok(slot) => return gather(door, slot, runs, len_bytes, limits),
            Err(_) if policy.when_full == WhenFull::MapDirectly => {}
            Err(error) => {
                let slot = await_slot(door, kind, error)?;
                return gather(door, slot, runs, len_bytes, limits);
            }
        }
    }
    // SAFETY: the caller's promise.
    match (unsafe { spread(door, runs, direction, limits) }, kind) {
        // What is side by side in a bounce buffer is one segment.
        (Err(Error::TooManySegments { .. }), Some(kind)) => {
            let slot = door.take_slot(kind).or_else(|error| await_slot(door, kind, error))?;
            gather(door, slot, runs, len_bytes, limits)
        }
        (spread, _) => spread,
    }
}

/// Copies all of it into a slot.
fn gather<D: Door>(
    door: &D,
    mut slot: Slot,
    runs: &[Run],
    len_bytes: u64,
    limits: &SgLimits,
) -> Result<(Place, Vec<SgSegment>), Error> {
    let iova = slot.iova();
    let gathered = limits.split([(iova, len_bytes)].into_iter()).and_then(|segments| {
        let copied = bounce::prepare(&mut slot, len_bytes).and_then(|()| {
            copy_each(in_slot(&slot, runs), &(0..len_bytes), |slot, host| (host, slot))
        });
        copied.map_err(|source| Error::Copy { iova, source })?;
        Ok(segments)
    });
    match gathered {
        Ok(segments) => {
            door.add(Event::Copied, len_bytes);
            door.add(Event::Bounce, 1);
            Ok((Place::Slot(slot), segments))
        }
        Err(error) => {
            door.give_slot(slot);
            Err(error)
        }
    }
}

/// Maps what is whole granules, and copies the rest.
///
/// # Safety
/// As [`place`].
unsafe fn spread<D: Door>(
    door: &D,
    runs: &[Run],
    direction: Direction,
    limits: &SgLimits,
) -> Result<(Place, Vec<SgSegment>), Error> {
    let Inner { core, policy, .. } = door.inner();
    let granule = core.limits.granule;
    let layout = Layout::new(runs, granule, policy.trusted);
    let iovas = door.take(layout.range_bytes, core.placement)?;
    let start = iovas.start().raw();
    let mut spread = Spread { iovas, layout, slots: Vec::new(), is_mapped: true };
    let prepared = prepare(door, &mut spread, direction).and_then(|copied| {
        let whole = spread.layout.segments.iter();
        let whole = whole.map(|(at, len_bytes)| (Iova::new(start + at), *len_bytes));
        Ok((limits.split(whole)?, copied))
    });
    let (segments, copied) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            spread.give(door);
            return Err(error);
        }
    };
    // SAFETY: the caller's promise; the slots and the addresses are kept with the rest.
    match unsafe { map_all(door, spread.pieces(granule.bytes()), direction) } {
        Ok(()) => {
            door.add(Event::Copied, copied);
            door.add(Event::Bounce, (!spread.slots.is_empty()).into());
            Ok((Place::Spread(spread), segments))
        }
        Err(Partly { error, is_undone }) => {
            if is_undone {
                spread.give(door);
            } else {
                // The device may reach the slots, so nobody gets them.
                door.add(Event::Leak, 1);
            }
            Err(error)
        }
    }
}

/// Takes a slot for each place that is copied, and copies.
fn prepare<D: Door>(door: &D, spread: &mut Spread, direction: Direction) -> Result<u64, Error> {
    let core = &door.inner().core;
    let class = Class::of(1).expect("a slot of one granule");
    let kind = Kind { class, direction: core.slot_direction(direction, false) };
    let mut copied = 0;
    for place in &spread.layout.copied {
        let slot = door.take_slot(kind).or_else(|error| await_slot(door, kind, error))?;
        let iova = slot.iova();
        spread.slots.push(slot);
        let slot = spread.slots.last_mut().expect("it was pushed");
        // SAFETY: the slot has a granule, in which the bytes lie; the memory is the caller's.
        unsafe { bounce::copy_in_at(slot, place.in_slot, place.host, place.len_bytes) }
            .map_err(|source| Error::Copy { iova, source })?;
        copied += place.len_bytes;
    }
    Ok(copied)
}

/// Which way a device moves the bytes that a cursor walks.
pub trait Lendable: longshore_iov::Direction {
    /// That way.
    const DIRECTION: Direction;
}

impl Lendable for Source {
    const DIRECTION: Direction = Direction::ToDevice;
}

impl Lendable for Dest {
    const DIRECTION: Direction = Direction::FromDevice;
}

impl<D: Door> Lent for SgMapping<'_, (), D> {
    fn unmap(self) -> Result<(), Failed<Self>> {
        SgMapping::unmap(self)
    }
}

#[track_caller]
fn map_owned<D: Door, B: DmaMemory + 'static>(
    door: &D,
    memories: Vec<B>,
    direction: Direction,
    limits: SgLimits,
) -> Result<SgMapping<'_, Vec<B>, D>, Failed<Vec<B>>> {
    let place = |memory: &B| {
        let host = memory.host();
        Run { host: host.cast(), len_bytes: host.len() as u64 }
    };
    let places: Vec<_> = memories.iter().map(place).collect();
    // SAFETY: the mapping keeps the memories, which stay where they are.
    unsafe { SgMapping::new(door, memories, places, direction, &limits) }
}

#[track_caller]
fn lend<D: Door, W: Lendable, K: IovKind<W>, R>(
    door: &D,
    cursor: &mut Cursor<'_, W, K>,
    len_bytes: usize,
    limits: SgLimits,
    work: impl FnOnce(&[SgSegment]) -> R,
) -> Result<R, Error> {
    let mut segments = Vec::new();
    let given = cursor.next_segments(len_bytes, usize::MAX, &mut segments);
    let place = |segment: &longshore_iov::Segment<'_, W>| Run {
        host: segment.start(),
        len_bytes: segment.len_bytes() as u64,
    };
    let places: Vec<_> = segments.iter().map(place).collect();
    // SAFETY: the cursor, whose bytes these are, is borrowed until the scope ends: the segments are
    // used there for the last time. Where it can be written to, nobody else has them.
    let mapping = unsafe { SgMapping::new(door, (), places, W::DIRECTION, &limits) };
    let mapping = mapping.map_err(|failed| *failed.error)?;
    let told = mapping.segments.clone();
    let mut ending = Ending(Some(mapping));
    let result = work(&told);
    ending.end()?;
    drop(segments);
    cursor.advance(given);
    Ok(result)
}

macro_rules! scattered {
    ($door:ty) => {
        impl $door {
            /// Lets the device reach memory in several places as one transfer, in segments that it can
            /// take: what lies side by side is merged, also where whole granules only do so at
            /// IOVAs, and what is bounced is one.
            ///
            /// ```
            /// # use longshore_domain::{Direction, Domain, SgLimits, backend::Soft};
            /// # use longshore_heap::Heap;
            /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// # let domain = Domain::builder(Soft::new()?).build();
            /// let places = vec![Heap::Memfd.allocate(4096)?, Heap::Memfd.allocate(8192)?];
            /// let limits = SgLimits::new().segments(16);
            /// let mapping = domain.map_sg(places, Direction::FromDevice, limits)?;
            /// for segment in mapping.segments() {
            ///     println!("{:#x}: {} bytes", segment.iova, segment.len_bytes);
            /// }
            /// # assert_eq!(mapping.segments().len(), 1);
            /// # Ok(())
            /// # }
            /// ```
            ///
            /// # Errors
            /// [`Error`], with the memory; [`Error::TooManySegments`] where the device cannot take it.
            #[track_caller]
            pub fn map_sg<B: DmaMemory + 'static>(
                &self,
                memories: Vec<B>,
                direction: Direction,
                limits: SgLimits,
            ) -> Result<SgMapping<'_, Vec<B>, Self>, Failed<Vec<B>>> {
                map_owned(self, memories, direction, limits)
            }

            /// Lets the device reach up to `len_bytes` that `cursor` walks while `work` runs, which is
            /// told in which segments: to read what is a source, to write what is a destination.
            /// Afterwards the cursor stands behind them.
            ///
            /// # Errors
            /// As [`map_sg`](Self::map_sg); then `work` was not called, and the cursor stays.
            /// Memory that cannot be taken back ends the process, as of [`lend`](Self::lend).
            #[track_caller]
            pub fn lend_sg<W: Lendable, K: IovKind<W>, R>(
                &self,
                cursor: &mut Cursor<'_, W, K>,
                len_bytes: usize,
                limits: SgLimits,
                work: impl FnOnce(&[SgSegment]) -> R,
            ) -> Result<R, Error> {
                lend(self, cursor, len_bytes, limits, work)
            }
        }
    };
}

scattered!(Domain);
scattered!(Local<'_>);
