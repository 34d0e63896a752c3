//! `mmap(2)` of a shared file, at an address where huge pages fit.
#![expect(unsafe_code, reason = "maps and unmaps memory")]

use std::ffi::c_void;
use std::fs;
use std::hint;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use longshore_mem::{FileOffset, Granule};
use rustix::mm::{MapFlags, ProtFlags};

use crate::file::{self, FileSystem};

/// How often a free place is looked for before other threads have taken too many.
const ATTEMPTS_MAX: u32 = 1000;

/// Knuth's multiplier for a linear congruential generator of 64 bits (MMIX).
const PAUSE_FACTOR: u64 = 6_364_136_223_846_793_005;

/// Returns how many mappings this process may have (`vm.max_map_count`), or the kernel's default if that
/// cannot be read.
pub fn count_max() -> u64 {
    const DEFAULT: u64 = 65_530;
    let read = fs::read_to_string("/proc/sys/vm/max_map_count");
    read.ok().and_then(|count| count.trim().parse().ok()).unwrap_or(DEFAULT)
}

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
/// The addresses reserved are rounded out to `alignment`, so that the first and the last, partial
/// huge page fit too; memory past the file's last page must not be touched (SIGBUS). A mapping of no
/// bytes holds no memory.
#[derive(Debug)]
pub struct Mapping {
    /// The first address reserved.
    base: NonNull<u8>,
    reserved_bytes: usize,
    /// Where the bytes asked for begin, from the base.
    skip_bytes: usize,
    len_bytes: usize,
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

    /// Maps `len_bytes` of `file` from `offset` on. The bytes begin as far behind a multiple of
    /// `alignment` as `offset` does, so that huge pages of the file can be huge pages of the mapping.
    ///
    /// A file of the hugetlb pool is mapped in whole pages of its own size, whatever `alignment` says:
    /// the kernel rounds the length up to these.
    ///
    /// # Errors
    /// As [`of_file`](Self::of_file).
    pub fn of_file_part(
        file: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        alignment: Granule,
        access: Access,
    ) -> io::Result<Self> {
        // Asked once: another answer would be another file.
        let file = file.as_fd();
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        let alignment = match file::file_system(file)? {
            FileSystem::Hugetlb { page } => alignment.max(page),
            _ => alignment,
        };
        let align_bytes = usize::try_from(alignment.bytes()).map_err(|_| too_long())?;
        let skip = offset.raw() % alignment.bytes();
        let reserved_bytes = len_bytes
            .checked_add(skip)
            .and_then(|span| usize::try_from(alignment.checked_round_up(span)?).ok())
            .ok_or_else(too_long)?;
        let len_bytes = usize::try_from(len_bytes).map_err(|_| too_long())?;
        if len_bytes == 0 {
            let base = NonNull::without_provenance(alignment_as_nonzero(align_bytes));
            return Ok(Self { base, reserved_bytes: 0, skip_bytes: 0, len_bytes });
        }
        let span_bytes = reserved_bytes.checked_add(align_bytes).ok_or_else(too_long)?;
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let map_at = |at: *mut c_void, flags| {
            // SAFETY: without MAP_FIXED the kernel replaces no other mapping.
            let placed = unsafe {
                let offset = offset.raw() - skip;
                rustix::mm::mmap(at, reserved_bytes, prot, MapFlags::SHARED | flags, file, offset)
            }?;
            // Below the alignment, which fits.
            let skip_bytes = skip as usize;
            io::Result::Ok(Self { base: non_null(placed)?, reserved_bytes, skip_bytes, len_bytes })
        };
        // First wherever the kernel likes: if it refuses the file, no addresses are taken yet.
        let mut mapping = map_at(ptr::null_mut(), MapFlags::empty())?;
        // The addresses of stacks differ between threads.
        let mut pause = (&raw const mapping).addr() as u64;
        for _ in 0..ATTEMPTS_MAX {
            if mapping.base.addr().get().is_multiple_of(align_bytes) {
                return Ok(mapping);
            }
            let place = free_place(span_bytes, align_bytes)?;
            // Linux before 4.17 takes the address for a wish.
            match map_at(place, MapFlags::FIXED_NOREPLACE) {
                Ok(placed) => mapping = placed,
                // Another thread has mapped something there meanwhile. Two threads in this loop can take
                // turns so that each of them finds the other one at its place every time. So a thread
                // waits, for a time that differs between threads and attempts.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    pause = pause.wrapping_mul(PAUSE_FACTOR).wrapping_add(1);
                    (0..pause >> 53).for_each(|_| hint::spin_loop());
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns where the bytes asked for begin. For an empty mapping, a dangling address that is
    /// aligned.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the bytes asked for lie in the mapping. Of an empty one it is no more than zero.
        unsafe { self.base.add(self.skip_bytes) }
    }

    /// Returns how many bytes of addresses the mapping takes.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// The length asked for, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.reserved_bytes > 0 {
            // SAFETY: the range is this mapping's own, and every view of it borrowed from it.
            let _now_or_later = unsafe { unmap(self.base, self.reserved_bytes) };
        }
    }
}

/// Unmaps a range, now or later. The kernel merges mappings that lie side by side in memory and in their
/// file, so that one of them may be in the middle of another. Then unmapping it takes one mapping more,
/// which a process that has as many as it may (`vm.max_map_count`) is refused.
///
/// # Errors
/// `ENOMEM` if the range is unmapped later.
///
/// # Safety
/// The range must be whole pages that are mapped, and nothing may use them any more.
unsafe fn unmap(base: NonNull<u8>, len_bytes: usize) -> io::Result<()> {
    /// The ranges that are unmapped later: after one of a later call.
    static REFUSED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    /// Whether there are any. If not, the lock is not taken.
    static HAS_REFUSED: AtomicBool = AtomicBool::new(false);
    // SAFETY: the caller's promise.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len_bytes) };
    if unmapped.is_err() || HAS_REFUSED.load(Ordering::Relaxed) {
        let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|(address, len_bytes)| {
            let base = ptr::with_exposed_provenance_mut(*address);
            // SAFETY: the promise of the caller that was refused.
            unsafe { rustix::mm::munmap(base, *len_bytes) }.is_err()
        });
        if unmapped.is_err() {
            refused.push((base.as_ptr().expose_provenance(), len_bytes));
        }
        HAS_REFUSED.store(!refused.is_empty(), Ordering::Relaxed);
    }
    Ok(unmapped?)
}

/// Returns an address at a multiple of `align_bytes` where a range fits that is shorter by as much than
/// `span_bytes`. Another thread may map something there.
fn free_place(span_bytes: usize, align_bytes: usize) -> io::Result<*mut c_void> {
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing.
    let span = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            span_bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    // SAFETY: mapped above, and nothing refers to it.
    unsafe { unmap(non_null(span)?, span_bytes) }?;
    Ok(span.map_addr(|address| address.next_multiple_of(align_bytes)))
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
    fn two_threads_do_not_keep_each_other_from_a_place() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 262_834).unwrap();
        let map = || Mapping::of_file(&memfd, 262_834, Granule::SIZE_2M, Access::Read).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..100_000).for_each(|_| drop(map())));
            }
        });
    }

    #[test]
    fn a_part_begins_at_its_offset() {
        let page_bytes = crate::page_size_bytes() as u64;
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 3 * page_bytes).unwrap();
        rustix::io::pwrite(&memfd, b"part", 2 * page_bytes).unwrap();
        let granule = Granule::new(page_bytes).unwrap();
        for (alignment, reserved) in [(granule, page_bytes), (Granule::SIZE_2M, 2 << 20)] {
            let of = |offset| {
                let offset = FileOffset::new(offset);
                Mapping::of_file_part(&memfd, offset, 3, alignment, Access::Read).unwrap()
            };
            for (at, expected) in [(0, b'p'), (1, b'a')] {
                let mapping = of(2 * page_bytes + at);
                // SAFETY: the first of three bytes, inside the mapping and the file.
                let first = unsafe { mapping.start().read_volatile() };
                assert_eq!((first, mapping.len_bytes()), (expected, 3));
                assert_eq!(mapping.reserved_bytes() as u64, reserved);
            }
        }
    }

    #[test]
    fn a_part_far_into_a_file_takes_no_more_addresses_than_its_pages() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 1 << 46).unwrap();
        let offset = FileOffset::new((1 << 46) - 4096);
        let mapped: Vec<_> = (0..8)
            .map(|_| {
                Mapping::of_file_part(&memfd, offset, 4096, Granule::SIZE_2M, Access::ReadWrite)
                    .unwrap()
            })
            .collect();
        assert!(mapped.iter().all(|mapping| mapping.reserved_bytes() == 2 << 20));
        // SAFETY: the last page of the file, mapped.
        unsafe { mapped[0].start().write_volatile(9) };
        // SAFETY: the same page.
        assert_eq!(unsafe { mapped[7].start().read_volatile() }, 9);
    }

    #[test]
    fn a_mapping_that_is_refused_takes_no_addresses() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 1 << 45).unwrap();
        let read_only = file::reopen_read_only(&memfd).unwrap();
        // The addresses of all of them together are more than a process has.
        for _ in 0..8 {
            let refused =
                Mapping::of_file(&read_only, 1 << 45, Granule::SIZE_2M, Access::ReadWrite);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES));
        }
        Mapping::of_file(&read_only, 1 << 45, Granule::SIZE_2M, Access::Read).unwrap();
    }

    #[test]
    fn threads_that_map_at_once_get_places_of_their_own() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 1 << 20).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let map = || {
                            let access = Access::ReadWrite;
                            Mapping::of_file(&memfd, 1 << 20, Granule::SIZE_2M, access).unwrap()
                        };
                        let (one, other) = (map(), map());
                        assert!(
                            one.start().addr().get().abs_diff(other.start().addr().get())
                                >= 2 << 20
                        );
                    }
                });
            }
        });
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
