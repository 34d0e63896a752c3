//! A complete buffer with one owner.
#![expect(unsafe_code, reason = "lends slices of memory that no other process can reach")]

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;

use longshore_mem::{DmaMemory, FileOffset};
use longshore_sys::dma_buf::CpuAccess;
use longshore_sys::{directory, tmpfs};

use crate::dma_buf::{CpuAccessGuard, DmaBuf};
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::memory::{Memory, Origin};
use crate::page_report::PageReport;
use crate::private::PrivateBuffer;
use crate::shared::{Sealing, SharedBuffer};

/// A buffer whose content is complete and which no other process or device can reach yet.
///
/// Its descriptor is only available through [`DmaMemory::file`], whose caller promises what the
/// driver of a device must. So the content may be borrowed as slices, through guards that enclose
/// the CPU access if the memory is a dma-buf.
///
/// A child of `fork(2)` does not inherit the memory of a memfd, and an access to it there ends the
/// child. It inherits that of a [`SharedBuffer`] and of a [`PrivateBuffer`].
#[derive(Debug)]
pub struct Buffer {
    /// Boxed, so that moving a buffer is cheap: into a mapping, and back.
    held: Box<Held>,
}

#[derive(Debug)]
struct Held {
    memory: Memory,
    pages: PageReport,
}

/// The content of a buffer, for reading.
#[derive(Debug)]
pub struct ReadAccess<'a> {
    content: &'a [u8],
    _guard: CpuAccessGuard<'a>,
}

/// The content of a buffer, for reading and writing.
#[derive(Debug)]
pub struct WriteAccess<'a> {
    content: &'a mut [u8],
    _guard: CpuAccessGuard<'a>,
}

impl Buffer {
    pub(crate) fn new(memory: Memory, pages: PageReport) -> Self {
        Self { held: Box::new(Held { memory, pages }) }
    }

    /// Returns the heap that the memory comes from; never [`Heap::Auto`].
    pub fn heap(&self) -> &Heap {
        &self.held.memory.heap
    }

    /// Returns the length of the content in bytes.
    pub fn len(&self) -> u64 {
        self.held.memory.content_bytes
    }

    /// Returns `true` if the content is empty.
    pub fn is_empty(&self) -> bool {
        self.held.memory.content_bytes == 0
    }

    /// Returns the length of the file behind the content: the same, or more if the heap uses whole
    /// pages (udmabuf, dma-heap: base pages; hugetlb: 2 MiB). The bytes behind the content are
    /// zero.
    pub fn file_len_bytes(&self) -> u64 {
        self.held.memory.file_bytes
    }

    /// Returns the page sizes of the memory.
    pub fn page_report(&self) -> PageReport {
        self.held.pages
    }

    /// Borrows the content for reading.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] if the memory is a dma-buf whose exporter refuses CPU access.
    pub fn read(&self) -> Result<ReadAccess<'_>> {
        let guard = DmaBuf::begin(self.held.memory.dma_heap_buf(), CpuAccess::Read)?;
        // SAFETY: no other process or device has the memory, and `write` needs an exclusive borrow.
        let content = unsafe { self.held.memory.as_slice() };
        Ok(ReadAccess { content, _guard: guard })
    }

    /// Borrows the content for reading and writing.
    ///
    /// # Errors
    /// As [`Buffer::read`].
    pub fn write(&mut self) -> Result<WriteAccess<'_>> {
        let guard = DmaBuf::begin(self.held.memory.dma_heap_buf(), CpuAccess::ReadWrite)?;
        // SAFETY: mapped and writable, and `self` is borrowed exclusively while the slice lives.
        let content = unsafe { &mut *self.held.memory.content_ptr() };
        Ok(WriteAccess { content, _guard: guard })
    }

    /// Gives the file of [`Heap::Tmpfs`] the permission bits `mode` and then the name `name` in `directory`,
    /// which must be in the same tmpfs. The file appears complete, and an existing name is not replaced. The
    /// mapping and the descriptor of this process are closed.
    ///
    /// # Errors
    /// [`crate::Error::Link`] if the heap is another one, if `name` is not one name, if it exists, or
    /// if the kernel refuses the mode. Then the memory is freed.
    pub fn link(self, directory: BorrowedFd<'_>, name: &Path, mode: u32) -> Result<()> {
        let Held { memory, .. } = *self.held;
        let Memory { heap, mapping, origin, .. } = memory;
        // Other processes can change a file that has a name, so no slice of it may exist.
        drop(mapping);
        let is_one_name = name.file_name() == Some(name.as_os_str());
        let linked = match &origin {
            Origin::Memfd(file) if matches!(heap, Heap::Tmpfs(_)) && is_one_name => {
                directory::set_mode(file, mode).and_then(|()| tmpfs::link(file, directory, name))
            }
            _ if is_one_name => Err(std::io::ErrorKind::Unsupported.into()),
            _ => Err(std::io::ErrorKind::InvalidInput.into()),
        };
        linked.map_err(|source| Error::Link { heap, name: name.to_owned(), source })
    }

    /// Gives the memory descriptors for devices and other processes, with the seals of `sealing`.
    /// From then on others may change the content, unless it is sealed.
    ///
    /// # Errors
    /// [`crate::Error::CannotShare`] for [`Heap::Tmpfs`] and [`Heap::Anonymous`],
    /// [`crate::Error::CannotSealContent`] for [`Sealing::Content`] if the heap does not support it,
    /// [`crate::Error::Kernel`] if the kernel refuses a seal or the dma-buf. In each case the memory is
    /// freed.
    pub fn share(self, sealing: Sealing) -> Result<SharedBuffer> {
        let Held { memory, pages } = *self.held;
        SharedBuffer::new(memory, pages, sealing)
    }

    /// Closes the descriptor of the memory and keeps the mapping, for memory that only this process and
    /// its children use. Returns the buffer unchanged if its heap is not one of memfds that can be sealed
    /// ([`Heap::seals_content`]).
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] if a child process cannot be given the mapping.
    pub fn into_private(self) -> Result<std::result::Result<PrivateBuffer, Self>> {
        if !self.heap().seals_content() {
            return Ok(Err(self));
        }
        let Held { memory, pages } = *self.held;
        PrivateBuffer::new(memory, pages).map(Ok)
    }
}

impl Deref for ReadAccess<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.content
    }
}

impl Deref for WriteAccess<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.content
    }
}

impl DerefMut for WriteAccess<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.content
    }
}

// SAFETY: the mapping belongs to the buffer until it is dropped, and keeps its address when the
// buffer moves. Slices are lent only under a borrow of the buffer. The memfd is the mapped one,
// from its start.
unsafe impl DmaMemory for Buffer {
    #[inline]
    fn host(&self) -> NonNull<[u8]> {
        self.held.memory.host()
    }

    #[inline]
    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        self.held.memory.memfd().map(|memfd| (memfd.as_fd(), FileOffset::new(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_keeps_its_content() {
        for len in [0usize, 1, 4095, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1] {
            let mut buffer = Heap::Memfd.allocate(len as u64).unwrap();
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 0), "new memory is zero");
            for (at, byte) in buffer.write().unwrap().iter_mut().enumerate() {
                *byte = at as u8;
            }
            let content = buffer.read().unwrap();
            assert_eq!(content.len(), len);
            assert!(content.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        }
    }

    #[test]
    fn the_base_page_heap_reports_base_pages() {
        let buffer = Heap::MemfdBasePages.allocate(4 << 20).unwrap();
        let report = buffer.page_report();
        assert_eq!((report.base_bytes, report.total_bytes()), (4 << 20, 4 << 20));
    }

    #[test]
    fn the_file_holds_the_content() {
        let mut buffer = Heap::Memfd.allocate(10_000).unwrap();
        buffer.write().unwrap()[9_999] = 7;
        // SAFETY: the descriptor is only read, and no slice is borrowed.
        let (file, offset) = unsafe { buffer.file() }.unwrap();
        let mut byte = [0];
        rustix::io::pread(file, &mut byte, offset.raw() + 9_999).unwrap();
        assert_eq!(byte, [7]);
        assert_eq!(buffer.host().len(), 10_000);
    }

    #[test]
    fn a_missing_heap_or_an_impossible_length_is_an_error() {
        let missing = Heap::DmaHeap("no-such-heap".into()).allocate(4096).unwrap_err();
        assert!(matches!(missing, Error::NoSuchHeap { .. }), "{missing}");
        let vast = Heap::Memfd.allocate(u64::MAX).unwrap_err();
        assert!(matches!(vast, Error::TooLong { .. }), "{vast}");
    }

    /// A directory in a tmpfs.
    fn in_tmpfs() -> Option<tempfile::TempDir> {
        let dir = tempfile::tempdir_in("/dev/shm").ok()?;
        let opened = std::fs::File::open(dir.path()).unwrap();
        tmpfs::contains(&opened).unwrap().then_some(dir)
    }

    #[test]
    fn a_file_in_a_tmpfs_gets_its_name_when_it_is_complete() {
        use std::os::unix::fs::PermissionsExt;

        let Some(dir) = in_tmpfs() else { return println!("SKIPPED: /dev/shm is not a tmpfs") };
        let folder = std::fs::File::open(dir.path()).unwrap();
        for len in [0_usize, 1, 4097, (2 << 20) + 1] {
            let name = format!("model-{len}");
            let mut buffer = Heap::Tmpfs(dir.path().into()).allocate(len as u64).unwrap();
            for (at, byte) in buffer.write().unwrap().iter_mut().enumerate() {
                *byte = at as u8;
            }
            assert!(!dir.path().join(&name).exists());
            buffer.link(folder.as_fd(), Path::new(&name), 0o440).unwrap();
            let path = dir.path().join(&name);
            let content = std::fs::read(&path).unwrap();
            assert_eq!(content.len(), len);
            assert!(content.iter().enumerate().all(|(at, byte)| *byte == at as u8));
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o440);
        }
        let linked = |heap: Heap, name: &str| {
            let buffer = heap.allocate(1).unwrap();
            let failed = buffer.link(folder.as_fd(), Path::new(name), 0o440).unwrap_err();
            let Error::Link { source, .. } = failed else { panic!("{failed}") };
            source.kind()
        };
        let tmpfs = Heap::Tmpfs(dir.path().into());
        assert_eq!(linked(tmpfs.clone(), "model-1"), std::io::ErrorKind::AlreadyExists);
        assert_eq!(linked(tmpfs.clone(), "../model"), std::io::ErrorKind::InvalidInput);
        assert_eq!(linked(Heap::Memfd, "model"), std::io::ErrorKind::Unsupported);
        let refused = tmpfs.allocate(1).unwrap().share(Sealing::Size).unwrap_err();
        assert!(matches!(refused, Error::CannotShare { .. }), "{refused}");
    }

    #[test]
    fn anonymous_memory_has_no_descriptor() {
        let len_bytes = 5 << 20;
        let mut buffer = Heap::Anonymous.allocate(len_bytes).unwrap();
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 0));
        buffer.write().unwrap().fill(7);
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 7));
        assert_eq!(buffer.page_report().total_bytes(), len_bytes);
        println!("pages: {:?}", buffer.page_report());
        // SAFETY: the call returns no descriptor.
        assert!(unsafe { buffer.file() }.is_none());
        let refused = buffer.share(Sealing::Size).unwrap_err();
        assert!(matches!(refused, Error::CannotShare { .. }), "{refused}");
    }

    #[test]
    fn a_directory_that_is_not_in_a_tmpfs_is_an_error() {
        let refused = Heap::Tmpfs("/proc".into()).allocate(1).unwrap_err();
        assert!(matches!(refused, Error::Unavailable { .. } | Error::Kernel { .. }), "{refused}");
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        if tmpfs::contains(std::fs::File::open(dir.path()).unwrap()).unwrap() {
            return println!("SKIPPED: the sources are in a tmpfs");
        }
        let refused = Heap::Tmpfs(dir.path().into()).allocate(1).unwrap_err();
        assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
    }
}
