//! A buffer that is shared with devices and other processes.
#![expect(unsafe_code, reason = "copies shared memory, and lends sealed memory as a slice")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use longshore_mem::copy::copy_bytes;
use longshore_mem::fault::FaultGuard;
use longshore_mem::{AddrRange, DmaMemory, FileOffset, Granule, SharedDmaMemory, VolatileSlice};
use longshore_sys::dma_buf::CpuAccess;
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::Seals;
use longshore_sys::{file, memfd, udmabuf};

use crate::dma_buf::{CpuAccessGuard, DmaBuf};
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::memory::{Memory, Origin};
use crate::page_report::PageReport;
use crate::reason::LengthLimit;

/// The seals on the file of a shared buffer, which cannot be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sealing {
    /// The size is sealed: the file can neither shrink nor grow, so that no process that maps it
    /// faults past a new end.
    ///
    /// A process that has the descriptor can still punch a hole into the memory. If the kernel then
    /// has no page for the hole, an access to it raises SIGBUS: because the hugetlb pool is empty
    /// ([`Heap::Hugetlb`], and [`Heap::Memfd`] if the pool was large enough), or because memory is
    /// committed (`vm.overcommit_memory=2`). The buffer keeps a [`FaultGuard`] if it has a memfd, so
    /// [`SharedView::read`], cursors and sessions return an error. In other code, such as
    /// [`VolatileSlice::read`] or a reader in another process, the signal kills the process unless
    /// it has a handler of its own. To rule that out, seal the content.
    #[default]
    Size,
    /// The size and the content are sealed: no process can change the content. Udmabuf and
    /// dma-heaps do not support this ([`Heap::seals_content`]).
    Content,
}

/// A complete buffer with descriptors for devices and other processes.
///
/// Others may change its content, so it is accessed through [`SharedBuffer::view`]. It is available
/// as a slice only if it is sealed ([`Sealing::Content`]).
#[derive(Debug)]
pub struct SharedBuffer {
    memory: Memory,
    pages: PageReport,
    sealing: Sealing,
    udmabuf: Option<DmaBuf>,
    /// Exists for memory into which another process can punch a hole.
    _guard: Option<FaultGuard>,
}

/// The descriptors of a [`SharedBuffer`].
///
/// The memfd is exported in addition to a dma-buf: tools can open `/proc/PID/fd/N` of a memfd, and
/// VFIO can map it. Neither is possible with a dma-buf.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Export<'a> {
    /// The memfd, if the memory has one. It is read-only if the content is sealed.
    pub memfd: Option<BorrowedFd<'a>>,
    /// The dma-buf, if there is one.
    pub dma_buf: Option<BorrowedFd<'a>>,
    /// The length of the content in bytes. A dma-buf and some memfds are longer, up to a whole
    /// page.
    pub len_bytes: u64,
}

/// A view of a shared buffer, during which the CPU may access it.
#[derive(Debug)]
pub struct SharedView<'a> {
    bytes: VolatileSlice<'a>,
    heap: &'a Heap,
    _guard: CpuAccessGuard<'a>,
}

impl SharedBuffer {
    pub(crate) fn new(mut memory: Memory, pages: PageReport, sealing: Sealing) -> Result<Self> {
        let heap = memory.heap.clone();
        let len_bytes = memory.content_bytes;
        let failed = |operation| {
            let heap = heap.clone();
            move |source| Error::Kernel { heap, operation, len_bytes, source }
        };
        if sealing == Sealing::Content && !heap.seals_content() {
            return Err(Error::CannotSealContent { heap });
        }
        if matches!(heap, Heap::Tmpfs(_) | Heap::Anonymous) {
            return Err(Error::CannotShare { heap });
        }
        let mut udmabuf = None;
        if let Some(fd) = memory.memfd().filter(|_| heap == Heap::Udmabuf) {
            let range = AddrRange::new(FileOffset::new(0), memory.file_bytes)
                .map_err(|_| Error::TooLong { len_bytes, limit: LengthLimit::AddressSpace })?;
            match udmabuf::create(fd, range) {
                Ok(made) => {
                    udmabuf = Some(DmaBuf::new(made, heap.clone(), memory.file_bytes));
                }
                // The kernel may lack memory for its list of the pages, even below its limit. The
                // dma-buf was not requested by name, so continue without one.
                Err(_) if memory.chosen => memory.heap = Heap::Memfd,
                Err(source) => return Err(failed("UDMABUF_CREATE")(source)),
            }
        }
        let can_be_punched = sealing == Sealing::Size && memory.memfd().is_some();
        let guard = can_be_punched.then(FaultGuard::install).transpose();
        let guard = guard.map_err(failed("installing a handler of SIGBUS"))?;
        if sealing == Sealing::Content {
            memory = seal_content(memory)?;
        } else if memory.memfd().is_some() {
            // The kernel refuses this advice for memory of a dma-heap, which is inherited anyway.
            memory.mapping.set_inherited(true).map_err(failed("madvise(MADV_DOFORK)"))?;
        }
        Ok(Self { memory, pages, sealing, udmabuf, _guard: guard })
    }

    /// Returns the heap that the memory comes from; never [`Heap::Auto`].
    pub fn heap(&self) -> &Heap {
        &self.memory.heap
    }

    /// Returns the length of the content in bytes.
    pub fn len(&self) -> u64 {
        self.memory.content_bytes
    }

    /// Returns `true` if the content is empty.
    pub fn is_empty(&self) -> bool {
        self.memory.content_bytes == 0
    }

    /// Returns the page sizes of the memory.
    pub fn page_report(&self) -> PageReport {
        self.pages
    }

    /// Returns the seals on the file.
    pub fn sealing(&self) -> Sealing {
        self.sealing
    }

    /// Returns the memfd, if the memory is one.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.memfd().map(AsFd::as_fd)
    }

    /// Returns the dma-buf, if there is one.
    pub fn dma_buf(&self) -> Option<&DmaBuf> {
        self.udmabuf.as_ref().or(self.memory.dma_heap_buf())
    }

    /// Returns the descriptors for a device or another process.
    pub fn export(&self) -> Export<'_> {
        Export {
            memfd: self.memfd(),
            dma_buf: self.dma_buf().map(AsFd::as_fd),
            len_bytes: self.len(),
        }
    }

    /// Returns the content as a slice if it is sealed, and so cannot change.
    pub fn as_slice(&self) -> Option<&[u8]> {
        // SAFETY: F_SEAL_WRITE was set, so neither this process nor any other can write to it.
        (self.sealing == Sealing::Content).then(|| unsafe { self.memory.as_slice() })
    }

    /// Returns a view of the content, which others may change at the same time. While the view
    /// lives, the CPU may access the memory, and devices should not access it if it is a dma-buf.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the exporter of the dma-buf refuses CPU access.
    pub fn view(&self) -> Result<SharedView<'_>> {
        let guard = DmaBuf::begin(self.dma_buf(), CpuAccess::Read)?;
        Ok(SharedView { bytes: self.memory.view(), heap: self.heap(), _guard: guard })
    }
}

/// Replaces the writable mapping and descriptor by read-only ones, and seals the content.
fn seal_content(memory: Memory) -> Result<Memory> {
    let Memory { heap, chosen, mapping, origin, content_bytes, file_bytes } = memory;
    let failed = |operation| {
        let heap = heap.clone();
        move |source| Error::Kernel { heap, operation, len_bytes: content_bytes, source }
    };
    let Origin::Memfd(writable) = origin else {
        return Err(Error::CannotSealContent { heap });
    };
    // The seal is refused while a writable mapping exists.
    drop(mapping);
    let seals = Seals { write: true, seal: true, ..Seals::default() };
    memfd::add_seals(&writable, seals).map_err(failed("sealing the content"))?;
    // Before Linux 6.7, a file sealed against writes can be mapped only through a read-only
    // descriptor.
    let read_only: OwnedFd =
        file::reopen_read_only(&writable).map_err(failed("reopening for reading"))?;
    drop(writable);
    let mapping = Mapping::of_file(&read_only, file_bytes, Granule::SIZE_2M, Access::Read)
        .map_err(failed("mapping for reading"))?;
    let origin = Origin::Memfd(read_only);
    Ok(Memory { heap, chosen, mapping, origin, content_bytes, file_bytes })
}

impl SharedView<'_> {
    /// Copies the bytes at `offset` into all of `into`, reading each byte once.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the buffer is too short; then no bytes are copied. [`Error::Lost`]
    /// if another process punched a hole into the memory that the kernel has no page for
    /// ([`Sealing::Size`]); the bytes before the hole are copied.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let len_bytes = self.bytes.len() as u64;
        let from = usize::try_from(offset).ok();
        let from = from.and_then(|from| self.bytes.subslice(from, into.len()).ok());
        let Some(from) = from else {
            let range = offset..offset.saturating_add(into.len() as u64);
            return Err(Error::OutOfRange { range, len_bytes });
        };
        // SAFETY: the view is readable for this length, or faults, for which the buffer keeps a
        // guard. `into` is borrowed exclusively.
        let copied = unsafe { copy_bytes(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        copied.map_err(|source| Error::Lost {
            heap: self.heap.clone(),
            offset: offset + source.done_bytes as u64,
            len_bytes,
            source,
        })
    }

    /// Returns the bytes, for as long as the CPU may access them. If they are lost, [`Self::read`]
    /// returns an error, but [`VolatileSlice::read`] does not return: the signal kills the process.
    pub fn bytes(&self) -> VolatileSlice<'_> {
        self.bytes
    }
}

// SAFETY: the mapping belongs to the buffer until it is dropped, and keeps its address when the
// buffer moves. It is mapped writable unless the content is sealed, and a slice is lent only if it
// is sealed. The memfd is the mapped one, from its start.
unsafe impl DmaMemory for SharedBuffer {
    fn host(&self) -> NonNull<[u8]> {
        self.memory.host()
    }

    fn is_writable(&self) -> bool {
        self.sealing != Sealing::Content
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        self.memfd().map(|memfd| (memfd, FileOffset::new(0)))
    }
}

// SAFETY: a shared borrow lends volatile views, and a slice only if no process can write.
unsafe impl SharedDmaMemory for SharedBuffer {}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn filled(len: usize) -> crate::Buffer {
        let mut buffer = Heap::Memfd.allocate(len as u64).unwrap();
        buffer.write().unwrap().fill(0x5a);
        buffer
    }

    #[test]
    fn a_shared_buffer_cannot_change_its_size() {
        let shared = filled(5000).share(Sealing::Size).unwrap();
        let memfd = shared.memfd().unwrap();
        assert!(memfd::set_len(memfd, 0).is_err());
        assert!(memfd::set_len(memfd, 1 << 20).is_err());
        // The content may still be written, and a view shows the write.
        rustix::io::pwrite(memfd, b"!", 17).unwrap();
        let mut byte = [0];
        let view = shared.view().unwrap();
        view.read(17, &mut byte).unwrap();
        assert_eq!(byte, *b"!");
        let [past, far] = [5000, u64::MAX].map(|offset| view.read(offset, &mut byte).unwrap_err());
        assert!(
            matches!(past, Error::OutOfRange { range, len_bytes: 5000 } if range == (5000..5001))
        );
        assert!(matches!(far, Error::OutOfRange { .. }), "{far}");
        assert_eq!(shared.as_slice(), None);
    }

    #[test]
    fn sealed_content_cannot_be_written_through_a_reopened_file() {
        let shared = filled(5000).share(Sealing::Content).unwrap();
        assert_eq!(shared.as_slice().unwrap(), [0x5a; 5000]);
        let path = format!("/proc/self/fd/{}", shared.memfd().unwrap().as_raw_fd());
        if let Ok(writable) = std::fs::OpenOptions::new().write(true).open(path) {
            assert!(rustix::io::pwrite(&writable, b"no", 0).is_err());
        }
        assert!(memfd::seals(shared.memfd().unwrap()).unwrap().seal);
    }

    #[test]
    fn an_export_has_the_length_of_the_content() {
        let shared = filled(5000).share(Sealing::Size).unwrap();
        let export = shared.export();
        assert_eq!(export.len_bytes, 5000);
        assert!(export.memfd.is_some() && export.dma_buf.is_none());
    }

    #[test]
    fn an_empty_buffer_can_be_shared() {
        for sealing in [Sealing::Size, Sealing::Content] {
            let shared = Heap::Memfd.allocate(0).unwrap().share(sealing).unwrap();
            assert!(shared.is_empty());
            assert_eq!(shared.view().unwrap().bytes().len(), 0);
        }
    }
}
