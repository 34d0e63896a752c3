//! Memory that has an address but not yet all its pages, while it is being filled.
#![expect(unsafe_code, reason = "lends out disjoint writable windows")]

use std::ops::Range;

use longshore_iov::{Cursor, Dest, copy};
use longshore_mem::VolatileSliceMut;
use longshore_sys::dma_buf::CpuAccess;

use crate::buffer::Buffer;
use crate::dma_buf::DmaBuf;
use crate::error::{Error, Result};
use crate::extents::Extents;
use crate::heap::Heap;
use crate::memory::Memory;
use crate::page_report::PageReport;

impl Heap {
    /// Takes address space and a descriptor for a buffer of `len_bytes`, but no pages yet.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`], [`crate::Error::NoSuchHeap`],
    /// [`crate::Error::AboveUdmabufLimit`], [`crate::Error::TooLong`],
    /// [`crate::Error::OutOfMemory`] where the heap takes its pages at once,
    /// [`crate::Error::Kernel`] for anything else the kernel refuses.
    pub fn reserve(&self, len_bytes: u64) -> Result<Reservation> {
        Reservation::new(self, len_bytes)
    }

    /// A buffer of `len_bytes` zero bytes.
    ///
    /// # Errors
    /// Those of [`Heap::reserve`] and [`Reservation::populate`].
    pub fn allocate(&self, len_bytes: u64) -> Result<Buffer> {
        let reservation = self.reserve(len_bytes)?;
        reservation.populate(0..len_bytes)?;
        reservation.finish()
    }
}

/// A buffer in the making.
///
/// Pages are made by [`populate`](Self::populate), from any thread, in any order; content is
/// written through [`window`](Self::window). It becomes a [`Buffer`] by [`finish`](Self::finish).
/// Dropped before, it leaves nothing: no descriptor was handed out.
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

    /// The heap the memory comes from; where [`Heap::Auto`] was asked for, the one it chose.
    pub fn heap(&self) -> &Heap {
        &self.memory.heap
    }

    /// The length asked for, in bytes.
    pub fn len(&self) -> u64 {
        self.memory.content_bytes
    }

    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.memory.content_bytes == 0
    }

    /// How far a window may reach: the length up to the end of its last page.
    pub fn capacity_bytes(&self) -> u64 {
        self.memory.mapped_bytes()
    }

    /// Whether the kernel can read a file straight into this memory. It refuses that (`EFAULT`)
    /// for the mapping of a dma-buf.
    pub fn takes_direct_io(&self) -> bool {
        self.memory.dma_heap_buf().is_none()
    }

    /// Makes the pages of a range exist, zeroed, in the largest size to be had. Pages that exist
    /// keep their content. Any thread may call it at any time.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where memory runs out, [`Error::OutOfRange`].
    pub fn populate(&self, range: Range<u64>) -> Result<()> {
        if range.start > range.end || range.end > self.capacity_bytes() {
            return Err(Error::OutOfRange { range, len_bytes: self.len() });
        }
        self.extents.populate(&self.memory, range).map_err(|(range, source)| Error::OutOfMemory {
            heap: self.memory.heap.clone(),
            range,
            len_bytes: self.memory.content_bytes,
            source,
        })
    }

    /// A writable view of a range, which may reach up to [`capacity_bytes`](Self::capacity_bytes).
    ///
    /// # Safety
    /// Two windows that exist at the same time must not share a byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub unsafe fn window(&self, range: Range<u64>) -> Result<VolatileSliceMut<'_>> {
        // SAFETY: the caller keeps windows apart, and a reservation lends out nothing else.
        let window = unsafe { self.memory.window(&range) };
        window.map_err(|_| Error::OutOfRange { range, len_bytes: self.len() })
    }

    /// A range whose filling is over, as a slice: to look at content before all of it is there.
    ///
    /// # Safety
    /// No window may touch the range from now on for as long as the slice lives.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub unsafe fn filled(&self, range: Range<u64>) -> Result<&[u8]> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::OutOfRange { range, len_bytes: self.len() });
        }
        // SAFETY: nothing is written to this range any more, as the caller promises; what is
        // written to beside it is not part of the slice.
        let filled = unsafe { self.memory.slice(&range) };
        filled.map_err(|_| Error::OutOfRange { range, len_bytes: self.len() })
    }

    /// The page sizes that came out so far.
    pub fn page_report(&self) -> PageReport {
        self.extents.report(&self.memory)
    }

    /// Ends the filling: what the CPU wrote becomes visible to devices, and whatever lies behind
    /// the content in its last page is set to zero.
    ///
    /// # Errors
    /// Those of [`populate`](Self::populate) for the last page, [`Error::Kernel`] where a dma-buf
    /// cannot be synchronised.
    pub fn finish(self) -> Result<Buffer> {
        let (content, end) = (self.memory.content_bytes, self.memory.mapped_bytes());
        if content < end {
            self.populate(content..end)?;
            let bracket = DmaBuf::begin(self.memory.dma_heap_buf(), CpuAccess::Write)?;
            // SAFETY: `self` is owned here, so no other window exists.
            let tail = unsafe { self.window(content..end) }?;
            let len_bytes = tail.len();
            let zeroed = copy::zero(&mut Cursor::<Dest>::foreign_buf(tail), len_bytes);
            debug_assert_eq!(zeroed, Ok(len_bytes), "the last page was populated");
            drop(bracket);
        }
        let pages = self.page_report();
        Ok(Buffer::new(self.memory, pages))
    }

    /// Starts CPU access for as long as the guard lives: needed around writing through windows
    /// where the memory is a dma-buf, and free of cost elsewhere.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the dma-buf's exporter refuses.
    pub fn begin_filling(&self) -> Result<Filling<'_>> {
        Ok(Filling { _bracket: DmaBuf::begin(self.memory.dma_heap_buf(), CpuAccess::ReadWrite)? })
    }
}

/// The time during which a [`Reservation`] may be written to. Ends when dropped.
#[derive(Debug)]
#[must_use = "the memory may be written to only while this lives"]
pub struct Filling<'a> {
    _bracket: crate::dma_buf::Bracketed<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_the_content_is_zero() {
        let reservation = Heap::Memfd.reserve(5000).unwrap();
        assert_eq!(reservation.capacity_bytes(), 8192);
        reservation.populate(0..8192).unwrap();
        // SAFETY: the only window.
        unsafe { reservation.window(0..8192) }.unwrap().write(0, &[0xff; 8192]).unwrap();
        let buffer = reservation.finish().unwrap();
        let shared = buffer.share(crate::Sealing::Size).unwrap();
        assert_eq!(shared.as_slice(), None);
        let mut page = [1u8; 4096];
        // SAFETY: reading through the descriptor what the mapping behind the content holds.
        let file = shared.memfd().unwrap();
        assert_eq!(rustix::io::pread(file, &mut page, 4096).unwrap(), 904);
        assert_eq!(page[..904], [0xff; 904]);
    }

    #[test]
    fn ranges_outside_are_refused() {
        let reservation = Heap::Memfd.reserve(4096).unwrap();
        assert!(matches!(reservation.populate(0..4097), Err(Error::OutOfRange { .. })));
        // SAFETY: no window comes of it.
        let window = unsafe { reservation.window(4096..4097) };
        assert!(matches!(window, Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn populating_from_several_threads_counts_each_byte_once() {
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
