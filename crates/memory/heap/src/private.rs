//! Memory without a descriptor: of one process, and copy-on-write views of sealed memory.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use longshore_mem::Granule;
use longshore_sys::file::{self, FileSystem};
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd;

use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::memory::Memory;
use crate::page_report::PageReport;

/// A complete buffer whose descriptor was closed, so that it cannot be shared with other programs.
///
/// It uses a mapping, but no descriptor. Children of `fork(2)` share the memory with this process, and
/// see its writes.
#[derive(Debug)]
pub struct PrivateBuffer {
    mapping: Mapping,
    heap: Heap,
    pages: PageReport,
    content_bytes: u64,
}

/// A copy-on-write mapping of sealed memory (`MAP_PRIVATE`).
///
/// Reads use the pages of the sealed memory, in the same page sizes. The first write to a page copies
/// that page, and no other process and no other mapping sees the write. The mapping stays valid when
/// the sealed memory is closed.
#[derive(Debug)]
pub struct CopyOnWrite {
    mapping: Mapping,
}

impl PrivateBuffer {
    pub(crate) fn new(memory: Memory, pages: PageReport) -> Result<Self> {
        let is_memfd = memory.memfd().is_some();
        let Memory { heap, mapping, origin, content_bytes, .. } = memory;
        // Memory of a dma-heap is inherited anyway.
        if is_memfd {
            mapping.set_inherited(true).map_err(|source| Error::Kernel {
                heap: heap.clone(),
                operation: "madvise(MADV_DOFORK)",
                len_bytes: content_bytes,
                source,
            })?;
        }
        drop(origin);
        Ok(Self { mapping, heap, pages, content_bytes })
    }

    /// Returns the heap that the memory comes from; never [`Heap::Auto`].
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Returns the length of the content in bytes.
    pub fn len(&self) -> u64 {
        self.content_bytes
    }

    /// Returns `true` if the content is empty.
    pub fn is_empty(&self) -> bool {
        self.content_bytes == 0
    }

    /// Returns the page sizes of the memory.
    pub fn page_report(&self) -> PageReport {
        self.pages
    }

    /// Returns the content, which is mapped for reading and writing while the buffer lives.
    pub fn host(&self) -> NonNull<[u8]> {
        let len_bytes = self.mapping.len_bytes().min(self.content_bytes as usize);
        NonNull::slice_from_raw_parts(self.mapping.start(), len_bytes)
    }
}

impl CopyOnWrite {
    /// Maps the first `len_bytes` of a memfd whose content and size are sealed.
    ///
    /// # Errors
    /// [`Error::NotSealed`]; [`Error::HugetlbCopyOnWrite`] for memory of the hugetlb pool;
    /// [`Error::OutOfRange`] if the memfd is shorter; [`Error::Kernel`] if a system call fails.
    pub fn new(memfd: impl AsFd, len_bytes: u64) -> Result<Self> {
        let memfd = memfd.as_fd();
        let failed = |operation| {
            move |source| Error::Kernel { heap: Heap::Memfd, operation, len_bytes, source }
        };
        // A file that is no memfd has no seals, and the kernel refuses the call.
        let seals = memfd::seals(memfd).map_err(|_| Error::NotSealed)?;
        if !(seals.write && seals.shrink) {
            return Err(Error::NotSealed);
        }
        if let FileSystem::Hugetlb { .. } = file::file_system(memfd).map_err(failed("fstatfs"))? {
            return Err(Error::HugetlbCopyOnWrite);
        }
        let status = file::status(memfd).map_err(failed("statx"))?;
        let file_bytes = status.version.len_bytes();
        if len_bytes > file_bytes {
            return Err(Error::OutOfRange { range: 0..len_bytes, len_bytes: file_bytes });
        }
        let access = Access::CopyOnWrite;
        let mapping = Mapping::of_file(memfd, len_bytes, Granule::SIZE_2M, access);
        Ok(Self { mapping: mapping.map_err(failed("mmap(MAP_PRIVATE)"))? })
    }

    /// Returns the content, which is mapped for reading and writing while this value lives.
    pub fn host(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.mapping.start(), self.mapping.len_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sealing;

    fn filled(len_bytes: u64) -> crate::Buffer {
        let mut buffer = Heap::Memfd.allocate(len_bytes).unwrap();
        buffer.write().unwrap().fill(0x5a);
        buffer
    }

    #[test]
    #[expect(unsafe_code, reason = "accesses the mapping")]
    fn a_write_changes_neither_the_sealed_memory_nor_another_mapping() {
        let shared = filled(3 << 20).share(Sealing::Content).unwrap();
        let [one, other] =
            [0, 1].map(|_| CopyOnWrite::new(shared.memfd().unwrap(), shared.len()).unwrap());
        // SAFETY: no other code writes to the mapping, and no other reference to it exists.
        let written = unsafe { &mut *one.host().as_ptr() };
        // SAFETY: no code writes to the mapping.
        let kept = unsafe { other.host().as_ref() };
        written[5000] = 1;
        assert_eq!((written[5000], kept[5000], shared.as_slice().unwrap()[5000]), (1, 0x5a, 0x5a));
        // The mapping does not need the descriptor.
        drop(shared);
        assert_eq!(kept[(3 << 20) - 1], 0x5a);
    }

    #[test]
    fn only_sealed_memory_of_enough_length_is_mapped_copy_on_write() {
        let open = filled(4096).share(Sealing::Size).unwrap();
        let refused = CopyOnWrite::new(open.memfd().unwrap(), 4096);
        assert!(matches!(refused, Err(Error::NotSealed)), "{refused:?}");
        let refused = CopyOnWrite::new(std::fs::File::open("/dev/null").unwrap(), 0);
        assert!(matches!(refused, Err(Error::NotSealed)), "{refused:?}");
        let sealed = filled(4096).share(Sealing::Content).unwrap();
        let refused = CopyOnWrite::new(sealed.memfd().unwrap(), 4097);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
        assert_eq!(CopyOnWrite::new(sealed.memfd().unwrap(), 0).unwrap().host().len(), 0);
    }

    #[test]
    fn memory_of_the_hugetlb_pool_is_not_mapped_copy_on_write() {
        match Heap::Hugetlb.allocate(2 << 20) {
            Ok(buffer) => {
                let shared = buffer.share(Sealing::Content).unwrap();
                let refused = CopyOnWrite::new(shared.memfd().unwrap(), shared.len());
                assert!(matches!(refused, Err(Error::HugetlbCopyOnWrite)), "{refused:?}");
            }
            Err(error) => println!("SKIPPED: {error}"),
        }
    }

    #[test]
    #[expect(unsafe_code, reason = "reads the mapping")]
    fn a_private_buffer_keeps_the_content() {
        let private = filled(5000).into_private().unwrap().unwrap();
        assert_eq!((private.len(), private.host().len(), private.is_empty()), (5000, 5000, false));
        assert_eq!(*private.heap(), Heap::Memfd);
        assert!(private.page_report().total_bytes() >= 5000);
        // SAFETY: mapped, and no code writes to it.
        assert_eq!(unsafe { private.host().as_ref() }, [0x5a; 5000]);
    }
}
