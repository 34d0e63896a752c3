//! The place of a scattered transfer for the device: one bounce buffer, or the memory itself,
//! except for bytes that share a granule with other objects.
#![expect(unsafe_code, reason = "hands memory to a backend that its caller keeps")]

use std::ops::Range;
use std::ptr::NonNull;

use longshore_mem::copy::{CopyFault, copy_bytes};
use longshore_mem::{AddrRange, Iova};

use super::layout::{Layout, Run, gathered};
use super::limits::{SgLimits, SgSegment};
use crate::counters::Event;
use crate::direction::Direction;
use crate::error::Error;
use crate::handle::sealed::Seal;
use crate::handle::{Handle, await_slot};
use crate::iova::IovaRange;
use crate::policy::WhenFull;
use crate::pool::chunk::Slot;
use crate::pool::classes::Class;
use crate::pool::kind::Kind;
use crate::state::State;
use crate::transfer::borrowed::abort;
use crate::transfer::bounce;
use crate::transfer::pieces::{Partly, map_all};

pub(super) enum Place {
    /// In one bounce buffer.
    Slot(Slot),
    /// In the memory itself, except for bytes that share a granule with other objects.
    Spread(Spread),
}

pub(super) struct Spread {
    pub(super) iovas: IovaRange,
    pub(super) layout: Layout,
    /// The slots, one for each place that is copied.
    pub(super) slots: Vec<Slot>,
    /// `true` if the device can reach it. It cannot if it was unmapped and could not be copied
    /// back.
    pub(super) is_mapped: bool,
}

/// Bytes of the transfer that the device accesses in a slot.
pub(super) struct Elsewhere {
    pub(super) slot: NonNull<u8>,
    pub(super) host: NonNull<u8>,
    /// The offset in the transfer, and the length.
    pub(super) at: u64,
    pub(super) len_bytes: u64,
}

impl Spread {
    /// Returns the mapped ranges: the slots, and then the memory.
    pub(super) fn pieces(
        &self,
        granule: u64,
    ) -> impl Iterator<Item = (AddrRange<Iova>, NonNull<u8>)> + Clone {
        let range = move |at: u64, len_bytes: u64| {
            let start = Iova::new(self.iovas.start().raw() + at);
            AddrRange::new(start, len_bytes).expect("it is within the range")
        };
        let slots = self.layout.copied.iter().zip(&self.slots);
        let slots = slots.map(move |(copied, slot)| (range(copied.at, granule), slot.host()));
        let mapped = self.layout.mapped.iter();
        slots.chain(mapped.map(move |mapped| (range(mapped.at, mapped.len_bytes), mapped.host)))
    }

    pub(super) fn elsewhere(&self) -> impl Iterator<Item = Elsewhere> {
        self.layout.copied.iter().zip(&self.slots).map(|(copied, slot)| {
            // SAFETY: the bytes lie within the slot.
            let slot = unsafe { slot.host().add(copied.in_slot as usize) };
            let (host, at, len_bytes) = (copied.host, copied.in_transfer, copied.len_bytes);
            Elsewhere { slot, host, at, len_bytes }
        })
    }

    /// Gives back the slots and the addresses of a transfer that is not mapped.
    pub(super) fn give<D: Handle>(self, handle: &D) {
        let Self { iovas, slots, .. } = self;
        slots
            .into_iter()
            .for_each(|slot| handle.give_slot(bounce::used(slot, &handle.state().core)));
        handle.give(Seal, iovas);
    }
}

/// Returns the parts of a transfer in one slot.
pub(super) fn in_slot<'r>(
    slot: &Slot,
    runs: &'r [Run],
    align_mask: u64,
) -> impl Iterator<Item = Elsewhere> + use<'r> {
    let start = slot.host();
    let mut at = 0;
    gathered(runs, align_mask).zip(runs).map(move |(range, run)| {
        // SAFETY: the slot has room for all of them.
        let slot = unsafe { start.add(range.start as usize) };
        let part = Elsewhere { slot, host: run.host, at, len_bytes: run.len_bytes };
        at += run.len_bytes;
        part
    })
}

/// Copies the bytes of these parts that lie within `bytes`; `order` returns source and destination.
/// Returns the number of copied bytes.
pub(super) fn copy_each(
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
        // SAFETY: both have this many bytes, and belong to one mapping.
        unsafe { copy_bytes(from.as_ptr(), to.as_ptr(), len_bytes as usize) }?;
        all_bytes += len_bytes;
    }
    Ok(all_bytes)
}

/// Makes the places reachable for the device: in one bounce buffer if that is better, otherwise in as
/// few segments as possible.
///
/// # Safety
/// Until they are unmapped, the bytes must stay at their addresses, and no reference to them may be
/// used.
pub(super) unsafe fn place<D: Handle>(
    handle: &D,
    runs: &[Run],
    direction: Direction,
    limits: &SgLimits,
) -> Result<(Place, Vec<SgSegment>), Error> {
    let State { core, policy, .. } = handle.state();
    let len_bytes = runs.iter().map(|run| run.len_bytes).sum();
    let slot_bytes = gathered(runs, policy.align_mask).last().map_or(0, |range| range.end);
    let class = Class::of_bytes(slot_bytes, core.limits.granule.log2());
    let kind = class.map(|class| Kind { class, direction: core.slot_direction(direction, false) });
    if let Some(kind) = kind
        && policy.bounces(len_bytes)
    {
        match handle.take_slot(kind) {
            Ok(slot) => return gather(handle, slot, runs, len_bytes, limits),
            Err(_) if policy.when_full == WhenFull::MapDirectly => {}
            Err(error) => {
                let slot = await_slot(handle, kind, error)?;
                return gather(handle, slot, runs, len_bytes, limits);
            }
        }
    }
    // SAFETY: the caller's promise.
    match (unsafe { spread(handle, runs, direction, limits) }, kind) {
        // Bytes that are adjacent in a bounce buffer are one segment.
        (Err(Error::TooManySegments { .. }), Some(kind)) => {
            let slot = handle.take_slot(kind).or_else(|error| await_slot(handle, kind, error))?;
            gather(handle, slot, runs, len_bytes, limits)
        }
        (spread, _) => spread,
    }
}

/// Copies the whole transfer into a slot.
fn gather<D: Handle>(
    handle: &D,
    mut slot: Slot,
    runs: &[Run],
    len_bytes: u64,
    limits: &SgLimits,
) -> Result<(Place, Vec<SgSegment>), Error> {
    let iova = slot.iova();
    let mask = handle.state().policy.align_mask;
    // Bytes that are adjacent in the slot are one segment.
    let mut whole: Vec<(Iova, u64)> = Vec::new();
    let mut end = None;
    for range in gathered(runs, mask) {
        let count = range.end - range.start;
        match whole.last_mut().filter(|_| end == Some(range.start)) {
            Some((_, len_bytes)) => *len_bytes += count,
            None => whole.push((Iova::new(iova.raw() + range.start), count)),
        }
        end = Some(range.end);
    }
    let filled = limits.split(whole.into_iter()).and_then(|segments| {
        // SAFETY: the slot was taken for these ranges, which are in order.
        let copied = unsafe { bounce::prepare(&mut slot, gathered(runs, mask)) }.and_then(|()| {
            copy_each(in_slot(&slot, runs, mask), &(0..len_bytes), |slot, host| (host, slot))
        });
        copied.map_err(|source| Error::Copy { iova, source })?;
        Ok(segments)
    });
    match filled {
        Ok(segments) => {
            handle.add(Event::Copied, len_bytes);
            handle.add(Event::Bounce, 1);
            Ok((Place::Slot(slot), segments))
        }
        Err(error) => {
            handle.give_slot(slot);
            Err(error)
        }
    }
}

/// Maps whole granules, and copies the rest.
///
/// # Safety
/// As [`place`].
unsafe fn spread<D: Handle>(
    handle: &D,
    runs: &[Run],
    direction: Direction,
    limits: &SgLimits,
) -> Result<(Place, Vec<SgSegment>), Error> {
    let State { core, policy, .. } = handle.state();
    let granule = core.limits.granule;
    let layout = Layout::new(runs, granule, policy.trusted);
    let iovas = handle.take(Seal, layout.range_bytes, core.placement);
    let iovas = iovas.map_err(|error| *error)?;
    let start = iovas.start().raw();
    let mut spread = Spread { iovas, layout, slots: Vec::new(), is_mapped: true };
    let prepared = prepare(handle, &mut spread, direction).and_then(|copied| {
        let whole = spread.layout.segments.iter();
        let whole = whole.map(|(at, len_bytes)| (Iova::new(start + at), *len_bytes));
        Ok((limits.split(whole)?, copied))
    });
    let (segments, copied) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            spread.give(handle);
            return Err(error);
        }
    };
    // SAFETY: the caller's promise; `spread` keeps the slots and the addresses.
    match unsafe { map_all(handle, &spread.pieces(granule.bytes()), direction) } {
        Ok(()) => {
            handle.add(Event::Copied, copied);
            handle.add(Event::Bounce, (!spread.slots.is_empty()).into());
            Ok((Place::Spread(spread), segments))
        }
        Err(Partly { error, still_mapped: 0 }) => {
            spread.give(handle);
            Err(error)
        }
        // The memory goes back to its owner, although the device may still write to it.
        Err(Partly { error, still_mapped }) if still_mapped > spread.slots.len() => abort(&error),
        Err(Partly { error, .. }) => {
            // The device may reach the slots, so they are not used again.
            handle.add(Event::Leak, 1);
            Err(error)
        }
    }
}

/// Takes a slot for each place that is copied, and fills it. Returns the number of copied bytes.
fn prepare<D: Handle>(handle: &D, spread: &mut Spread, direction: Direction) -> Result<u64, Error> {
    let core = &handle.state().core;
    let class = Class::of(1).expect("a slot of one granule");
    let kind = Kind { class, direction: core.slot_direction(direction, false) };
    let mut copied = 0;
    for place in &spread.layout.copied {
        let slot = handle.take_slot(kind).or_else(|error| await_slot(handle, kind, error))?;
        let iova = slot.iova();
        spread.slots.push(slot);
        let slot = spread.slots.last_mut().expect("it was pushed");
        // SAFETY: the slot is a granule, in which the bytes lie, and the caller owns the memory.
        unsafe { bounce::copy_in(slot, place.in_slot, place.host, place.len_bytes) }
            .map_err(|source| Error::Copy { iova, source })?;
        copied += place.len_bytes;
    }
    Ok(copied)
}
