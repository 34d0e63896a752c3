//! Prefaulting the pages of a mapping, and finding out how large they are.
//!
//! Touching a byte of a shared-memory mapping makes the kernel allocate and zero a folio, of the size
//! that the settings permit there. `mincore(2)` then reports how much became resident, which is the size
//! of the folio. This needs no privilege, and does not rely on reading the settings.
#![expect(unsafe_code, reason = "passes addresses of memory to the kernel")]

use std::io;

use longshore_mem::VolatileSlice;
use rustix::mm::Advice;

use crate::{page_size_bytes, retry_interrupted};

/// Requests transparent huge pages for a range (`MADV_HUGEPAGE`).
///
/// For shared memory this has an effect only if `shmem_enabled` is `advise` or more.
///
/// # Errors
/// `EINVAL` if the kernel was built without huge pages.
pub fn advise_huge(memory: VolatileSlice<'_>) -> io::Result<()> {
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: the advice changes no content, and the view is valid for its whole length.
    Ok(unsafe { rustix::mm::madvise(start, memory.len(), Advice::LinuxHugepage) }?)
}

/// Requests only base pages for a range (`MADV_NOHUGEPAGE`).
///
/// # Errors
/// `EINVAL` if the kernel was built without huge pages.
pub fn advise_base(memory: VolatileSlice<'_>) -> io::Result<()> {
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: the advice changes no content, and the view is valid for its whole length.
    Ok(unsafe { rustix::mm::madvise(start, memory.len(), Advice::LinuxNoHugepage) }?)
}

/// Collapses the base pages of a range into huge pages at once (`MADV_COLLAPSE`, Linux 6.1), whatever
/// the settings are. Each 2 MiB of the range must have at least one resident page.
///
/// # Errors
/// `EINVAL` if no page is resident there or the kernel does not support it, `ENOMEM` or `EAGAIN` if no
/// huge page is free.
pub fn collapse(memory: VolatileSlice<'_>) -> io::Result<()> {
    let len_bytes = memory.len();
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: collapsing moves the content to other pages without changing it; the view is valid for its
    // whole length.
    match unsafe { libc::madvise(start, len_bytes, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Prefaults every page of a range for writing (`MADV_POPULATE_WRITE`, Linux 5.14), without changing the
/// content. Unlike touching the pages, it returns an error if memory is short.
///
/// # Errors
/// `ENOMEM` or `EFAULT` if memory or the hugetlb pool is exhausted, `EINVAL` if the kernel does not
/// support it.
pub fn populate_write(memory: VolatileSlice<'_>) -> io::Result<()> {
    let len_bytes = memory.len();
    let start: *mut std::ffi::c_void = memory.as_ptr().cast_mut().cast();
    retry_interrupted(|| {
        // SAFETY: populating does not change the content, and the view is valid for its whole length.
        unsafe { rustix::mm::madvise(start, len_bytes, Advice::LinuxPopulateWrite) }?;
        Ok(())
    })
}

/// Returns the pages of a range of private anonymous memory to the kernel (`MADV_DONTNEED`). The next access
/// finds zeros.
///
/// # Safety
/// No slice of the range exists, and its content is not used again.
///
/// # Errors
/// `EINVAL` for memory that is locked or of the hugetlb pool.
pub unsafe fn discard(memory: VolatileSlice<'_>) -> io::Result<()> {
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: the caller's promise, and the view is valid for its whole length.
    Ok(unsafe { rustix::mm::madvise(start, memory.len(), Advice::LinuxDontNeed) }?)
}

/// Returns the number of bytes from the start of a range of this process's memory that are resident
/// without a gap.
///
/// The range must begin at a page boundary. The result is in whole pages, and at most 512 pages.
///
/// # Errors
/// `ENOMEM` if part of the range is not mapped.
pub fn resident_prefix_bytes(memory: VolatileSlice<'_>) -> io::Result<usize> {
    let page_bytes = page_size_bytes();
    // One byte for each base page of a huge page, on the stack.
    let mut present = [0u8; 512];
    let len_bytes = memory.len().min(present.len() * page_bytes);
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: mincore writes one byte for each page into `present`, which has room for them. It does not
    // access the memory, and returns an error for an unmapped part.
    let asked = unsafe { libc::mincore(start, len_bytes, present.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let pages = len_bytes.div_ceil(page_bytes);
    Ok(present[..pages].iter().take_while(|page| **page & 1 == 1).count() * page_bytes)
}

/// Returns `true` if [`populate_write`] failed with `EFAULT`, as it does for a page whose access would
/// raise SIGBUS.
pub fn is_bad_address(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use longshore_mem::Granule;

    use super::*;
    use crate::mapping::{Access, Mapping};
    use crate::memfd::{self, Backing};

    fn map(len_bytes: u64) -> Mapping {
        let memfd = memfd::create("pages-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, len_bytes).unwrap();
        Mapping::of_file(&memfd, len_bytes, Granule::SIZE_2M, Access::ReadWrite).unwrap()
    }

    fn view(mapping: &Mapping) -> VolatileSlice<'_> {
        // SAFETY: the mapping is readable while it is borrowed.
        unsafe { VolatileSlice::from_raw_parts(mapping.start(), mapping.len_bytes()) }
    }

    #[test]
    fn populating_makes_pages_resident() {
        let mapping = map(1 << 20);
        let whole = view(&mapping);
        assert_eq!(resident_prefix_bytes(whole).unwrap(), 0);
        populate_write(whole.subslice(0, page_size_bytes()).unwrap()).unwrap();
        assert!(resident_prefix_bytes(whole).unwrap() >= page_size_bytes());
        populate_write(whole).unwrap();
        assert_eq!(resident_prefix_bytes(whole).unwrap(), 1 << 20);
    }

    #[test]
    fn an_empty_range_cannot_be_collapsed() {
        assert!(collapse(view(&map(2 << 20))).is_err());
    }
}
