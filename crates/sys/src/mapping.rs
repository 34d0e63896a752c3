//! `mmap(2)` of a shared file, at an address where huge pages fit.
#![expect(unsafe_code, reason = "maps and unmaps memory")]

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use longshore_mem::{FileOffset, Granule};
use rustix::mm::{MapFlags, ProtFlags};

/// Whether a mapping may be written through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store is a SIGSEGV.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// A shared mapping of a file, or of a part of it, unmapped on drop.
///
/// The addresses reserved are rounded up to `alignment`, so that the last, partial huge page fits
/// too; memory past the file's last page must not be touched (SIGBUS). A mapping of no bytes holds
/// no memory.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
    reserved_bytes: usize,
}

// SAFETY: the mapping is owned memory; which thread unmaps it does not matter.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` only tells where it is; whoever dereferences answers for that.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len_bytes` of `file` at a multiple of `alignment`, a page size or more.
    ///
    /// # Errors
    /// `ENOMEM` where the address space or a resource limit is exhausted, `EPERM` where a seal
    /// forbids writing, `EACCES` where the descriptor's mode does, `EINVAL` for a length that does
    /// not fit an address.
    pub fn of_file(
        file: impl AsFd,
        len_bytes: u64,
        alignment: Granule,
        access: Access,
    ) -> io::Result<Self> {
        Self::of_file_part(file, FileOffset::new(0), len_bytes, alignment, access)
    }

    /// Maps `len_bytes` of `file` from `offset` on, a multiple of the page size, at a multiple of
    /// `alignment`.
    ///
    /// # Errors
    /// As [`of_file`](Self::of_file); `EINVAL` also for an offset inside of a page.
    pub fn of_file_part(
        file: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        alignment: Granule,
        access: Access,
    ) -> io::Result<Self> {
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        let align_bytes = usize::try_from(alignment.bytes()).map_err(|_| too_long())?;
        let reserved_bytes = alignment
            .checked_round_up(len_bytes)
            .and_then(|rounded| usize::try_from(rounded).ok())
            .ok_or_else(too_long)?;
        let len_bytes = usize::try_from(len_bytes).map_err(|_| too_long())?;
        if len_bytes == 0 {
            let start = NonNull::without_provenance(alignment_as_nonzero(align_bytes));
            return Ok(Self { start, len_bytes, reserved_bytes: 0 });
        }
        let span_bytes = reserved_bytes.checked_add(align_bytes).ok_or_else(too_long)?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing.
        let span = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                span_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // From here on the reservation is released by dropping `whole`, whatever fails.
        let mut whole = Self { start: non_null(span)?, len_bytes: 0, reserved_bytes: span_bytes };
        let skip_bytes = span.addr().wrapping_neg() & (align_bytes - 1);
        whole.trim(skip_bytes, reserved_bytes)?;
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: MAP_FIXED replaces exactly the reservation that `whole` owns.
        let placed = unsafe {
            rustix::mm::mmap(
                whole.start.as_ptr().cast(),
                reserved_bytes,
                prot,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                offset.raw(),
            )
        }
        .inspect_err(|_| {
            // The kernel may have removed the reservation before it failed, and another thread may
            // have mapped something there since: better to lose addresses than to unmap that.
            whole.reserved_bytes = 0;
        })?;
        whole.start = non_null(placed)?;
        whole.len_bytes = len_bytes;
        Ok(whole)
    }

    /// Where the mapping begins. For an empty mapping, a dangling address that is aligned.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length asked for, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Gives back the first `skip_bytes` and all but `keep_bytes` after them.
    fn trim(&mut self, skip_bytes: usize, keep_bytes: usize) -> io::Result<()> {
        let tail_bytes = self.reserved_bytes - skip_bytes - keep_bytes;
        if skip_bytes > 0 {
            // SAFETY: the head belongs to this mapping, and nothing has been handed out of it.
            unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), skip_bytes) }?;
            // SAFETY: the head is not longer than the mapping.
            self.start = unsafe { self.start.add(skip_bytes) };
            self.reserved_bytes -= skip_bytes;
        }
        if tail_bytes > 0 {
            // SAFETY: `keep_bytes` is not above what is left of the mapping.
            let tail = unsafe { self.start.add(keep_bytes) };
            // SAFETY: the tail belongs to this mapping, and nothing has been handed out of it.
            unsafe { rustix::mm::munmap(tail.as_ptr().cast(), tail_bytes) }?;
            self.reserved_bytes = keep_bytes;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.reserved_bytes > 0 {
            // SAFETY: the range is this mapping's own, and every view of it borrowed from it.
            let unmapped =
                unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.reserved_bytes) };
            debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
        }
    }
}

fn non_null(address: *mut c_void) -> io::Result<NonNull<u8>> {
    // mmap never places anything at zero unless it is asked to.
    NonNull::new(address.cast()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn alignment_as_nonzero(align_bytes: usize) -> std::num::NonZeroUsize {
    std::num::NonZeroUsize::new(align_bytes).unwrap_or(std::num::NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, Backing};

    #[test]
    fn a_mapping_is_aligned_and_reaches_the_file() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 5000).unwrap();
        let mapping = Mapping::of_file(&memfd, 5000, Granule::SIZE_2M, Access::ReadWrite).unwrap();
        assert_eq!(mapping.start().addr().get() % (2 << 20), 0);
        assert_eq!(mapping.len_bytes(), 5000);
        // SAFETY: byte 4999 is inside the mapping.
        let last = unsafe { mapping.start().add(4999) };
        // SAFETY: and it is inside the file.
        unsafe { last.write_volatile(42) };
        let mut byte = [0];
        rustix::io::pread(&memfd, &mut byte, 4999).unwrap();
        assert_eq!(byte, [42]);
    }

    #[test]
    fn a_part_begins_at_its_offset() {
        let page_bytes = crate::page_size_bytes() as u64;
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 3 * page_bytes).unwrap();
        rustix::io::pwrite(&memfd, b"part", 2 * page_bytes).unwrap();
        let granule = Granule::new(page_bytes).unwrap();
        let of = |offset| {
            Mapping::of_file_part(&memfd, FileOffset::new(offset), 4, granule, Access::Read)
        };
        let mapping = of(2 * page_bytes).unwrap();
        // SAFETY: the first of four bytes, inside the mapping and the file.
        let first = unsafe { mapping.start().read_volatile() };
        assert_eq!((first, mapping.len_bytes()), (b'p', 4));
        assert_eq!(of(1).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn an_empty_mapping_maps_nothing() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        let mapping = Mapping::of_file(&memfd, 0, Granule::SIZE_2M, Access::ReadWrite).unwrap();
        assert_eq!(mapping.len_bytes(), 0);
        assert_eq!(mapping.start().addr().get() % (2 << 20), 0);
    }

    #[test]
    fn a_length_past_the_address_space_is_refused() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        let huge = Mapping::of_file(&memfd, u64::MAX, Granule::SIZE_2M, Access::Read);
        assert_eq!(huge.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let vast = Mapping::of_file(&memfd, 1 << 62, Granule::SIZE_2M, Access::Read);
        assert_eq!(vast.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
