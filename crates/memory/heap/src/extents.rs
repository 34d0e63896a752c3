//! Prefaults the pages of a memfd, 2 MiB at a time, each exactly once.
//!
//! In every 2 MiB extent, the first page is prefaulted, and `mincore` then shows how many pages
//! came with it:
//!
//! ```text
//!   populate one page ─► 2 MiB resident? ──yes──────────────────────────► huge
//!                              │no
//!                        MADV_COLLAPSE ────ok───────────────────────────► huge
//!                              │refused
//!                        populate the rest ─► size of the first folio ──► 64 KiB or base
//! ```
//!
//! In a tmpfs, pages are allocated (`fallocate`) before they are prefaulted, so that a tmpfs without
//! room is an error of its own.
//!
//! Prefaulting returns an error if memory is short, where an access would raise SIGBUS, and it does
//! not change the content.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use longshore_mem::Granule;
use longshore_sys::{page_size_bytes, pages, tmpfs};

use crate::heap::Heap;
use crate::memory::Memory;
use crate::page_report::PageReport;

const EXTENT: Granule = Granule::SIZE_2M;

/// The number of collapses refused in a row after which no more are tried: each refusal costs a
/// walk of the page table and perhaps of the free lists.
const COLLAPSE_REFUSALS_MAX: u32 = 8;

const ABSENT: u8 = 0;
const IN_PROGRESS: u8 = 1;
const PRESENT: u8 = 2;

/// The extents of a memory that exist, and the page sizes that they have.
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
    /// Pages exist as soon as the memory does: a kernel heap.
    Given,
    /// Pages of the hugetlb pool, reserved by the mapping.
    Pool,
    /// The largest pages available.
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

    /// Advises the kernel of the page size. If it refuses, as a kernel without huge pages does, the
    /// pages are those that it would have used anyway.
    fn advise(&self, memory: &Memory) {
        let bytes = memory.mapped_bytes();
        let Ok(whole) = memory.pages(&(0..bytes)) else { return };
        let _ = match self.want {
            // A buffer below 2 MiB gains nothing from a huge page, and could waste most of one.
            Want::Largest if bytes >= EXTENT.bytes() => pages::advise_huge(whole),
            Want::Largest | Want::Base if bytes > 0 => pages::advise_base(whole),
            _ => Ok(()),
        };
    }

    /// Prefaults every extent that `range` touches. Any thread may call it at any time. If another
    /// thread is prefaulting an extent, it waits for that thread.
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
                    // The other thread is zeroing pages in the kernel: let it run.
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
        let first_bytes = len_bytes.min(page_size_bytes() as u64);
        allocate_in_tmpfs(memory, bytes.start..bytes.start + first_bytes)?;
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
            allocate_in_tmpfs(memory, bytes.clone())?;
            pages::populate_write(extent)?;
        }
        // If the last extent is no larger than a smaller folio, it does not show that huge pages
        // were used.
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

/// Allocates a range of a file in a tmpfs. Buffers below 2 MiB are left out: `fallocate` in a tmpfs with
/// huge pages would take a whole one even for a small file, and the advice on the mapping prevents that.
fn allocate_in_tmpfs(memory: &Memory, bytes: Range<u64>) -> io::Result<()> {
    match (&memory.heap, memory.memfd()) {
        (Heap::Tmpfs(_), Some(file)) if memory.mapped_bytes() >= EXTENT.bytes() => {
            tmpfs::allocate(file, bytes)
        }
        _ => Ok(()),
    }
}
