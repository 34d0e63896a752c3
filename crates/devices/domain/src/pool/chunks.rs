//! The chunks of one kind.
//!
//! The lock is not held while a chunk is made, nor while the backend checks whether one can be unmapped,
//! because the backend may be slow or use the domain itself. One thread makes a chunk at a time; the
//! others wait for it, so that they do not make one each.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::chunk::{Chunk, Slot};
use crate::backend::BackendError;
use crate::core::Core;
use crate::undo::Undo;

/// The chunks of one kind, with their lock.
pub(crate) struct Chunks<T, M> {
    locked: Mutex<Locked<T, M>>,
    /// Waiting threads are notified when there are free slots, and when a thread has made a chunk.
    changed: Condvar,
}

/// The state under the lock.
pub(crate) struct Locked<T, M> {
    pub(crate) list: ChunkList<T>,
    pub(crate) more: M,
    /// The thread that makes a chunk.
    growing: Option<ThreadId>,
    /// The number of threads that wait for that thread.
    waiting: usize,
}

impl<T, M: Default> Default for Chunks<T, M> {
    fn default() -> Self {
        let (list, more) = (ChunkList::default(), M::default());
        let locked = Locked { list, more, growing: None, waiting: 0 };
        Self { locked: Mutex::new(locked), changed: Condvar::new() }
    }
}

impl<T, M> Chunks<T, M> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Locked<T, M>> {
        // Code under the lock does not panic halfway.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait while another makes a chunk.
    pub(crate) fn notify(&self, locked: &Locked<T, M>) {
        if locked.waiting != 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until `take` has taken slots, or until the calling thread may make a chunk, and returns its
    /// turn in that case. A thread that makes a chunk gets another turn at once, because a backend may
    /// need slots while it maps.
    pub(crate) fn turn(
        &self,
        mut take: impl FnMut(&mut Locked<T, M>) -> bool,
    ) -> Option<Turn<'_, T, M>> {
        let me = thread::current().id();
        let mut locked = self.lock();
        while !take(&mut locked) {
            if locked.growing.is_none_or(|thread| thread == me) {
                let before = locked.growing.replace(me);
                return Some(Turn { chunks: self, before });
            }
            locked.waiting += 1;
            locked = self.changed.wait(locked).unwrap_or_else(PoisonError::into_inner);
            locked.waiting -= 1;
        }
        None
    }

    /// Calls `make` with the number of a new chunk, and adds the chunk. Returns the lock, so that the
    /// caller can take slots of that chunk first.
    ///
    /// # Errors
    /// The error of `make`. The number is free again then, and also if `make` panics.
    pub(crate) fn grow<E>(
        &self,
        make: impl FnOnce(u32) -> Result<Chunk<T>, E>,
    ) -> Result<MutexGuard<'_, Locked<T, M>>, E> {
        let number = Undo::new(self.reserve(), |number| self.lock().list.cancel(number));
        let chunk = make(*number.get())?;
        let mut locked = self.lock();
        locked.list.put(number.keep(), chunk);
        Ok(locked)
    }

    fn reserve(&self) -> u32 {
        let mut room = Vec::new();
        loop {
            // The lock is released at the end of this line.
            let reserved = self.lock().list.reserve(&mut room);
            match reserved {
                Ok(number) => return number,
                Err(capacity) => room = Vec::with_capacity(capacity),
            }
        }
    }

    /// Takes out a chunk whose slots have all been free for `idle`, unless `may` returns false. The
    /// calling thread unmaps it.
    ///
    /// # Errors
    /// [`BackendError`] if this thread cannot unmap it now; the chunk is in the list again then.
    pub(crate) fn take_idle(
        &self,
        core: &Core,
        idle: Duration,
        may: impl FnOnce(&Locked<T, M>) -> bool,
    ) -> Result<Option<Chunk<T>>, BackendError> {
        let mut locked = self.lock();
        let taken = if may(&locked) { locked.list.take_idle(idle) } else { None };
        drop(locked);
        let Some((number, chunk)) = taken else { return Ok(None) };
        let chunk = Undo::new(chunk, |chunk| {
            let mut locked = self.lock();
            locked.list.put(number, chunk);
            self.notify(&locked);
        });
        core.backend.check_unmap(chunk.get().range())?;
        self.lock().list.cancel(number);
        Ok(Some(chunk.keep()))
    }
}

#[cfg(test)]
impl<T, M> Locked<T, M> {
    /// Returns the number of threads that wait while another makes a chunk.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }
}

/// The turn of a thread that makes a chunk.
pub(crate) struct Turn<'c, T, M> {
    chunks: &'c Chunks<T, M>,
    before: Option<ThreadId>,
}

impl<T, M> Drop for Turn<'_, T, M> {
    fn drop(&mut self) {
        let mut locked = self.chunks.lock();
        locked.growing = self.before;
        self.chunks.notify(&locked);
    }
}

/// A list of chunks whose slots are alike. Its methods do not allocate, because they are called under a
/// lock that the program's allocator may need.
pub(crate) struct ChunkList<T> {
    /// The places of chunks. The number of a chunk is the index of its place.
    places: Vec<Place<T>>,
}

pub(crate) enum Place<T> {
    Empty,
    /// The chunk is being made, or the backend checks whether it can be unmapped.
    Reserved,
    Taken(Chunk<T>),
}

impl<T> Place<T> {
    fn chunk(&self) -> Option<&Chunk<T>> {
        if let Self::Taken(chunk) = self { Some(chunk) } else { None }
    }

    fn chunk_mut(&mut self) -> Option<&mut Chunk<T>> {
        if let Self::Taken(chunk) = self { Some(chunk) } else { None }
    }
}

/// The numbers of chunks and slots of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stock {
    pub(crate) chunks: u64,
    pub(crate) slots: u64,
    pub(crate) free_slots: u64,
}

impl<T> Default for ChunkList<T> {
    fn default() -> Self {
        Self { places: Vec::new() }
    }
}

impl<T> ChunkList<T> {
    /// Passes up to `count` free slots to `to`, and returns their number.
    pub(crate) fn take(&mut self, count: usize, mut to: impl FnMut(Slot<T>)) -> usize {
        let mut taken = 0;
        for chunk in self.places.iter_mut().filter_map(Place::chunk_mut) {
            while taken < count {
                let Some(slot) = chunk.take() else { break };
                to(slot);
                taken += 1;
            }
        }
        taken
    }

    /// Takes a slot of one of these chunks back.
    pub(crate) fn give(&mut self, slot: Slot<T>) {
        let chunk = self.places[slot.chunk() as usize].chunk_mut();
        chunk.expect("a chunk lives while a slot of it does").give(slot);
    }

    /// Reserves the number of a chunk that is to be made, until [`put`](Self::put) or
    /// [`cancel`](Self::cancel). If the list is full, its places move to the memory of `room`, and the
    /// caller frees the old memory, which is in `room` then, without the lock.
    ///
    /// # Errors
    /// The number of places that `room` must have, which the caller allocates without the lock.
    pub(crate) fn reserve(&mut self, room: &mut Vec<Place<T>>) -> Result<u32, usize> {
        let is_empty = |place: &Place<T>| matches!(place, Place::Empty);
        let number = self.places.iter().position(is_empty).unwrap_or(self.places.len());
        if number == self.places.capacity() {
            if room.capacity() <= number {
                return Err((2 * number).max(4));
            }
            room.append(&mut self.places);
            mem::swap(room, &mut self.places);
        }
        if number == self.places.len() {
            self.places.push(Place::Reserved);
        } else {
            self.places[number] = Place::Reserved;
        }
        Ok(u32::try_from(number).expect("chunks have addresses, so they are fewer"))
    }

    /// Gives back a number that was reserved.
    pub(crate) fn cancel(&mut self, number: u32) {
        self.places[number as usize] = Place::Empty;
        while let Some(Place::Empty) = self.places.last() {
            self.places.pop();
        }
    }

    /// Adds the chunk for which this number was reserved.
    pub(crate) fn put(&mut self, number: u32, chunk: Chunk<T>) {
        self.places[number as usize] = Place::Taken(chunk);
    }

    /// Takes out a chunk whose slots have all been free for `idle`, with its number, which stays
    /// reserved.
    pub(crate) fn take_idle(&mut self, idle: Duration) -> Option<(u32, Chunk<T>)> {
        let is_idle =
            |chunk: &Chunk<T>| chunk.idle_since().is_some_and(|since| since.elapsed() >= idle);
        let is_found = |place: &Place<T>| place.chunk().is_some_and(is_idle);
        let at = self.places.iter().rposition(is_found)?;
        match mem::replace(&mut self.places[at], Place::Reserved) {
            Place::Taken(chunk) => Some((at as u32, chunk)),
            Place::Empty | Place::Reserved => None,
        }
    }

    /// Returns true if there is no chunk, and no number is reserved.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn stock(&self) -> Stock {
        let mut stock = Stock::default();
        for chunk in self.places.iter().filter_map(Place::chunk) {
            let (slots, free_slots) = chunk.slots();
            stock.chunks += 1;
            stock.slots += u64::from(slots);
            stock.free_slots += u64::from(free_slots);
        }
        stock
    }
}
