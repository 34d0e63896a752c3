//! Many unmappings with one grace period.
#![expect(unsafe_code, reason = "the raw door asks the caller for promises")]

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::TlbGather;

use super::Space;
use super::dirty_bits::{pages_in, runs_of};
use super::inner::{Taken, thread_token};
use crate::error::Error;

impl Space {
    /// Many unmappings with one grace period.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }
}

/// Unmappings that are waited for together: what they took out may be in use until
/// [`finish`](Self::finish) returns, which dropping does too.
///
/// One that is used again allocates nothing once it is warm.
#[derive(Debug)]
#[must_use = "dropped, it waits for a grace period"]
pub struct Batch<'s> {
    space: &'s Space,
    gather: TlbGather,
    ranges: Vec<(u64, u64)>,
    taken: Vec<Taken>,
    /// What was unmapped and was dirty.
    dirty: Vec<AddrRange<Iova>>,
    /// Whether leases that end are noted for that.
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

    /// Unmaps as [`Space::unmap_raw`], without waiting.
    ///
    /// # Errors
    /// As [`Space::unmap_raw`]; what was unmapped before stays so.
    ///
    /// # Safety
    /// As [`Space::unmap_raw`]; and the memory is in use until the batch is finished.
    pub unsafe fn unmap_raw(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.space.inner.clear(iova, len_bytes, &mut self.gather, |_| {})?;
        self.note(iova, len_bytes);
        Ok(())
    }

    /// Unmaps as [`unmap_raw`](Self::unmap_raw), and notes what was written for
    /// [`finish_dirty`](Self::finish_dirty).
    ///
    /// # Errors
    /// As [`Space::unmap_dirty`]; what was unmapped before stays so.
    ///
    /// # Safety
    /// As [`unmap_raw`](Self::unmap_raw).
    pub unsafe fn unmap_raw_dirty(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.watch(iova, len_bytes)?;
        let note = |pages| self.dirty.push(pages);
        self.space.inner.clear(iova, len_bytes, &mut self.gather, note)?;
        self.note(iova, len_bytes);
        Ok(())
    }

    /// Unmaps as [`Space::unmap`], without waiting.
    ///
    /// # Errors
    /// As [`Space::unmap`]; what was unmapped before stays so.
    pub fn unmap(&mut self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        self.space.inner.check_door()?;
        let locked = self.space.inner.lock_windows();
        locked.clear(iova, len_bytes, &mut self.gather, &mut self.taken, |_| {})?;
        drop(locked);
        self.note(iova, len_bytes);
        Ok(())
    }

    /// Unmaps as [`unmap`](Self::unmap), and notes what was written for
    /// [`finish_dirty`](Self::finish_dirty).
    ///
    /// # Errors
    /// As [`Space::unmap_dirty`]; what was unmapped before stays so.
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

    /// Returns when no session can reach what was unmapped. The batch can be used again. What was
    /// noted for [`finish_dirty`](Self::finish_dirty) is forgotten.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`], and then what was unmapped is still in use; finish it later. Where
    /// the batch is dropped instead, it stays in use for ever: tables are leaked, and a region that
    /// has a part in it cannot be detached.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.wait()?;
        self.dirty.clear();
        Ok(())
    }

    /// The same, and then tells `visit` of the pages that were written of those unmapped by
    /// [`unmap_dirty`](Self::unmap_dirty), in ascending runs.
    ///
    /// # Errors
    /// As [`finish`](Self::finish); they are reported later then.
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
        // All at once: if a callback panics, what is in use still is never counted as unmapped.
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

    /// Has leases noted from here on that end, if they write: their pages may be clean where somebody
    /// cleared dirty bits meanwhile.
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
        // What it says of a refusal is what happens now.
        let _ = self.finish();
        if self.watches {
            self.space.inner.leases.unwatch();
        }
    }
}
