//! Scatter-gather: one transfer whose bytes lie in several places.
#![expect(unsafe_code, reason = "hands memory to a backend, and keeps it until it is unmapped")]

mod layout;
mod limits;
mod place;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::panic::Location;

use longshore_iov::kinds::Kind as IovKind;
use longshore_iov::{Cursor, Dest, SegmentSource as _, Source};
use longshore_mem::copy::CopyFault;
use longshore_mem::{DmaMemory, Iova};

use crate::counters::Event;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::{Error, Failed};
use crate::handle::Handle;
use crate::local::Local;
use crate::trace::{Span, span};
use crate::transfer::borrowed::abort;
use crate::transfer::bounce;
use crate::transfer::pieces::unmap_all;
use crate::transfer::place::{check_writable, empty};
use crate::transfer::scoped::{Ending, Lent};
use crate::watch::MappingInfo;
use layout::{Run, runs};
use place::{Elsewhere, Place, copy_each, in_slot, place};

pub use limits::{SgLimits, SgSegment};

/// One transfer of bytes in several places, which the device accesses in [`segments`](Self::segments).
///
/// ```text
///   memory    ░▓▓▓│████│▓░░   │████│████│   ░▓▓░      ▓ copied, █ mapped, ░ other objects
///              └─── 1 ───┘    └── 2 ────┘    └3┘      runs of adjacent bytes
///   IOVAs    │ ▓▓▓│████│▓   │████│████│ ▓▓ │          a range of granules
///              └────────┘    └───────┘  └┘            segments
/// ```
///
/// Two runs are one segment if the first ends at the end of a granule and the second begins at the
/// start of one.
///
/// It owns the memory like a [`Mapping`](crate::Mapping), and leaks it in the same cases.
#[must_use = "if dropped, the memory is unmapped"]
pub struct SgMapping<'d, M, D: Handle = Domain> {
    handle: &'d D,
    memory: ManuallyDrop<M>,
    place: ManuallyDrop<Place>,
    runs: Vec<Run>,
    segments: Vec<SgSegment>,
    len_bytes: u64,
    direction: Direction,
    /// `true` if the memory is borrowed, and must not be leaked while the device can reach it.
    is_lent: bool,
}

// SAFETY: a run refers to memory that may be sent, and that no other code uses while it is mapped.
unsafe impl Send for Run {}

impl<'d, M, D: Handle> SgMapping<'d, M, D> {
    /// Maps the places.
    ///
    /// # Safety
    /// Until this is unmapped, `M` or else the caller must keep the memory of the places at its
    /// address, and must not allow a reference to it that a device's access would violate. If the device
    /// may write, the memory must be writable.
    #[track_caller]
    unsafe fn new(
        handle: &'d D,
        memory: M,
        places: impl IntoIterator<Item = Run>,
        direction: Direction,
        limits: &SgLimits,
    ) -> Result<Self, Failed<M>> {
        let _span = span!("map_sg", direction = direction);
        // SAFETY: the caller makes the same promise.
        unsafe { Self::make(handle, memory, places, direction, limits, false) }
    }

    /// As [`new`](Self::new), without a span; `is_lent` is set if the memory is borrowed.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[track_caller]
    unsafe fn make(
        handle: &'d D,
        memory: M,
        places: impl IntoIterator<Item = Run>,
        direction: Direction,
        limits: &SgLimits,
        is_lent: bool,
    ) -> Result<Self, Failed<M>> {
        let runs = runs(places);
        if runs.is_empty() {
            return Err(Failed { error: empty("mapping several places"), value: memory });
        }
        let state = handle.state();
        // The bytes that may be added before and after a run, so that it keeps its alignment.
        let around_bytes = 2 * state.core.limits.granule.bytes().max(state.policy.align_mask + 1);
        let add = |sum: u64, run: &Run| sum.checked_add(run.len_bytes)?.checked_add(around_bytes);
        if runs.iter().try_fold(0, add).is_none() {
            let error = Error::TooLong { places: runs.len() }.into();
            return Err(Failed { error, value: memory });
        }
        // SAFETY: the caller's promise.
        let (place, segments) = match unsafe { place(handle, &runs, direction, limits) } {
            Ok(placed) => placed,
            Err(error) => return Err(Failed { error: error.into(), value: memory }),
        };
        handle.add(Event::Map, 1);
        let len_bytes = runs.iter().map(|run| run.len_bytes).sum();
        let (memory, place) = (ManuallyDrop::new(memory), ManuallyDrop::new(place));
        let mapping = Self { handle, memory, place, runs, segments, len_bytes, direction, is_lent };
        if let Some(watch) = &handle.state().watch {
            let (iova, is_bounced, by) =
                (mapping.first(), mapping.is_bounced(), Location::caller());
            watch.made(MappingInfo { iova, len_bytes, direction, is_bounced, by }, 0..0);
        }
        Ok(mapping)
    }

    /// Returns the segments, in the order of the transfer's bytes.
    pub fn segments(&self) -> &[SgSegment] {
        &self.segments
    }

    /// Returns the length in bytes, which is not zero.
    #[expect(clippy::len_without_is_empty, reason = "a mapping has at least one byte")]
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the direction.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns true if any part of the transfer goes through a bounce buffer.
    pub fn is_bounced(&self) -> bool {
        match &*self.place {
            Place::Slot(_) => true,
            Place::Spread(spread) => !spread.slots.is_empty(),
        }
    }

    /// Makes the device's writes to these bytes visible in the memory. The device must have
    /// finished with them.
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

    /// Makes these bytes of the memory visible to the device.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Copy`].
    pub fn sync_for_device(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        self.check(&bytes)?;
        let copied = copy_each(self.elsewhere(), &bytes, |slot, host| (host, slot));
        self.count(copied).map_err(|error| *error)
    }

    /// Unmaps the memory and returns it, as [`Mapping::unmap`](crate::Mapping::unmap) does.
    ///
    /// # Errors
    /// [`Error::Backend`] with the mapping, which may still be mapped; [`Error::Copy`] with the
    /// mapping.
    pub fn unmap(self) -> Result<M, Failed<Self>> {
        let written_bytes = self.len_bytes;
        self.end(written_bytes)
    }

    /// Unmaps the memory, of which the device has written the first `written_bytes` bytes. Bytes after
    /// them are not copied back from bounce buffers.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap); [`Error::Reported`] with the mapping if `written_bytes` is more
    /// than its length.
    #[track_caller]
    pub fn complete(self, written_bytes: u64) -> Result<M, Failed<Self>> {
        let (iova, len_bytes) = (self.first(), self.len_bytes);
        if written_bytes > len_bytes {
            let error = Error::Reported { iova, len_bytes, written_bytes };
            return Err(Failed { error: error.into(), value: self });
        }
        if let Some(watch) = &self.handle.state().watch {
            watch.completed(iova, written_bytes, Location::caller());
        }
        self.end(written_bytes)
    }

    fn end(self, written_bytes: u64) -> Result<M, Failed<Self>> {
        let _span = span!("unmap_sg", written_bytes = written_bytes);
        self.end_unspanned(written_bytes)
    }

    fn end_unspanned(mut self, written_bytes: u64) -> Result<M, Failed<Self>> {
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

    /// Returns the address that identifies this mapping in errors and in the checker.
    fn first(&self) -> Iova {
        match &*self.place {
            Place::Slot(slot) => slot.iova(),
            Place::Spread(spread) => spread.iovas.start(),
        }
    }

    /// Unmaps the memory and copies it back from slots, but gives no slots and addresses back yet.
    fn take_out(&mut self, written_bytes: u64) -> Result<(), Box<Error>> {
        if let Place::Spread(spread) = &*self.place
            && spread.is_mapped
        {
            let ranges: Vec<_> = spread.pieces(self.granule()).map(|(range, _)| range).collect();
            // SAFETY: exactly these ranges were mapped, and this mapping alone owns them.
            unsafe { unmap_all(self.handle, &ranges, self.first(), self.len_bytes) }?;
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
        self.handle.add(Event::Copied, copied);
        Ok(())
    }

    fn elsewhere(&self) -> Box<dyn Iterator<Item = Elsewhere> + '_> {
        match &*self.place {
            Place::Slot(slot) => {
                Box::new(in_slot(slot, &self.runs, self.handle.state().policy.align_mask))
            }
            Place::Spread(spread) => Box::new(spread.elsewhere()),
        }
    }

    fn granule(&self) -> u64 {
        self.handle.state().core.limits.granule.bytes()
    }

    fn check(&self, bytes: &Range<u64>) -> Result<(), Error> {
        let (iova, len_bytes) = (self.first(), self.len_bytes);
        let Range { start, end } = *bytes;
        if start <= end && end <= len_bytes {
            return Ok(());
        }
        Err(Error::Outside { iova, len_bytes, start, end })
    }

    /// Gives the addresses and slots back.
    ///
    /// # Safety
    /// The memory must be unmapped, and this must not be called twice.
    unsafe fn give_back(&mut self) {
        self.handle.add(Event::Unmap, 1);
        if let Some(watch) = &self.handle.state().watch {
            watch.ended(self.first());
        }
        // SAFETY: the caller's promise.
        match unsafe { ManuallyDrop::take(&mut self.place) } {
            Place::Slot(slot) => {
                self.handle.give_slot(bounce::used(slot, &self.handle.state().core));
            }
            Place::Spread(spread) => spread.give(self.handle),
        }
    }
}

impl<M, D: Handle> Drop for SgMapping<'_, M, D> {
    fn drop(&mut self) {
        // The bytes that the device has written are not copied back.
        if let Err(error) = self.take_out(0) {
            if self.is_lent {
                abort(&error);
            }
            self.handle.add(Event::Leak, 1);
            return;
        }
        // SAFETY: the memory is unmapped, and this is called once.
        unsafe { self.give_back() };
        // SAFETY: the device cannot reach the memory any more, and this is called once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl<M, D: Handle> fmt::Debug for SgMapping<'_, M, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SgMapping")
            .field("segments", &self.segments)
            .field("direction", &self.direction)
            .field("is_bounced", &self.is_bounced())
            .finish_non_exhaustive()
    }
}

/// The direction of a cursor's bytes.
pub trait Lendable: longshore_iov::Direction {
    /// The direction for the device.
    const DIRECTION: Direction;
}

impl Lendable for Source {
    const DIRECTION: Direction = Direction::ToDevice;
}

impl Lendable for Dest {
    const DIRECTION: Direction = Direction::FromDevice;
}

impl<D: Handle> Lent for SgMapping<'_, (), D> {
    fn unmap_span(&self) -> Span {
        span!("unmap_sg", written_bytes = self.len_bytes)
    }

    fn unmap(self) -> Result<(), Failed<Self>> {
        let len_bytes = self.len_bytes;
        self.end_unspanned(len_bytes)
    }
}

#[track_caller]
fn map_owned<D: Handle, B: DmaMemory + 'static>(
    handle: &D,
    memories: Vec<B>,
    direction: Direction,
    limits: SgLimits,
) -> Result<SgMapping<'_, Vec<B>, D>, Failed<Vec<B>>> {
    let checked = memories.iter().try_for_each(|memory| check_writable(memory, direction));
    if let Err(error) = checked {
        return Err(Failed { error, value: memories });
    }
    let place = |memory: &B| {
        let host = memory.host();
        Run { host: host.cast(), len_bytes: host.len() as u64 }
    };
    let places: Vec<_> = memories.iter().map(place).collect();
    // SAFETY: the mapping keeps the memories, which stay where they are, and which are writable if
    // the device writes, as checked above.
    unsafe { SgMapping::new(handle, memories, places, direction, &limits) }
}

#[track_caller]
fn lend<D: Handle, W: Lendable, K: IovKind<W>, R>(
    handle: &D,
    cursor: &mut Cursor<'_, W, K>,
    len_bytes: usize,
    limits: SgLimits,
    work: impl FnOnce(&[SgSegment]) -> R,
) -> Result<R, Error> {
    let span = span!("map_sg", direction = W::DIRECTION);
    let mut segments = Vec::new();
    let given = cursor.next_segments(len_bytes, usize::MAX, &mut segments);
    let place = |segment: &longshore_iov::Segment<'_, W>| Run {
        host: segment.start(),
        len_bytes: segment.len() as u64,
    };
    let places: Vec<_> = segments.iter().map(place).collect();
    // SAFETY: the bytes are the cursor's, which is borrowed until `segments` is dropped below. If the
    // cursor is a destination, no other code can reach them.
    let mapping = unsafe { SgMapping::make(handle, (), places, W::DIRECTION, &limits, true) };
    let mapping = mapping.map_err(|failed| *failed.error)?;
    let told = mapping.segments.clone();
    let mut ending = Ending(Some(mapping));
    drop(span);
    let result = work(&told);
    ending.end()?;
    drop(segments);
    cursor.advance(given);
    Ok(result)
}

macro_rules! scattered {
    ($handle:ty) => {
        impl $handle {
            /// Maps memory in several places as one transfer, in segments that the device supports.
            /// Adjacent bytes are one segment, also granules that are adjacent only at IOVAs. A bounced
            /// transfer is one segment.
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
            /// [`Error`], with the memory; [`Error::TooManySegments`] if the device does not support so
            /// many.
            #[track_caller]
            pub fn map_sg<B: DmaMemory + 'static>(
                &self,
                memories: Vec<B>,
                direction: Direction,
                limits: SgLimits,
            ) -> Result<SgMapping<'_, Vec<B>, Self>, Failed<Vec<B>>> {
                map_owned(self, memories, direction, limits)
            }

            /// Lets the device reach up to `len_bytes` of `cursor` while `work` runs, and passes the
            /// segments to `work`. The device reads from a source, and writes to a destination. Then the
            /// cursor advances over the bytes. If they cannot be unmapped, this aborts the process, as
            /// [`lend`](Self::lend) does.
            ///
            /// # Errors
            /// As [`map_sg`](Self::map_sg). If the bytes could not be mapped, `work` was not called. The
            /// cursor does not advance after an error.
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
