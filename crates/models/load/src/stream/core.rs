//! The state that the consumers of a stream, its tensors and its threads share.
#![expect(unsafe_code, reason = "reads, lends and frees ranges that one owner has")]

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore_formats::QuotedName;
use longshore_heap::Reservation;
use longshore_sys::fork::Process;

use super::copied::Copied;
use super::free_list::FreeList;
use super::options::Order;
use super::problem::StreamProblem;
use super::selection::Pick;
use super::unit::Unit;
use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::open::Opened;
use crate::progress::CancelToken;
use crate::report::{BytesByRoute, Engine};

/// The interval at which waiting threads look whether the stream is stopped.
pub(super) const GLANCE: Duration = Duration::from_millis(20);

/// The files, tensors and memory of a stream, for its consumers and its threads.
pub(super) struct Core {
    pub(super) opened: Opened,
    pub(super) picks: Vec<Pick>,
    pub(super) units: Vec<Unit>,
    pub(super) memory: Arc<Memory>,
    /// Stops the threads.
    pub(super) stop: CancelToken,
    /// The token of the caller.
    pub(super) cancel: CancelToken,
    /// Set by [`super::Stream::stop`].
    pub(super) stopped: CancelToken,
    pub(super) began: Instant,
}

/// The memory and the state of a stream. Tensors keep it, but not the files.
pub(super) struct Memory {
    pub(super) reservation: Reservation,
    /// The length of the memory for tensors. The reservation has more behind it, for tensors that are read
    /// while this is full ([`super::OnFull::Grow`]).
    pub(super) len_bytes: u64,
    /// The process whose threads read.
    process: Process,
    state: Mutex<State>,
    changed: Condvar,
}

/// The mutable part of a stream.
pub(super) struct State {
    pub(super) free: FreeList,
    /// The start of the next range behind the memory of the stream.
    pub(super) next_grown: u64,
    /// The units that are being read, by the start of their memory.
    pub(super) reading: BTreeMap<u64, Reading>,
    /// The complete units that are to be hashed.
    pub(super) to_hash: BTreeMap<usize, Place>,
    /// The complete units that no consumer has.
    pub(super) ready: BTreeMap<usize, Place>,
    /// The order in which units became ready.
    pub(super) ready_order: VecDeque<usize>,
    /// The number of units that were taken from `ready`.
    pub(super) taken: usize,
    /// The number of units that have memory, and that no consumer has.
    pub(super) underway: usize,
    /// The number of consumers that are copying small tensors.
    pub(super) copying: usize,
    /// Copies of small tensors that no consumer has, with the index of each.
    pub(super) copies: VecDeque<(usize, Copied)>,
    /// The tensors in memory of the stream that consumers have, in the order in which they got them.
    pub(super) held: BTreeMap<u64, Held>,
    pub(super) next_held: u64,
    /// The number of times that a consumer has given back memory.
    pub(super) releases: u64,
    /// `true` while the next unit has no room.
    pub(super) is_full: bool,
    /// `true` if the next unit may take memory behind that of the stream.
    pub(super) may_grow: bool,
    pub(super) grown_bytes: u64,
    pub(super) delivered: u64,
    pub(super) failure: Option<Error>,
    /// The message of the failure.
    pub(super) failed: Option<String>,
    /// `true` when all threads have ended.
    pub(super) ended: bool,
    pub(super) read_bytes: u64,
    pub(super) by_route: BytesByRoute,
    pub(super) engine: Option<Engine>,
    /// The checksums of each file, when it is complete.
    pub(super) digests: BTreeMap<usize, Vec<(DigestKind, String)>>,
}

/// The memory of a unit: a range of the reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) len_bytes: u64,
}

/// A unit that is being read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) unit: usize,
    pub(super) left_bytes: u64,
    pub(super) place: Place,
}

/// A tensor that a consumer has.
pub(super) struct Held {
    pub(super) pick: usize,
    pub(super) bytes: u64,
}

/// The memory of a large tensor, which is given back when this is dropped.
pub(super) struct Extent {
    memory: Arc<Memory>,
    place: Place,
    /// The bytes of the tensor in the reservation.
    bytes: NonNull<[u8]>,
    /// Its number in [`State::held`].
    number: u64,
}

// SAFETY: it owns its range of the memory, which any thread may give back.
unsafe impl Send for Extent {}
// SAFETY: a shared `Extent` only reads its range.
unsafe impl Sync for Extent {}

impl Core {
    pub(super) fn new(
        opened: Opened,
        picks: Vec<Pick>,
        units: Vec<Unit>,
        reservation: Reservation,
        memory_bytes: u64,
        cancel: CancelToken,
    ) -> Arc<Self> {
        let state = State {
            free: FreeList::new(memory_bytes),
            next_grown: memory_bytes,
            reading: BTreeMap::new(),
            to_hash: BTreeMap::new(),
            ready: BTreeMap::new(),
            ready_order: VecDeque::new(),
            taken: 0,
            underway: 0,
            copying: 0,
            copies: VecDeque::new(),
            held: BTreeMap::new(),
            next_held: 0,
            releases: 0,
            is_full: false,
            may_grow: false,
            grown_bytes: 0,
            delivered: 0,
            failure: None,
            failed: None,
            ended: false,
            read_bytes: 0,
            by_route: BytesByRoute::default(),
            engine: None,
            digests: BTreeMap::new(),
        };
        let memory = Arc::new(Memory {
            reservation,
            len_bytes: memory_bytes,
            process: Process::current(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let (stop, stopped, began) = (CancelToken::new(), CancelToken::new(), Instant::now());
        Arc::new(Self { opened, picks, units, memory, stop, cancel, stopped, began })
    }

    /// Locks the state. A process that was forked must not call it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.memory.state()
    }

    /// Waits for a change of the state, but no longer than [`GLANCE`].
    pub(super) fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.memory.wait(state)
    }

    pub(super) fn notify(&self) {
        self.memory.notify();
    }

    /// Records a failure and stops the threads. The first failure is kept.
    pub(super) fn fail(&self, error: Error) {
        let mut state = self.state();
        if state.failed.is_none() {
            state.failed = Some(chain(&error));
            state.failure = Some(error);
        }
        drop(state);
        self.stop.cancel();
        self.notify();
    }

    /// Returns the failure to the first caller, and its message to the others; `None` if the stream has
    /// not failed.
    pub(super) fn failure(&self, state: &mut State) -> Option<Error> {
        let reason = state.failed.clone()?;
        Some(state.failure.take().unwrap_or_else(|| StreamProblem::Failed { reason }.into()))
    }

    /// Records that a range of memory is complete.
    pub(super) fn complete(&self, buffer_offset: u64, len_bytes: u64, is_hashed: bool) {
        let mut state = self.state();
        let Some((_, reading)) = state.reading.range_mut(..=buffer_offset).next_back() else {
            return;
        };
        reading.left_bytes = reading.left_bytes.saturating_sub(len_bytes);
        let (unit, place) = (reading.unit, reading.place);
        if reading.left_bytes > 0 {
            return;
        }
        state.reading.remove(&place.start);
        state.complete(unit, place, is_hashed);
        drop(state);
        self.notify();
    }

    /// Returns the range of the reservation that has these bytes of a unit's file.
    fn range_of(&self, unit: usize, place: Place, data: &Range<u64>) -> Range<u64> {
        let unit = &self.units[unit];
        let start = place.start + unit.skip_bytes() + data.start.saturating_sub(unit.read.start);
        start..start + (data.end - data.start)
    }

    /// Returns bytes of a unit's file from its memory.
    ///
    /// # Safety
    /// The unit is complete, and only the caller has it.
    ///
    /// # Errors
    /// [`Error::Heap`] if they are not inside.
    pub(super) unsafe fn bytes(
        &self,
        unit: usize,
        place: Place,
        data: &Range<u64>,
    ) -> Result<&[u8]> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.memory.reservation.filled(self.range_of(unit, place, data)) }?)
    }

    /// Hands out a unit with one large tensor.
    ///
    /// # Safety
    /// The unit is complete, and only the caller has it.
    ///
    /// # Errors
    /// [`Error::Heap`] if the tensor is not inside.
    pub(super) unsafe fn extent(
        &self,
        state: &mut State,
        unit: usize,
        place: Place,
    ) -> Result<Extent> {
        let (number, pick) = (state.next_held, self.units[unit].members.start);
        let range = self.range_of(unit, place, &self.picks[pick].data);
        // SAFETY: the caller's promise.
        let mut window = unsafe { self.memory.reservation.window(range) }?;
        let start = NonNull::new(window.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let bytes = NonNull::slice_from_raw_parts(start, window.len());
        state.next_held += 1;
        state.held.insert(number, Held { pick, bytes: place.len_bytes });
        Ok(Extent { memory: Arc::clone(&self.memory), place, bytes, number })
    }

    /// Copies the tensors of a unit, and gives its memory back. Returns the copies with their indices.
    ///
    /// # Safety
    /// The unit is complete, and only the caller has it.
    pub(super) unsafe fn copies(
        &self,
        unit: usize,
        place: Place,
    ) -> Result<VecDeque<(usize, Copied)>> {
        let copied = self.units[unit].members.clone().map(|index| {
            let pick = &self.picks[index];
            if pick.data.is_empty() {
                return Ok((index, Copied::new(&[])));
            }
            // SAFETY: the caller's promise.
            let bytes = unsafe { self.bytes(unit, place, &pick.data) }?;
            Ok((index, Copied::new(bytes)))
        });
        let copied = copied.collect();
        // SAFETY: the slices have ended, and the caller does not use the memory again.
        unsafe { self.memory.give_back(place, None) };
        copied
    }

    /// Returns the error for a call that was cancelled.
    pub(super) fn cancelled(&self, state: &State) -> Error {
        let total_bytes = self.units.iter().map(|unit| unit.read.end - unit.read.start).sum();
        Error::Cancelled { done_bytes: state.read_bytes, total_bytes }
    }

    /// Returns the error for a stream whose memory is full of tensors that consumers hold.
    pub(super) fn full(&self, state: &State, waited: Duration) -> Error {
        let oldest = state.held.values().next().map(|held| self.picks[held.pick].name.as_str());
        Error::StreamFull {
            held_bytes: state.held.values().map(|held| held.bytes).sum(),
            limit_bytes: self.memory.len_bytes,
            oldest: QuotedName::new(oldest.unwrap_or_default()),
            waited,
        }
    }
}

impl Memory {
    /// Returns `true` in a child process, which has no threads of the stream, and in which a lock can be
    /// held for ever.
    pub(super) fn is_forked(&self) -> bool {
        self.process != Process::current()
    }

    /// Locks the state. A process that was forked must not call it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid after each statement, so a panic elsewhere leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the state, but no longer than [`GLANCE`].
    pub(super) fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Takes memory for a unit; `None` if there is no room for it now.
    pub(super) fn take_place(state: &mut State, unit: &Unit) -> Option<Place> {
        let len_bytes = unit.memory_bytes();
        let start = match state.free.take(len_bytes, unit.alignment) {
            Some(start) => start,
            None if state.may_grow => {
                state.may_grow = false;
                let start = unit.alignment.checked_round_up(state.next_grown)?;
                state.next_grown = start + len_bytes;
                state.grown_bytes += len_bytes;
                start
            }
            None => return None,
        };
        Some(Place { start, len_bytes })
    }

    /// Gives back the memory of a unit.
    ///
    /// # Safety
    /// No view of it exists, and no read of it is in flight.
    unsafe fn give_back(&self, place: Place, number: Option<u64>) {
        let Place { start, len_bytes } = place;
        let is_grown = start >= self.len_bytes;
        if is_grown {
            // SAFETY: the caller's promise; the range is never used again.
            let _ = unsafe { self.reservation.discard(start..start + len_bytes) };
        }
        let mut state = self.state();
        if let Some(number) = number {
            state.held.remove(&number);
        }
        if !is_grown && len_bytes > 0 {
            state.free.give_back(start, len_bytes);
        }
        state.releases += 1;
        // The thread that waits for room looks again.
        state.is_full = false;
        drop(state);
        self.notify();
    }
}

impl State {
    /// Takes the next ready unit, if there is one.
    pub(super) fn take_ready(&mut self, order: Order) -> Option<(usize, Place)> {
        let unit = match order {
            Order::File => self.taken,
            Order::Completion => *self.ready_order.front()?,
        };
        let place = self.ready.remove(&unit)?;
        self.ready_order.retain(|it| *it != unit);
        self.taken += 1;
        self.underway -= 1;
        Some((unit, place))
    }

    /// Records that a unit is complete.
    pub(super) fn complete(&mut self, unit: usize, place: Place, is_hashed: bool) {
        if is_hashed {
            self.to_hash.insert(unit, place);
        } else {
            self.be_ready(unit, place);
        }
    }

    /// Makes a unit available to consumers.
    pub(super) fn be_ready(&mut self, unit: usize, place: Place) {
        self.ready.insert(unit, place);
        self.ready_order.push_back(unit);
    }
}

impl Extent {
    /// Returns the address of the bytes.
    pub(super) fn host(&self) -> NonNull<[u8]> {
        self.bytes
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped while the memory lives. Only this extent has the range, which is complete, and it is
        // borrowed while the slice lives.
        unsafe { self.bytes.as_ref() }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the extent is borrowed exclusively.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        // A child process has a copy of the memory, and no reader that could use it again.
        if !self.memory.is_forked() {
            // SAFETY: only this extent had the memory, whose reads have ended.
            unsafe { self.memory.give_back(self.place, Some(self.number)) };
        }
    }
}

/// Returns the message of an error and of its sources.
fn chain(error: &Error) -> String {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    message
}
