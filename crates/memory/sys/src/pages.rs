//! Making a mapping's pages exist, and asking how large they came out.
//!
//! Touching one byte of a shared-memory mapping makes the kernel allocate and zero the folio it
//! lies in, of whatever size the settings allow there; `mincore(2)` then tells how much became
//! resident, which is the folio's size. That needs no privilege and trusts no setting.
#![expect(unsafe_code, reason = "asks the kernel about memory by address")]

use std::io;

use longshore_mem::VolatileSlice;
use rustix::mm::Advice;

use crate::{page_size_bytes, retry_interrupted};

/// Asks for transparent huge pages in a range (`MADV_HUGEPAGE`).
///
/// For shared memory it has an effect only where `shmem_enabled` is `advise` or more.
///
/// # Errors
/// `EINVAL` where the kernel was built without them.
pub fn advise_huge(memory: VolatileSlice<'_>) -> io::Result<()> {
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: the advice changes no content, and the view is valid for its whole length.
    Ok(unsafe { rustix::mm::madvise(start, memory.len(), Advice::LinuxHugepage) }?)
}

/// Asks for base pages only in a range (`MADV_NOHUGEPAGE`).
///
/// # Errors
/// `EINVAL` where the kernel was built without huge pages.
pub fn advise_base(memory: VolatileSlice<'_>) -> io::Result<()> {
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: the advice changes no content, and the view is valid for its whole length.
    Ok(unsafe { rustix::mm::madvise(start, memory.len(), Advice::LinuxNoHugepage) }?)
}

/// Turns the base pages of a range into huge pages now (`MADV_COLLAPSE`, Linux 6.1), whatever the
/// settings say. The range must hold at least one page that exists in each 2 MiB.
///
/// # Errors
/// `EINVAL` where nothing exists there or the kernel lacks it, `ENOMEM` or `EAGAIN` where no huge
/// page is free.
pub fn collapse(memory: VolatileSlice<'_>) -> io::Result<()> {
    let len_bytes = memory.len();
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: collapsing changes where content lies, not what it is; the view is valid for its
    // whole length.
    match unsafe { libc::madvise(start, len_bytes, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes every page of a range exist and be writable (`MADV_POPULATE_WRITE`, Linux 5.14), keeping
/// what they hold. Unlike touching, it reports the lack of memory as an error.
///
/// # Errors
/// `ENOMEM` or `EFAULT` where memory or the hugetlb pool is exhausted, `EINVAL` where the kernel
/// lacks it.
pub fn populate_write(memory: VolatileSlice<'_>) -> io::Result<()> {
    let len_bytes = memory.len();
    let start: *mut std::ffi::c_void = memory.as_ptr().cast_mut().cast();
    retry_interrupted(|| {
        // SAFETY: populating writes nothing that a reader could tell from before, and the view is
        // valid for its whole length.
        unsafe { rustix::mm::madvise(start, len_bytes, Advice::LinuxPopulateWrite) }?;
        Ok(())
    })
}

/// How many bytes from the start of a range of our own mapping are resident without a gap.
///
/// The range must begin at a page boundary; the count is in whole pages, and of no more than 512.
///
/// # Errors
/// `ENOMEM` where part of the range is not mapped.
pub fn resident_prefix_bytes(memory: VolatileSlice<'_>) -> io::Result<usize> {
    let page_bytes = page_size_bytes();
    // A huge page's worth of answers, on the stack.
    let mut present = [0u8; 512];
    let len_bytes = memory.len().min(present.len() * page_bytes);
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: mincore writes one byte a page into `present`, which holds as many; the memory it
    // asks about is not accessed, and an unmapped part is an error.
    let asked = unsafe { libc::mincore(start, len_bytes, present.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let pages = len_bytes.div_ceil(page_bytes);
    Ok(present[..pages].iter().take_while(|page| **page & 1 == 1).count() * page_bytes)
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
