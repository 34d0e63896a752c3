//! The chunks of one kind.

use std::time::Duration;

use super::chunk::{Chunk, Slot};
use crate::backend::BackendError;
use crate::core::Core;

/// The chunks whose slots are alike.
pub(crate) struct Shelf<T> {
    /// A place is empty after its chunk was freed.
    chunks: Vec<Option<Chunk<T>>>,
    /// The numbers of chunks that are being made.
    reserved: Vec<u32>,
}

/// How many a shelf has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stock {
    pub(crate) chunks: u64,
    pub(crate) slots: u64,
    pub(crate) free_slots: u64,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), reserved: Vec::new() }
    }
}

impl<T> Shelf<T> {
    /// Takes up to `count` free slots to `to`. Returns how many.
    pub(crate) fn take(&mut self, count: usize, mut to: impl FnMut(Slot<T>)) -> usize {
        let mut taken = 0;
        for chunk in self.chunks.iter_mut().flatten() {
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
        let chunk = self.chunks[slot.chunk() as usize].as_mut();
        chunk.expect("a chunk lives while a slot of it does").give(slot);
    }

    /// Returns the number of a chunk that is to be made. It is given to no other until
    /// [`put`](Self::put) or [`cancel`](Self::cancel).
    pub(crate) fn reserve(&mut self) -> u32 {
        let is_vacant = |number: &u32| {
            let chunk = self.chunks.get(*number as usize);
            chunk.is_none_or(Option::is_none) && !self.reserved.contains(number)
        };
        let number = (0..).find(is_vacant).expect("chunks have addresses, so they are fewer");
        self.reserved.push(number);
        number
    }

    /// Gives back the number of a chunk that could not be made.
    pub(crate) fn cancel(&mut self, number: u32) {
        self.reserved.retain(|reserved| *reserved != number);
    }

    /// Adds the chunk that was made with that number.
    pub(crate) fn put(&mut self, number: u32, chunk: Chunk<T>) {
        self.cancel(number);
        let number = number as usize;
        if self.chunks.len() <= number {
            self.chunks.resize_with(number + 1, || None);
        }
        self.chunks[number] = Some(chunk);
    }

    /// Takes out a chunk all of whose slots have been free for `idle`, for the calling thread to unmap.
    ///
    /// # Errors
    /// [`BackendError`] if this thread cannot unmap it now; it stays.
    pub(crate) fn take_idle(
        &mut self,
        core: &Core,
        idle: Duration,
    ) -> Result<Option<Chunk<T>>, BackendError> {
        let is_idle =
            |chunk: &&Chunk<T>| chunk.idle_since().is_some_and(|since| since.elapsed() >= idle);
        let is_found = |place: &Option<Chunk<T>>| place.as_ref().filter(is_idle).is_some();
        let Some(at) = self.chunks.iter().rposition(is_found) else { return Ok(None) };
        if let Some(chunk) = &self.chunks[at] {
            core.backend.check_unmap(chunk.range())?;
        }
        let chunk = self.chunks[at].take();
        while self.chunks.last().is_some_and(Option::is_none) {
            self.chunks.pop();
        }
        Ok(chunk)
    }

    pub(crate) fn stock(&self) -> Stock {
        let mut stock = Stock::default();
        for chunk in self.chunks.iter().flatten() {
            let (slots, free_slots) = chunk.slots();
            stock.chunks += 1;
            stock.slots += u64::from(slots);
            stock.free_slots += u64::from(free_slots);
        }
        stock
    }
}
