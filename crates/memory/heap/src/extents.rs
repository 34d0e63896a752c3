//! Making the pages of a memfd exist, 2 MiB at a time, each exactly once.
//!
//! For every 2 MiB extent its first page is populated, then `mincore` tells how much came with it:
//!
//! ```text
//!   populate one page ─► 2 MiB resident? ──yes──────────────────────────► huge
//!                              │no
//!                        MADV_COLLAPSE ────ok───────────────────────────► huge
//!                              │refused
//!                        populate the rest ─► size of the first folio ──► 64 KiB or base
//! ```
//!
//! Populating reports the lack of memory as an error where touching would be a SIGBUS, and it does
//! not change what is there.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use longshore_mem::Granule;
use longshore_sys::{page_size_bytes, pages};

use crate::heap::Heap;
use crate::memory::Memory;
use crate::page_report::PageReport;

const EXTENT: Granule = Granule::SIZE_2M;

/// Once the kernel has refused so many collapses in a row, it is not asked any more: each refusal
/// costs a walk of the page table and perhaps of the free lists.
const COLLAPSE_REFUSALS_MAX: u32 = 8;

const ABSENT: u8 = 0;
const IN_PROGRESS: u8 = 1;
const PRESENT: u8 = 2;

/// Which extents of a memory exist, and in which pages they came out.
#[derive(Debug)]
pub(crate) struct Extents {
    states: Box<[AtomicU8]>,
    want: Want,
    refusals: AtomicU32,
    huge_bytes: AtomicU64,
    mid_bytes: AtomicU64,
    base_bytes: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// Pages come with the memory: a kernel heap.
    Given,
    /// Pages of the hugetlb pool, reserved by the mapping.
    Pool,
    /// The largest to be had.
    Largest,
    /// Base pages.
    Base,
}

impl Extents {
    pub(crate) fn new(memory: &Memory) -> Self {
        let want = match memory.heap {
            Heap::DmaHeap(_) => Want::Given,
            Heap::Hugetlb => Want::Pool,
            Heap::MemfdBasePages => Want::Base,
            _ => Want::Largest,
        };
        let count = memory.mapped_bytes().div_ceil(EXTENT.bytes());
        let count = if want == Want::Given { 0 } else { count };
        let extents = Self {
            states: (0..count).map(|_| AtomicU8::new(ABSENT)).collect(),
            want,
            refusals: AtomicU32::new(0),
            huge_bytes: AtomicU64::new(0),
            mid_bytes: AtomicU64::new(0),
            base_bytes: AtomicU64::new(0),
        };
        extents.advise(memory);
        extents
    }

    /// Asks for the pages wanted. An advice that is refused, as by a kernel without huge pages,
    /// leaves the pages as they would have been.
    fn advise(&self, memory: &Memory) {
        let bytes = memory.mapped_bytes();
        let Ok(whole) = memory.pages(&(0..bytes)) else { return };
        let _ = match self.want {
            // Below one huge page there is none to win, and a whole one to lose.
            Want::Largest if bytes >= EXTENT.bytes() => pages::advise_huge(whole),
            Want::Largest | Want::Base if bytes > 0 => pages::advise_base(whole),
            _ => Ok(()),
        };
    }

    /// Makes every extent that `range` touches exist. Any thread may call it at any time; one that
    /// meets an extent in another's hands waits for it.
    pub(crate) fn populate(
        &self,
        memory: &Memory,
        range: Range<u64>,
    ) -> Result<(), (Range<u64>, io::Error)> {
        if range.is_empty() || self.want == Want::Given {
            return Ok(());
        }
        let first = range.start / EXTENT.bytes();
        let last = (range.end - 1) / EXTENT.bytes();
        for index in first..=last {
            let bytes =
                index * EXTENT.bytes()..((index + 1) * EXTENT.bytes()).min(memory.mapped_bytes());
            let state = &self.states[index as usize];
            loop {
                match state.compare_exchange(
                    ABSENT,
                    IN_PROGRESS,
                    Ordering::Acquire,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        let made = self.populate_extent(memory, &bytes);
                        let next = if made.is_ok() { PRESENT } else { ABSENT };
                        state.store(next, Ordering::Release);
                        made.map_err(|error| (bytes.clone(), error))?;
                        break;
                    }
                    Err(PRESENT) => break,
                    // The other thread is in the kernel, zeroing: let it run.
                    Err(_) => std::thread::yield_now(),
                }
            }
        }
        Ok(())
    }

    fn populate_extent(&self, memory: &Memory, bytes: &Range<u64>) -> io::Result<()> {
        let len_bytes = bytes.end - bytes.start;
        let extent = memory.pages(bytes).map_err(io::Error::other)?;
        if matches!(self.want, Want::Pool | Want::Base) {
            pages::populate_write(extent)?;
            let tally = if self.want == Want::Pool { &self.huge_bytes } else { &self.base_bytes };
            tally.fetch_add(len_bytes, Ordering::Relaxed);
            return Ok(());
        }
        let first_page = extent.subslice(0, extent.len().min(page_size_bytes()));
        pages::populate_write(first_page.map_err(io::Error::other)?)?;
        let mut folio_bytes = pages::resident_prefix_bytes(extent)? as u64;
        if folio_bytes < len_bytes
            && len_bytes == EXTENT.bytes()
            && self.refusals.load(Ordering::Relaxed) < COLLAPSE_REFUSALS_MAX
        {
            if pages::collapse(extent).is_ok() {
                self.refusals.store(0, Ordering::Relaxed);
                folio_bytes = pages::resident_prefix_bytes(extent)? as u64;
            } else {
                self.refusals.fetch_add(1, Ordering::Relaxed);
            }
        }
        if folio_bytes < len_bytes {
            pages::populate_write(extent)?;
        }
        // A last extent that is no larger than a smaller folio says nothing of huge pages.
        let tally = if folio_bytes == len_bytes && len_bytes > Granule::SIZE_64K.bytes() {
            &self.huge_bytes
        } else if folio_bytes >= Granule::SIZE_64K.bytes() {
            &self.mid_bytes
        } else {
            &self.base_bytes
        };
        tally.fetch_add(len_bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn report(&self, memory: &Memory) -> PageReport {
        let load = |tally: &AtomicU64| tally.load(Ordering::Relaxed);
        match self.want {
            Want::Given => {
                PageReport { unknown_bytes: memory.mapped_bytes(), ..PageReport::default() }
            }
            Want::Pool => {
                PageReport { hugetlb_2m_bytes: load(&self.huge_bytes), ..PageReport::default() }
            }
            Want::Largest | Want::Base => PageReport {
                huge_2m_bytes: load(&self.huge_bytes),
                mid_64k_bytes: load(&self.mid_bytes),
                base_bytes: load(&self.base_bytes),
                ..PageReport::default()
            },
        }
    }
}
