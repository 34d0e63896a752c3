//! Memory that is being filled: it has an address, but not yet all of its pages.
#![expect(unsafe_code, reason = "lends disjoint writable windows")]

use std::io;
use std::ops::Range;

use longshore_iov::{Cursor, Dest, copy};
use longshore_mem::VolatileSliceMut;
use longshore_sys::dma_buf::CpuAccess;
use longshore_sys::pages;

use crate::buffer::Buffer;
use crate::dma_buf::DmaBuf;
use crate::error::{Error, Result};
use crate::extents::Extents;
use crate::heap::Heap;
use crate::memory::{Memory, base_page, tmpfs_full};
use crate::page_report::PageReport;

impl Heap {
    /// Reserves address space and a descriptor for a buffer of `len_bytes`, but no pages yet.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`], [`crate::Error::NoSuchHeap`],
    /// [`crate::Error::AboveUdmabufLimit`] and [`crate::Error::TooLong`] if the heap cannot be
    /// used, or not for this length; [`crate::Error::TmpfsFull`] if a tmpfs has less room than that;
    /// [`crate::Error::OutOfMemory`] if the heap allocates its pages
    /// at once and memory is short; [`crate::Error::Kernel`] if a system call fails.
    pub fn reserve(&self, len_bytes: u64) -> Result<Reservation> {
        Reservation::new(self, len_bytes)
    }

    /// Returns a buffer of `len_bytes` zero bytes.
    ///
    /// # Errors
    /// Those of [`Heap::reserve`] and [`Reservation::populate`].
    pub fn allocate(&self, len_bytes: u64) -> Result<Buffer> {
        let reservation = self.reserve(len_bytes)?;
        reservation.populate(0..len_bytes)?;
        reservation.finish()
    }
}

/// A buffer that is being filled.
///
/// [`populate`](Self::populate) prefaults its pages, from any thread and in any order, and
/// [`window`](Self::window) gives write access to them. [`finish`](Self::finish) turns it into a
/// [`Buffer`]. If it is dropped before, its memory is freed, because it has handed out no
/// descriptor.
#[derive(Debug)]
pub struct Reservation {
    memory: Memory,
    extents: Extents,
}

impl Reservation {
    pub(crate) fn new(heap: &Heap, len_bytes: u64) -> Result<Self> {
        let memory = Memory::take(heap, len_bytes)?;
        let extents = Extents::new(&memory);
        Ok(Self { memory, extents })
    }

    /// Returns the heap that the memory comes from; for [`Heap::Auto`], the one that was chosen.
    pub fn heap(&self) -> &Heap {
        &self.memory.heap
    }

    /// Returns the requested length in bytes.
    pub fn len(&self) -> u64 {
        self.memory.content_bytes
    }

    /// Returns `true` if the requested length is zero.
    pub fn is_empty(&self) -> bool {
        self.memory.content_bytes == 0
    }

    /// Returns the largest end of a window: the length, rounded up to the end of its last page.
    pub fn capacity_bytes(&self) -> u64 {
        self.memory.mapped_bytes()
    }

    /// Returns `true` if the kernel can read a file directly into this memory. It refuses that
    /// (`EFAULT`) for the mapping of a dma-buf.
    pub fn takes_direct_io(&self) -> bool {
        self.memory.dma_heap_buf().is_none()
    }

    /// Prefaults the pages of a range in the largest size available. New pages are zero, and
    /// existing pages keep their content. Any thread may call it at any time.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if memory runs out, [`Error::TmpfsFull`] if a tmpfs is full,
    /// [`Error::OutOfRange`] if the range is not inside.
    pub fn populate(&self, range: Range<u64>) -> Result<()> {
        if range.start > range.end || range.end > self.capacity_bytes() {
            return Err(Error::OutOfRange { range, len_bytes: self.len() });
        }
        self.extents.populate(&self.memory, range).map_err(|(range, source)| {
            let (heap, len_bytes) = (self.memory.heap.clone(), self.memory.content_bytes);
            match &heap {
                // `MADV_POPULATE_WRITE` returns this error where an access would raise SIGBUS.
                Heap::Tmpfs(directory) if is_full(&source) => {
                    tmpfs_full(directory, len_bytes, None, source)
                }
                _ => Error::OutOfMemory { heap, range, len_bytes, source },
            }
        })
    }

    /// Returns a writable view of a range, which may reach up to
    /// [`capacity_bytes`](Self::capacity_bytes).
    ///
    /// # Safety
    /// Two windows that exist at the same time must not share a byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not inside.
    pub unsafe fn window(&self, range: Range<u64>) -> Result<VolatileSliceMut<'_>> {
        // SAFETY: the caller keeps windows apart, and a reservation lends no other writable memory.
        let window = unsafe { self.memory.window(&range) };
        window.map_err(|_| Error::OutOfRange { range, len_bytes: self.len() })
    }

    /// Returns a range that has been filled as a slice, to read content before the rest is
    /// complete.
    ///
    /// # Safety
    /// As long as the slice lives, no window may touch the range.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not inside.
    pub unsafe fn filled(&self, range: Range<u64>) -> Result<&[u8]> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::OutOfRange { range, len_bytes: self.len() });
        }
        // SAFETY: by the caller's promise, no code writes to this range any more. Writes beside it
        // do not touch the slice.
        let filled = unsafe { self.memory.slice(&range) };
        filled.map_err(|_| Error::OutOfRange { range, len_bytes: self.len() })
    }

    /// Returns the pages of a range to the kernel. Only the whole pages in it are returned, and only those of
    /// [`Heap::Anonymous`]; for another heap, it does nothing.
    ///
    /// # Safety
    /// No window and no slice of the range exists, and the range is not used again.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not inside, [`Error::Kernel`] if the kernel refuses.
    pub unsafe fn discard(&self, range: Range<u64>) -> Result<()> {
        let out_of_range = |range| Error::OutOfRange { range, len_bytes: self.len() };
        let page = base_page();
        let start =
            page.checked_round_up(range.start).ok_or_else(|| out_of_range(range.clone()))?;
        let whole = start..page.round_down(range.end).max(start);
        let pages = self.memory.pages(&whole).map_err(|_| out_of_range(range))?;
        if *self.heap() != Heap::Anonymous || whole.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { pages::discard(pages) }.map_err(|source| Error::Kernel {
            heap: Heap::Anonymous,
            operation: "madvise(MADV_DONTNEED)",
            len_bytes: self.len(),
            source,
        })
    }

    /// Returns the page sizes of the memory that exists so far.
    pub fn page_report(&self) -> PageReport {
        self.extents.report(&self.memory)
    }

    /// Ends the filling: makes the CPU's writes visible to devices, and sets the bytes behind the
    /// content in its last page to zero.
    ///
    /// # Errors
    /// Those of [`populate`](Self::populate) for the last page, and [`Error::Kernel`] if a dma-buf
    /// cannot be synchronized.
    pub fn finish(self) -> Result<Buffer> {
        let (content, end) = (self.memory.content_bytes, self.memory.mapped_bytes());
        if content < end {
            self.populate(content..end)?;
            let guard = DmaBuf::begin(self.memory.dma_heap_buf(), CpuAccess::Write)?;
            // SAFETY: `self` is owned here, so no other window exists.
            let tail = unsafe { self.window(content..end) }?;
            let len_bytes = tail.len();
            let zeroed = copy::zero(&mut Cursor::<Dest>::foreign_buf(tail), len_bytes);
            debug_assert_eq!(zeroed, Ok(len_bytes), "the last page was populated");
            drop(guard);
        }
        let pages = self.page_report();
        Ok(Buffer::new(self.memory, pages))
    }

    /// Starts CPU access, which lasts as long as the guard. It is needed for writes through windows
    /// if the memory is a dma-buf, and does nothing otherwise.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the exporter of the dma-buf refuses.
    pub fn begin_filling(&self) -> Result<Filling<'_>> {
        Ok(Filling { _guard: DmaBuf::begin(self.memory.dma_heap_buf(), CpuAccess::ReadWrite)? })
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull || pages::is_bad_address(error)
}

/// A guard for writes to a [`Reservation`], which must end before the guard is dropped.
#[derive(Debug)]
#[must_use = "the memory may be written to only while this lives"]
pub struct Filling<'a> {
    _guard: crate::dma_buf::CpuAccessGuard<'a>,
}

#[cfg(test)]
mod tests {
    use longshore_mem::Granule;

    use super::*;

    #[test]
    fn the_file_ends_with_the_content() {
        let reservation = Heap::Memfd.reserve(5000).unwrap();
        assert_eq!(reservation.capacity_bytes(), 8192);
        reservation.populate(0..8192).unwrap();
        // SAFETY: the only window.
        unsafe { reservation.window(0..8192) }.unwrap().write(0, &[0xff; 8192]).unwrap();
        let buffer = reservation.finish().unwrap();
        let shared = buffer.share(crate::Sealing::Size).unwrap();
        assert_eq!(shared.as_slice(), None);
        let mut page = [1u8; 4096];
        // The file ends with the content, although the window reached to the end of the page.
        let file = shared.memfd().unwrap();
        assert_eq!(rustix::io::pread(file, &mut page, 4096).unwrap(), 904);
        assert_eq!(page[..904], [0xff; 904]);
    }

    #[test]
    fn bytes_behind_the_content_are_zero_for_a_process_that_maps_the_file() {
        let heaps = [Heap::Auto, Heap::Memfd, Heap::MemfdBasePages];
        for (heap, len_bytes) in heaps.iter().flat_map(|heap| [(heap, 5000), (heap, 1)]) {
            let reservation = heap.reserve(len_bytes).unwrap();
            let end = reservation.capacity_bytes();
            reservation.populate(0..end).unwrap();
            // SAFETY: the only window.
            let mut window = unsafe { reservation.window(0..end) }.unwrap();
            // As a read of a whole block leaves it.
            window.write(0, &vec![0xff; end as usize]).unwrap();
            let shared = reservation.finish().unwrap().share(crate::Sealing::Size).unwrap();
            let access = longshore_sys::mapping::Access::Read;
            let memfd = shared.memfd().unwrap();
            let mapping =
                longshore_sys::mapping::Mapping::of_file(memfd, end, Granule::SIZE_4K, access)
                    .unwrap();
            // SAFETY: mapped for reading, and no code writes to it any more.
            let bytes = unsafe {
                std::slice::from_raw_parts(mapping.start().as_ptr(), mapping.len_bytes())
            };
            let (content, tail) = bytes.split_at(len_bytes as usize);
            assert!(content.iter().all(|byte| *byte == 0xff), "{heap} {len_bytes}");
            assert!(!tail.is_empty() && tail.iter().all(|byte| *byte == 0), "{heap} {len_bytes}");
        }
    }

    #[test]
    fn ranges_outside_of_a_reservation_are_refused() {
        let reservation = Heap::Memfd.reserve(4096).unwrap();
        assert!(matches!(reservation.populate(0..4097), Err(Error::OutOfRange { .. })));
        // SAFETY: the call returns no window.
        let window = unsafe { reservation.window(4096..4097) };
        assert!(matches!(window, Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn populating_from_several_threads_reports_each_byte_once() {
        let len_bytes = 33 << 20;
        let reservation = Heap::Memfd.reserve(len_bytes).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let reservation = &reservation;
                scope.spawn(move || {
                    for start in (0..len_bytes).step_by(1 << 20).skip(thread) {
                        reservation.populate(start..start + (1 << 20)).unwrap();
                    }
                });
            }
        });
        assert_eq!(reservation.page_report().total_bytes(), len_bytes);
    }
}
