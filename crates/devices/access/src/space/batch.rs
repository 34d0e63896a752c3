//! Many unmappings with one grace period.
#![expect(unsafe_code, reason = "the raw methods rely on promises of the caller")]

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::TlbGather;

use super::Space;
use super::dirty_bits::{pages_in, runs_of};
use super::inner::{Taken, thread_token};
use crate::error::Error;

impl Space {
    /// Returns an empty batch, which unmaps many ranges with one grace period.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }
}

/// A batch of unmappings with one grace period. The unmapped memory may be in use until
/// [`finish`](Self::finish) returns. Dropping the batch finishes it, too.
///
/// A batch that is reused soon stops allocating memory.
#[derive(Debug)]
#[must_use = "dropped, it waits for a grace period"]
pub struct Batch<'s> {
    space: &'s Space,
    gather: TlbGather,
    ranges: Vec<(u64, u64)>,
    taken: Vec<Taken>,
    /// The unmapped pages that were dirty.
    dirty: Vec<AddrRange<Iova>>,
    /// `true` if the space records leases that end, for `dirty`.
    watches: bool,
}

impl<'s> Batch<'s> {
    fn new(space: &'s Space) -> Self {
        Self {
            space,
            gather: TlbGather::new(),
            ranges: Vec::new(),
            taken: Vec::new(),
            dirty: Vec::new(),
            watches: false,
        }
    }

    /// Unmaps a range like [`Space::unmap_raw`], without waiting.
    ///
    /// # Errors
    /// Those of [`Space::unmap_raw`]. Ranges that were unmapped before stay unmapped.
    ///
    /// # Safety
    /// The same as for [`Space::unmap_raw`]. The memory is in use until the batch is finished.
    pub unsafe fn unmap_raw(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.space.inner.clear(iova, len_bytes, &mut self.gather, |_| {})?;
        self.note(iova, len_bytes);
        Ok(())
    }

    /// Unmaps a range like [`unmap_raw`](Self::unmap_raw), and records the pages that were written for
    /// [`finish_dirty`](Self::finish_dirty).
    ///
    /// # Errors
    /// Those of [`Space::unmap_dirty`]. Ranges that were unmapped before stay unmapped.
    ///
    /// # Safety
    /// The same as for [`unmap_raw`](Self::unmap_raw).
    pub unsafe fn unmap_raw_dirty(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.watch(iova, len_bytes)?;
        let note = |pages| self.dirty.push(pages);
        self.space.inner.clear(iova, len_bytes, &mut self.gather, note)?;
        self.note(iova, len_bytes);
        Ok(())
    }

    /// Unmaps a range like [`Space::unmap`], without waiting.
    ///
    /// # Errors
    /// Those of [`Space::unmap`]. Ranges that were unmapped before stay unmapped.
    pub fn unmap(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.space.inner.check_door()?;
        let locked = self.space.inner.lock_windows();
        locked.clear(iova, len_bytes, &mut self.gather, &mut self.taken, |_| {})?;
        drop(locked);
        self.note(iova, len_bytes);
        Ok(())
    }

    /// Unmaps a range like [`unmap`](Self::unmap), and records the pages that were written for
    /// [`finish_dirty`](Self::finish_dirty).
    ///
    /// # Errors
    /// Those of [`Space::unmap_dirty`]. Ranges that were unmapped before stay unmapped.
    pub fn unmap_dirty(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.space.inner.check_door()?;
        self.watch(iova, len_bytes)?;
        let note = |pages| self.dirty.push(pages);
        let locked = self.space.inner.lock_windows();
        locked.clear(iova, len_bytes, &mut self.gather, &mut self.taken, note)?;
        drop(locked);
        self.note(iova, len_bytes);
        Ok(())
    }

    /// Returns when no session can access the unmapped ranges any more. The batch can be used again.
    /// Discards the pages that were recorded for [`finish_dirty`](Self::finish_dirty).
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`]. The unmapped memory is still in use then; finish the batch later. If
    /// the batch is dropped instead, the memory stays in use for ever: tables are leaked, and a region
    /// of which the batch has unmapped a part cannot be detached.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.wait()?;
        self.dirty.clear();
        Ok(())
    }

    /// Finishes the batch like [`finish`](Self::finish). Then calls `visit` with each run of pages that
    /// were written, of those that [`unmap_dirty`](Self::unmap_dirty) unmapped, in ascending order.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish). The pages are kept for the next call then.
    pub fn finish_dirty(&mut self, visit: impl FnMut(AddrRange<Iova>)) -> Result<(), Error> {
        self.wait()?;
        runs_of(std::mem::take(&mut self.dirty)).for_each(visit);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        let me = thread_token();
        let inner = &self.space.inner;
        let waits_for_itself = |&(first, last): &(u64, u64)| {
            inner.grace.is_busy_in(me) || inner.leases.is_held_by(me, first, last)
        };
        if let Some((first, _)) = self.ranges.iter().find(|range| waits_for_itself(range)) {
            let iova = Iova::new(*first);
            return Err(Error::PinnedByCaller { operation: "finishing a batch", iova });
        }
        // Take everything out before waiting: if a callback panics, memory that is still in use is never
        // // counted as unmapped.
        let gather = std::mem::take(&mut self.gather);
        let mut ranges = std::mem::take(&mut self.ranges);
        let mut taken = std::mem::take(&mut self.taken);
        inner.finish(gather, &ranges.as_slice());
        inner.forget_mapped(&mut taken);
        if std::mem::take(&mut self.watches) {
            self.dirty.extend(pages_in(inner.leases.unwatch().iter(), &ranges));
        }
        ranges.clear();
        (self.ranges, self.taken) = (ranges, taken);
        Ok(())
    }

    /// Makes the space record writable leases that end from now on. If dirty bits are cleared meanwhile,
    /// the pages of these leases may be clean in the page tables although they were written.
    fn watch(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.space.check_dirty_bits(iova, len_bytes)?;
        if !std::mem::replace(&mut self.watches, true) {
            self.space.inner.leases.watch();
        }
        Ok(())
    }

    fn note(&mut self, iova: Iova, len_bytes: u64) {
        let (first, last) = (iova.raw(), iova.raw() + (len_bytes - 1));
        match self.ranges.last_mut() {
            Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
            _ => self.ranges.push((first, last)),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // The documentation of `finish` says what happens if it fails.
        let _ = self.finish();
        if self.watches {
            self.space.inner.leases.unwatch();
        }
    }
}
