//! Dirty bits in the page tables: read, cleared, and not lost by unmapping.
//!
//! A session sets the bit of a page before it writes there. A lease sets its bits when it is made, and
//! may then write until it is dropped. So a thread that clears bits sets those of live writable leases
//! again, for the next reader.

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::format::Format;
use longshore_pagetable::{Error as TableError, TlbGather};

use super::Space;
use crate::error::Error;
use crate::lease::Written;
use crate::region::PAGE_BYTES;

impl Space {
    /// Calls `visit` with each page or block that maps any of `len_bytes` from `iova` and was written
    /// since it was mapped or its dirty bit was cleared. If `clear` is set, this also clears the bits,
    /// and no concurrent write is missed. Pages of live writable leases are reported each time. Unmapped
    /// pages are reported by [`unmap_dirty`](Self::unmap_dirty) instead.
    ///
    /// # Errors
    /// [`Error::Table`] if the space has no [`dirty_bits`](crate::SpaceConfig::dirty_bits);
    /// [`Error::PinnedByCaller`].
    pub fn read_dirty(
        &self,
        iova: Iova,
        len_bytes: u64,
        clear: bool,
        visit: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let operation = "reading dirty bits of";
        self.inner.check_waits(operation)?;
        let (mut gather, mut found) = (TlbGather::new(), Vec::new());
        let session = self.session();
        // Enter a slot like any walker, so that no table is freed and reused meanwhile.
        let entered = session.enter();
        let read = self.inner.table.read_dirty(iova, len_bytes, clear, &mut gather, |pages| {
            found.push(pages);
        });
        drop(entered);
        session.park();
        read.map_err(|source| Error::Table { operation, iova, len_bytes, source })?;
        // Writes that end before the grace period does belong to this call.
        self.inner.finish(gather, &[]);
        if clear {
            let range = (iova.raw(), iova.raw() + (len_bytes - 1));
            let leased = self.inner.leases.written();
            let written = leased.iter().flat_map(|leased| &**leased).filter_map(Written::addresses);
            for part in pages_in(written, &[range]) {
                session.set_dirty(part.start(), part.len());
            }
        }
        found.into_iter().for_each(visit);
        Ok(())
    }

    /// Unmaps a range like [`unmap`](Self::unmap), and then calls `visit` with the pages that were
    /// written since they were mapped or their dirty bits were cleared, in ascending runs. Blocks are
    /// reported as a whole. Of leased memory, all pages of writable leases are reported.
    ///
    /// # Errors
    /// Those of [`unmap`](Self::unmap); [`Error::Table`] if the space has no
    /// [`dirty_bits`](crate::SpaceConfig::dirty_bits). Nothing has changed then.
    pub fn unmap_dirty(
        &self,
        iova: Iova,
        len_bytes: u64,
        visit: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let mut batch = self.batch();
        batch.unmap_dirty(iova, len_bytes)?;
        batch.finish_dirty(visit)
    }

    /// Returns an error if the page tables have no dirty bits.
    pub(crate) fn check_dirty_bits(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        if self.inner.table.format().dirty_test().is_some() {
            return Ok(());
        }
        let (operation, source) = ("unmapping", TableError::NoDirtyTracking);
        Err(Error::Table { operation, iova, len_bytes, source })
    }
}

/// Returns the pages of `written` that are in `ranges`. Each range is given by its first and last
/// address and consists of whole pages.
pub(crate) fn pages_in(
    written: impl Iterator<Item = (u64, u64)>,
    ranges: &[(u64, u64)],
) -> Vec<AddrRange<Iova>> {
    let mut parts = Vec::new();
    for (first, last) in written {
        let (first, last) = (first & !(PAGE_BYTES - 1), last | (PAGE_BYTES - 1));
        for (low, high) in ranges {
            let (first, last) = (first.max(*low), last.min(*high));
            // Mapped ranges do not reach the end of the address space.
            let len_bytes = last.checked_sub(first).and_then(|span| span.checked_add(1));
            let part = len_bytes.and_then(|len| AddrRange::new(Iova::new(first), len).ok());
            parts.extend(part);
        }
    }
    parts
}

/// Returns the same addresses as disjoint runs in ascending order.
pub(crate) fn runs_of(mut ranges: Vec<AddrRange<Iova>>) -> impl Iterator<Item = AddrRange<Iova>> {
    ranges.sort_by_key(|range| range.start());
    let mut ranges = ranges.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut run = ranges.next()?;
        while let Some(next) = ranges.peek() {
            let (Some(distance), Some(last)) =
                (next.start().checked_offset_from(run.start()), next.last())
            else {
                break;
            };
            if distance > run.len() {
                break;
            }
            let end = last.raw().max(run.start().raw() + (run.len() - 1));
            run = AddrRange::new(run.start(), end - run.start().raw() + 1).ok()?;
            ranges.next();
        }
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> AddrRange<Iova> {
        AddrRange::new(Iova::new(first), last - first + 1).unwrap()
    }

    #[test]
    fn runs_have_each_page_once() {
        let ranges = [(8, 9), (1, 1), (3, 6), (2, 2), (4, 5), (9, 12), (14, 14)];
        let runs: Vec<_> = runs_of(ranges.map(|(low, high)| range(low, high)).into()).collect();
        assert_eq!(runs, [range(1, 6), range(8, 12), range(14, 14)]);
        assert_eq!(runs_of(Vec::new()).count(), 0);
    }

    #[test]
    fn written_bytes_are_reported_as_whole_pages_within_the_ranges() {
        let written = |iova, len| Written { iova, len, guest_phys: None };
        let leased = [written(0x1ff0, 0x20), written(0x9000, 0), written(0x5000, 0x3000)];
        let addresses = leased.iter().filter_map(Written::addresses);
        let parts = pages_in(addresses, &[(0x2000, 0x6fff), (0x7000, 0x7fff)]);
        assert_eq!(parts, [range(0x2000, 0x2fff), range(0x5000, 0x6fff), range(0x7000, 0x7fff)]);
    }
}
