//! The memory of a reservation, a buffer or a shared buffer: its descriptor and its mapping.
#![expect(unsafe_code, reason = "makes views and slices of mapped memory")]

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;

use longshore_mem::{Granule, OutOfBounds, VolatileSlice, VolatileSliceMut};
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::{self, Backing, Seals};
use longshore_sys::{dma_heap, huge_pages, memory, page_size_bytes, tmpfs, udmabuf};

use crate::dma_buf::DmaBuf;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::reason::{LengthLimit, Unavailability};

/// The descriptor of the memory.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A memfd, or the unnamed file of [`Heap::Tmpfs`].
    Memfd(OwnedFd),
    DmaHeap(DmaBuf),
    /// The memory has no descriptor.
    Anonymous,
}

/// Mapped memory and its descriptor. In a finished buffer, the bytes from `content_bytes` to the
/// end of the last page are zero.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Never [`Heap::Auto`].
    pub(crate) heap: Heap,
    /// `true` if the heap was chosen for [`Heap::Auto`], instead of being requested by name.
    pub(crate) chosen: bool,
    pub(crate) mapping: Mapping,
    pub(crate) origin: Origin,
    /// The requested length.
    pub(crate) content_bytes: u64,
    /// The length of the file: the same, or rounded up to the unit of the heap.
    pub(crate) file_bytes: u64,
}

impl Memory {
    pub(crate) fn take(heap: &Heap, content_bytes: u64) -> Result<Self> {
        match heap {
            Heap::Auto => Self::take_best(content_bytes),
            Heap::Memfd => {
                let pool = huge_pages::pool_2m().unwrap_or_default();
                let pages = content_bytes / Granule::SIZE_2M.bytes();
                let fits = Granule::SIZE_2M.is_aligned(content_bytes)
                    && pages > 0
                    && pages <= pool.available_pages;
                if fits && let Ok(memory) = Self::of_memfd(heap, content_bytes, Backing::Hugetlb2M)
                {
                    return Ok(memory);
                }
                Self::of_memfd(heap, content_bytes, Backing::Shmem)
            }
            Heap::MemfdBasePages => Self::of_memfd(heap, content_bytes, Backing::Shmem),
            Heap::Hugetlb => Self::of_memfd(heap, content_bytes, Backing::Hugetlb2M),
            Heap::Udmabuf => {
                require_udmabuf(content_bytes)?;
                Self::of_memfd(heap, content_bytes, Backing::Shmem)
            }
            Heap::DmaHeap(name) => Self::of_dma_heap(heap, name, content_bytes),
            Heap::Tmpfs(directory) => Self::of_tmpfs(heap, directory, content_bytes),
            Heap::Anonymous => Self::anonymous(content_bytes),
        }
    }

    fn take_best(content_bytes: u64) -> Result<Self> {
        // A dma-buf cannot be empty.
        if content_bytes > 0 && udmabuf::is_present() && require_udmabuf(content_bytes).is_ok() {
            let memory = Self::of_memfd(&Heap::Udmabuf, content_bytes, Backing::Shmem)?;
            return Ok(Self { chosen: true, ..memory });
        }
        Self::take(&Heap::Memfd, content_bytes)
    }

    fn of_memfd(heap: &Heap, content_bytes: u64, backing: Backing) -> Result<Self> {
        let failed = |operation, source| Error::Kernel {
            heap: heap.clone(),
            operation,
            len_bytes: content_bytes,
            source,
        };
        let unit = match (heap, backing) {
            (_, Backing::Hugetlb2M) => Granule::SIZE_2M,
            (Heap::Udmabuf, _) => base_page(),
            _ => byte(),
        };
        let file_bytes = unit
            .checked_round_up(content_bytes)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(|| too_long(content_bytes, LengthLimit::File))?;
        if let Some(limit) = memory::file_size_limit().filter(|limit| file_bytes > *limit) {
            return Err(too_long(content_bytes, LengthLimit::FileSize { limit_bytes: limit }));
        }
        let memfd = memfd::create("longshore", backing).map_err(|source| match backing {
            Backing::Hugetlb2M => {
                Error::Unavailable { heap: heap.clone(), reason: Unavailability::NoHugetlb, source }
            }
            Backing::Shmem => failed("memfd_create", source),
        })?;
        memfd::set_len(&memfd, file_bytes).map_err(|source| failed("ftruncate", source))?;
        let size = Seals { shrink: true, grow: true, ..Seals::default() };
        memfd::add_seals(&memfd, size).map_err(|source| failed("sealing the size", source))?;
        let mapping = Mapping::of_file(&memfd, file_bytes, Granule::SIZE_2M, Access::ReadWrite)
            .map_err(|source| match (backing, source.kind()) {
                (Backing::Hugetlb2M, std::io::ErrorKind::OutOfMemory) => Error::Unavailable {
                    heap: heap.clone(),
                    reason: Unavailability::HugetlbPool {
                        needed_pages: file_bytes / Granule::SIZE_2M.bytes(),
                        available_pages: huge_pages::pool_2m().map_or(0, |pool| {
                            pool.available_pages.saturating_add(pool.overcommit_pages)
                        }),
                    },
                    source,
                },
                _ => failed("mmap", source),
            })?;
        // A child process of a fork during the load would keep a writable mapping, and the kernel
        // seals no content while one exists. The child would also share pages that a disk writes to.
        mapping.set_inherited(false).map_err(|source| failed("madvise(MADV_DONTFORK)", source))?;
        let heap = if backing == Backing::Hugetlb2M { &Heap::Hugetlb } else { heap };
        let origin = Origin::Memfd(memfd);
        let heap = heap.clone();
        Ok(Self { heap, chosen: false, mapping, origin, content_bytes, file_bytes })
    }

    fn of_tmpfs(heap: &Heap, directory: &Path, content_bytes: u64) -> Result<Self> {
        let failed = |operation| {
            let heap = heap.clone();
            move |source| Error::Kernel { heap, operation, len_bytes: content_bytes, source }
        };
        if i64::try_from(content_bytes).is_err() {
            return Err(too_long(content_bytes, LengthLimit::File));
        }
        if let Some(limit) = memory::file_size_limit().filter(|limit| content_bytes > *limit) {
            return Err(too_long(content_bytes, LengthLimit::FileSize { limit_bytes: limit }));
        }
        let not_tmpfs = |source| Error::Unavailable {
            heap: heap.clone(),
            reason: Unavailability::NotTmpfs { directory: directory.to_owned() },
            source,
        };
        let file = tmpfs::create_unnamed(directory).map_err(|source| match source.kind() {
            std::io::ErrorKind::Unsupported => not_tmpfs(source),
            std::io::ErrorKind::StorageFull => tmpfs_full(directory, content_bytes, None, source),
            _ => failed("open(O_TMPFILE)")(source),
        })?;
        if !tmpfs::contains(&file).map_err(failed("fstatfs"))? {
            return Err(not_tmpfs(std::io::ErrorKind::Unsupported.into()));
        }
        let room = tmpfs::room(&file).map_err(failed("fstatvfs"))?;
        if let Some(free_bytes) = room.free_bytes.filter(|free| content_bytes > *free) {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(tmpfs_full(directory, content_bytes, Some(free_bytes), source));
        }
        memfd::set_len(&file, content_bytes).map_err(failed("ftruncate"))?;
        let mapping = Mapping::of_file(&file, content_bytes, Granule::SIZE_2M, Access::ReadWrite)
            .map_err(failed("mmap"))?;
        let (heap, origin) = (heap.clone(), Origin::Memfd(file));
        Ok(Self { heap, chosen: false, mapping, origin, content_bytes, file_bytes: content_bytes })
    }

    fn of_dma_heap(heap: &Heap, name: &str, content_bytes: u64) -> Result<Self> {
        // The kernel refuses a length of zero, so an empty buffer has one page, none of which is
        // content.
        let file_bytes = base_page()
            .checked_round_up(content_bytes.max(1))
            .ok_or_else(|| too_long(content_bytes, LengthLimit::File))?;
        // If memory is short, the kernel kills the caller instead of returning an error, so check
        // first.
        let available = memory::available().machine_bytes.unwrap_or(u64::MAX);
        if name == "system" && file_bytes > available {
            return Err(Error::OutOfMemory {
                heap: heap.clone(),
                range: 0..content_bytes,
                len_bytes: content_bytes,
                source: std::io::ErrorKind::OutOfMemory.into(),
            });
        }
        let fd = dma_heap::allocate(name, file_bytes).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                Error::NoSuchHeap { name: name.to_owned(), available: dma_heap::names() }
            }
            std::io::ErrorKind::PermissionDenied => Error::Unavailable {
                heap: heap.clone(),
                reason: Unavailability::DmaHeapDenied {
                    path: Path::new(dma_heap::DIRECTORY).join(name),
                },
                source,
            },
            std::io::ErrorKind::OutOfMemory => Error::OutOfMemory {
                heap: heap.clone(),
                range: 0..content_bytes,
                len_bytes: content_bytes,
                source,
            },
            _ => Error::Kernel {
                heap: heap.clone(),
                operation: "DMA_HEAP_IOCTL_ALLOC",
                len_bytes: content_bytes,
                source,
            },
        })?;
        let dma_buf = DmaBuf::new(fd, heap.clone(), file_bytes);
        let mapping = Mapping::of_file(&dma_buf, file_bytes, base_page(), Access::ReadWrite)
            .map_err(|source| Error::Kernel {
                heap: heap.clone(),
                operation: "mmap",
                len_bytes: content_bytes,
                source,
            })?;
        let origin = Origin::DmaHeap(dma_buf);
        let heap = heap.clone();
        Ok(Self { heap, chosen: false, mapping, origin, content_bytes, file_bytes })
    }

    fn anonymous(content_bytes: u64) -> Result<Self> {
        let heap = Heap::Anonymous;
        let mapping = match Mapping::anonymous(content_bytes, Granule::SIZE_2M) {
            Ok(mapping) => mapping,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(too_long(content_bytes, LengthLimit::AddressSpace));
            }
            Err(source) => {
                let (operation, len_bytes) = ("mmap", content_bytes);
                return Err(Error::Kernel { heap, operation, len_bytes, source });
            }
        };
        let (origin, file_bytes) = (Origin::Anonymous, content_bytes);
        Ok(Self { heap, chosen: false, mapping, origin, content_bytes, file_bytes })
    }

    pub(crate) fn memfd(&self) -> Option<&OwnedFd> {
        match &self.origin {
            Origin::Memfd(memfd) => Some(memfd),
            Origin::DmaHeap(_) | Origin::Anonymous => None,
        }
    }

    pub(crate) fn dma_heap_buf(&self) -> Option<&DmaBuf> {
        match &self.origin {
            Origin::Memfd(_) | Origin::Anonymous => None,
            Origin::DmaHeap(dma_buf) => Some(dma_buf),
        }
    }

    /// Returns the length of the content and of the bytes behind it up to the end of its last page.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        // A length that could be mapped can be rounded up.
        base_page().checked_round_up(self.file_bytes).unwrap_or(self.file_bytes)
    }

    #[inline]
    pub(crate) fn host(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.mapping.start(), as_len(self.content_bytes))
    }

    pub(crate) fn view(&self) -> VolatileSlice<'_> {
        // SAFETY: the mapping is readable as long as `self` is borrowed.
        unsafe { VolatileSlice::from_raw_parts(self.mapping.start(), as_len(self.content_bytes)) }
    }

    /// Returns a view of a range that may reach to the end of the last page, for system calls about
    /// its pages. There are no bytes to read behind the content.
    ///
    /// # Errors
    /// [`OutOfBounds`] if the range is not inside.
    pub(crate) fn pages(
        &self,
        bytes: &Range<u64>,
    ) -> std::result::Result<VolatileSlice<'_>, OutOfBounds> {
        // SAFETY: the mapping consists of whole pages and lives as long as `self` is borrowed.
        let whole = unsafe {
            VolatileSlice::from_raw_parts(self.mapping.start(), as_len(self.mapped_bytes()))
        };
        whole.subslice(as_len(bytes.start), as_len(bytes.end.saturating_sub(bytes.start)))
    }

    /// Returns a writable view of a range, which may reach to the end of the last page.
    ///
    /// # Safety
    /// While it lives, there must be no other view or slice of the same bytes that is written to,
    /// or that relies on them not to change.
    pub(crate) unsafe fn window(
        &self,
        bytes: &Range<u64>,
    ) -> std::result::Result<VolatileSliceMut<'_>, OutOfBounds> {
        let pages = self.pages(bytes)?;
        // SAFETY: the mapping is readable and writable as long as `self` is borrowed; the rest is
        // the caller's promise.
        Ok(unsafe { VolatileSliceMut::from_raw_parts(pages.start(), pages.len()) })
    }

    /// # Safety
    /// The content must not change while the slice lives: either the owner has not shared it, or it
    /// is sealed.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped and readable as long as `self` is borrowed; the rest is the caller's
        // promise.
        unsafe { self.host().as_ref() }
    }

    /// Returns a range as a slice.
    ///
    /// # Safety
    /// The range must not change while the slice lives.
    pub(crate) unsafe fn slice(
        &self,
        bytes: &Range<u64>,
    ) -> std::result::Result<&[u8], OutOfBounds> {
        let pages = self.pages(bytes)?;
        // SAFETY: mapped and readable as long as `self` is borrowed; the rest is the caller's
        // promise.
        Ok(unsafe { std::slice::from_raw_parts(pages.as_ptr(), pages.len()) })
    }

    /// Returns a pointer to the content. Code that dereferences it must follow the aliasing rules.
    pub(crate) fn content_ptr(&self) -> *mut [u8] {
        self.host().as_ptr()
    }
}

/// Converts a length to `usize`. Longshore runs only on 64-bit machines, so every length fits.
#[inline]
fn as_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

pub(crate) fn base_page() -> Granule {
    Granule::new(page_size_bytes() as u64).unwrap_or(Granule::SIZE_4K)
}

fn byte() -> Granule {
    Granule::from_value(1).unwrap_or(Granule::SIZE_4K)
}

pub(crate) fn tmpfs_full(
    directory: &Path,
    len_bytes: u64,
    free_bytes: Option<u64>,
    source: std::io::Error,
) -> Error {
    Error::TmpfsFull { directory: directory.to_owned(), len_bytes, free_bytes, source }
}

fn too_long(len_bytes: u64, limit: LengthLimit) -> Error {
    Error::TooLong { len_bytes, limit }
}

/// Checks, before the memory is filled, that the dma-buf can be created afterwards.
fn require_udmabuf(content_bytes: u64) -> Result<()> {
    let unavailable = |reason, source| Error::Unavailable { heap: Heap::Udmabuf, reason, source };
    udmabuf::check_access().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => unavailable(Unavailability::NoUdmabuf, source),
        _ => unavailable(Unavailability::UdmabufDenied, source),
    })?;
    if content_bytes == 0 {
        return Err(unavailable(
            Unavailability::EmptyDmaBuf,
            std::io::ErrorKind::InvalidInput.into(),
        ));
    }
    let limit_bytes = udmabuf::size_limit_bytes()
        .map_err(|source| unavailable(Unavailability::UdmabufLimitUnknown, source))?;
    if content_bytes <= limit_bytes {
        return Ok(());
    }
    udmabuf::raise_size_limit(content_bytes).map_err(|source| Error::AboveUdmabufLimit {
        len_bytes: content_bytes,
        limit_bytes,
        source,
    })
}
