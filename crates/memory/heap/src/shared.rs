//! A buffer that devices and other processes can be given.
#![expect(unsafe_code, reason = "copies shared memory, and lends out sealed memory as a slice")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use longshore_mem::copy::copy_bytes;
use longshore_mem::fault::FaultGuard;
use longshore_mem::{AddrRange, DmaMemory, FileOffset, Granule, SharedDmaMemory, VolatileSlice};
use longshore_sys::dma_buf::CpuAccess;
use longshore_sys::file::FileSystem;
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::Seals;
use longshore_sys::{file, memfd, udmabuf};

use crate::dma_buf::{Bracketed, DmaBuf};
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::memory::{Memory, Origin};
use crate::page_report::PageReport;
use crate::reason::LengthLimit;

/// What a shared buffer's file is sealed against, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sealing {
    /// Shrinking and growing, so that no process that maps it faults behind a new end.
    ///
    /// A process that was given the descriptor can still punch a hole into memory of the hugetlb pool
    /// ([`Heap::Hugetlb`], and [`Heap::Memfd`] if the pool was large enough). If the pool is empty
    /// then, touching the hole is a SIGBUS. The buffer keeps a [`FaultGuard`] for such memory, so
    /// [`SharedView::read`], cursors and sessions return an error. Other code, such as
    /// [`VolatileSlice::read`] or a reader in another process, is ended by the signal, unless it
    /// has a handler of its own. To rule that out, seal the content.
    #[default]
    Size,
    /// That, and writing: nobody can change the content. Not for udmabuf and dma-heaps
    /// ([`Heap::seals_content`]).
    Content,
}

/// A complete buffer with descriptors for devices and other processes.
///
/// What others may change is seen through [`SharedBuffer::view`]; a slice exists only where the
/// content is sealed ([`Sealing::Content`]).
#[derive(Debug)]
pub struct SharedBuffer {
    memory: Memory,
    pages: PageReport,
    sealing: Sealing,
    udmabuf: Option<DmaBuf>,
    /// For memory into which another process can punch a hole.
    _guard: Option<FaultGuard>,
}

/// The descriptors of a [`SharedBuffer`].
///
/// The memfd is kept beside the dma-buf: tools can open `/proc/PID/fd/N` of a memfd and VFIO can
/// map it, which neither can do with a dma-buf.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Export<'a> {
    /// The file, if the memory has one. Opened for reading only where its content is sealed.
    pub memfd: Option<BorrowedFd<'a>>,
    /// The dma-buf, if there is one.
    pub dma_buf: Option<BorrowedFd<'a>>,
    /// The content's length in bytes; a dma-buf and some memfds are longer, to a whole page.
    pub len_bytes: u64,
}

/// A view of a shared buffer while the CPU may access it.
#[derive(Debug)]
pub struct SharedView<'a> {
    bytes: VolatileSlice<'a>,
    heap: &'a Heap,
    _bracket: Bracketed<'a>,
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
        let mut udmabuf = None;
        if let Some(fd) = memory.memfd().filter(|_| heap == Heap::Udmabuf) {
            let range = AddrRange::new(FileOffset::new(0), memory.file_bytes)
                .map_err(|_| Error::TooLong { len_bytes, limit: LengthLimit::AddressSpace })?;
            match udmabuf::create(fd, range) {
                Ok(made) => {
                    udmabuf = Some(DmaBuf::new(made, heap.clone(), memory.file_bytes));
                }
                // A kernel may lack the memory for its list of the pages, also below its limit.
                // Nobody asked for a dma-buf by name.
                Err(_) if memory.chosen => memory.heap = Heap::Memfd,
                Err(source) => return Err(failed("UDMABUF_CREATE")(source)),
            }
        }
        let guard = match memory.memfd() {
            Some(memfd) if sealing == Sealing::Size => {
                match file::file_system(memfd).map_err(failed("looking at the memfd"))? {
                    FileSystem::Hugetlb { .. } => Some(
                        FaultGuard::install().map_err(failed("installing a handler of SIGBUS"))?,
                    ),
                    _ => None,
                }
            }
            _ => None,
        };
        if sealing == Sealing::Content {
            memory = seal_content(memory)?;
        }
        Ok(Self { memory, pages, sealing, udmabuf, _guard: guard })
    }

    /// The heap the memory comes from; never [`Heap::Auto`].
    pub fn heap(&self) -> &Heap {
        &self.memory.heap
    }

    /// The content's length in bytes.
    pub fn len(&self) -> u64 {
        self.memory.content_bytes
    }

    /// Whether there is no content.
    pub fn is_empty(&self) -> bool {
        self.memory.content_bytes == 0
    }

    /// The page sizes the memory came out in.
    pub fn page_report(&self) -> PageReport {
        self.pages
    }

    /// What the file is sealed against.
    pub fn sealing(&self) -> Sealing {
        self.sealing
    }

    /// The memfd, if the memory is one.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.memfd().map(AsFd::as_fd)
    }

    /// The dma-buf, if there is one.
    pub fn dma_buf(&self) -> Option<&DmaBuf> {
        self.udmabuf.as_ref().or(self.memory.dma_heap_buf())
    }

    /// The descriptors to give to a device or another process.
    pub fn export(&self) -> Export<'_> {
        Export {
            memfd: self.memfd(),
            dma_buf: self.dma_buf().map(AsFd::as_fd),
            len_bytes: self.len(),
        }
    }

    /// The content as a slice, where it is sealed and so cannot change; else `None`.
    pub fn as_slice(&self) -> Option<&[u8]> {
        // SAFETY: F_SEAL_WRITE was set, so neither this process nor any other can write to it.
        (self.sealing == Sealing::Content).then(|| unsafe { self.memory.as_slice() })
    }

    /// A view of the content, which others may change meanwhile. While it lives the CPU may access
    /// the memory; where it is a dma-buf, devices should not.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the dma-buf's exporter refuses CPU access.
    pub fn view(&self) -> Result<SharedView<'_>> {
        let bracket = DmaBuf::begin(self.dma_buf(), CpuAccess::Read)?;
        Ok(SharedView { bytes: self.memory.view(), heap: self.heap(), _bracket: bracket })
    }
}

/// Replaces the writable mapping and descriptor by ones that can only read, and seals the content.
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
    // Before Linux 6.7 a sealed file can be mapped only through a descriptor that cannot write.
    let read_only: OwnedFd =
        file::reopen_read_only(&writable).map_err(failed("reopening for reading"))?;
    drop(writable);
    let mapping = Mapping::of_file(&read_only, file_bytes, Granule::SIZE_2M, Access::Read)
        .map_err(failed("mapping for reading"))?;
    let origin = Origin::Memfd(read_only);
    Ok(Memory { heap, chosen, mapping, origin, content_bytes, file_bytes })
}

impl SharedView<'_> {
    /// Copies the bytes from `offset` on into all of `into`, reading each byte once.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the buffer ends before; nothing is copied then. [`Error::Lost`] if
    /// another process has punched a hole into memory of the hugetlb pool ([`Sealing::Size`]); the
    /// bytes before it are copied.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let len_bytes = self.bytes.len() as u64;
        let from = usize::try_from(offset).ok();
        let from = from.and_then(|from| self.bytes.subslice(from, into.len()).ok());
        let Some(from) = from else {
            let range = offset..offset.saturating_add(into.len() as u64);
            return Err(Error::OutOfRange { range, len_bytes });
        };
        // SAFETY: the view is readable for as many bytes, or faults, for which the buffer keeps a
        // guard. `into` is borrowed exclusively.
        let copied = unsafe { copy_bytes(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        copied.map_err(|source| Error::Lost {
            heap: self.heap.clone(),
            offset: offset + source.done_bytes as u64,
            len_bytes,
            source,
        })
    }

    /// The bytes, for as long as the CPU may access them. [`VolatileSlice::read`] does not return if
    /// they are lost: the process ends. [`Self::read`] returns an error then.
    pub fn bytes(&self) -> VolatileSlice<'_> {
        self.bytes
    }
}

// SAFETY: the mapping is the buffer's own until it is dropped and stays where it is when the
// buffer moves. It is mapped writable unless the content is sealed, and a slice is lent out only if
// it is. The memfd is the one mapped, from its start.
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

// SAFETY: a shared borrow lends out volatile views, and a slice only where nobody can write.
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
        // But it may be written, which a view sees.
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
    fn sealed_content_cannot_be_written_by_anyone_who_reopens_it() {
        let shared = filled(5000).share(Sealing::Content).unwrap();
        assert_eq!(shared.as_slice().unwrap(), [0x5a; 5000]);
        let path = format!("/proc/self/fd/{}", shared.memfd().unwrap().as_raw_fd());
        if let Ok(writable) = std::fs::OpenOptions::new().write(true).open(path) {
            assert!(rustix::io::pwrite(&writable, b"no", 0).is_err());
        }
        assert!(memfd::seals(shared.memfd().unwrap()).unwrap().seal);
    }

    #[test]
    fn an_export_names_the_content_length() {
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
