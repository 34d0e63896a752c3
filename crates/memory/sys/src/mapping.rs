//! `mmap(2)` of a file or of anonymous memory, at an address that is aligned for huge pages.
#![expect(unsafe_code, reason = "maps and unmaps memory")]

use std::ffi::c_void;
use std::fs;
use std::hint;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use longshore_mem::{FileOffset, Granule};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::bounded;
use crate::file::{self, FileSystem};

/// The number of attempts to find a free place that no other thread takes.
const ATTEMPTS_MAX: u32 = 1000;

/// Knuth's multiplier for a 64-bit linear congruential generator (MMIX).
const PAUSE_FACTOR: u64 = 6_364_136_223_846_793_005;

/// Returns the number of mappings that this process may have (`vm.max_map_count`) when this is first called,
/// or the kernel's default if that cannot be read within two seconds: another user can delay the read
/// ([`crate::disposal::prepare`] reads it before there are clients).
pub fn count_max() -> u64 {
    const DEFAULT: u64 = 65_530;
    static COUNT: OnceLock<u64> = OnceLock::new();
    let read = || fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let look = || bounded::look(read).flatten()?.trim().parse().ok();
    *COUNT.get_or_init(|| look().unwrap_or(DEFAULT))
}

/// The permitted accesses to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store raises SIGSEGV.
    Read,
    /// Loads and stores.
    ReadWrite,
    /// Loads and stores. A store copies its page into memory of this mapping alone (`MAP_PRIVATE`), and
    /// no swap space is reserved for these copies (`MAP_NORESERVE`).
    CopyOnWrite,
}

/// A mapping of a file, of a part of it, or of anonymous memory, which is unmapped on drop. It is shared
/// unless it is anonymous or [`Access::CopyOnWrite`].
///
/// The reserved addresses are rounded out to `alignment`, so that the partial huge pages at both ends
/// can be huge pages, too. Touching memory beyond the last page of the file raises SIGBUS. A mapping of
/// zero bytes has no memory.
#[derive(Debug)]
pub struct Mapping {
    /// The first reserved address.
    base: NonNull<u8>,
    reserved_bytes: usize,
    /// The offset from the base at which the requested bytes begin.
    skip_bytes: usize,
    len_bytes: usize,
}

// SAFETY: the mapping is owned memory, which any thread may unmap.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` only returns addresses; dereferencing them is unsafe.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len_bytes` of `file` at a multiple of `alignment`, which is at least the page
    /// size.
    ///
    /// # Errors
    /// `ENOMEM` if the address space or a resource limit is exhausted, `EPERM` if a seal forbids
    /// writing, `EACCES` if the descriptor's mode forbids it, `InvalidInput` for a length that is too
    /// large for the address space.
    pub fn of_file(
        file: impl AsFd,
        len_bytes: u64,
        alignment: Granule,
        access: Access,
    ) -> io::Result<Self> {
        Self::of_file_part(file, FileOffset::new(0), len_bytes, alignment, access)
    }

    /// Maps `len_bytes` of `file` from `offset` on. The address of the bytes is congruent to `offset`
    /// modulo `alignment`, so that huge pages of the file can be huge pages of the mapping.
    ///
    /// A file of the hugetlb pool is mapped in whole pages of its own size even if `alignment` is
    /// smaller, because the kernel rounds the length up to these.
    ///
    /// # Errors
    /// The same as for [`of_file`](Self::of_file).
    pub fn of_file_part(
        file: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        alignment: Granule,
        access: Access,
    ) -> io::Result<Self> {
        // `as_fd` is called only once, because a second call could return another file.
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
            Access::ReadWrite | Access::CopyOnWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let sharing = match access {
            Access::Read | Access::ReadWrite => MapFlags::SHARED,
            Access::CopyOnWrite => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let map_at = |at: *mut c_void, flags| {
            // SAFETY: without MAP_FIXED the kernel replaces no other mapping.
            let placed = unsafe {
                let offset = offset.raw() - skip;
                rustix::mm::mmap(at, reserved_bytes, prot, sharing | flags, file, offset)
            }?;
            // It is less than the alignment, which fits in a `usize`.
            let skip_bytes = skip as usize;
            io::Result::Ok(Self { base: non_null(placed)?, reserved_bytes, skip_bytes, len_bytes })
        };
        // First map at any address: if the kernel refuses the file, no addresses are taken yet.
        let mut mapping = map_at(ptr::null_mut(), MapFlags::empty())?;
        // The addresses of stacks differ between threads.
        let mut pause = (&raw const mapping).addr() as u64;
        for _ in 0..ATTEMPTS_MAX {
            if mapping.base.addr().get().is_multiple_of(align_bytes) {
                return Ok(mapping);
            }
            let place = free_place(span_bytes, align_bytes)?;
            // Linux before 4.17 treats the address as a hint.
            match map_at(place, MapFlags::FIXED_NOREPLACE) {
                Ok(placed) => mapping = placed,
                // Another thread has mapped memory there meanwhile. Two threads in this loop could block
                // each other's place again and again. So a thread waits for a time that differs between
                // threads and attempts.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    pause = pause.wrapping_mul(PAUSE_FACTOR).wrapping_add(1);
                    (0..pause >> 53).for_each(|_| hint::spin_loop());
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Maps `len_bytes` of anonymous memory of this process (`MAP_PRIVATE`) at a multiple of `alignment`,
    /// which is at least the page size. Its pages are zero. A child of `fork(2)` gets a copy. No swap
    /// space is reserved (`MAP_NORESERVE`).
    ///
    /// # Errors
    /// `ENOMEM` if the address space or a resource limit is exhausted, `InvalidInput` for a length that
    /// is too large for the address space.
    pub fn anonymous(len_bytes: u64, alignment: Granule) -> io::Result<Self> {
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        let align_bytes = usize::try_from(alignment.bytes()).map_err(|_| too_long())?;
        let len_bytes = usize::try_from(len_bytes).map_err(|_| too_long())?;
        if len_bytes == 0 {
            let base = NonNull::without_provenance(alignment_as_nonzero(align_bytes));
            return Ok(Self { base, reserved_bytes: 0, skip_bytes: 0, len_bytes });
        }
        let reserved_bytes = len_bytes
            .checked_next_multiple_of(align_bytes)
            .and_then(|bytes| bytes.checked_add(align_bytes))
            .ok_or_else(too_long)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice affects no existing memory.
        let placed =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), reserved_bytes, access, flags) }?;
        let base = non_null(placed)?;
        let address = base.addr().get();
        // It is less than the alignment, whose bytes were added to the length.
        let skip_bytes = address.next_multiple_of(align_bytes) - address;
        Ok(Self { base, reserved_bytes, skip_bytes, len_bytes })
    }

    /// Returns the address of the requested bytes. For an empty mapping, it is a dangling, aligned
    /// address.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the requested bytes are in the mapping. For an empty mapping, `skip_bytes` is zero.
        unsafe { self.base.add(self.skip_bytes) }
    }

    /// Sets whether a child of `fork(2)` gets the mapping, too. A new mapping is inherited.
    ///
    /// # Errors
    /// `ENOMEM` if the process has reached its limit on mappings.
    pub fn set_inherited(&self, inherited: bool) -> io::Result<()> {
        if self.reserved_bytes == 0 {
            return Ok(());
        }
        let advice = if inherited { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        // SAFETY: the advice changes nothing in this process, and the range is that of this mapping.
        Ok(unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.reserved_bytes, advice) }?)
    }

    /// Returns the number of bytes of addresses that the mapping takes.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Returns the requested length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.reserved_bytes > 0 {
            // SAFETY: this value owns the range, and every view of it borrows this value.
            let _now_or_later = unsafe { unmap(self.base, self.reserved_bytes) };
        }
    }
}

/// Unmaps a range, now or later. The kernel merges mappings that are adjacent in memory and in their
/// file, so a mapping may be in the middle of a merged one. Unmapping it then needs one more mapping,
/// and fails if the process has reached its limit (`vm.max_map_count`).
///
/// # Errors
/// `ENOMEM` if the range could not be unmapped now and is unmapped later.
///
/// # Safety
/// The range must consist of whole mapped pages, which must not be used any more.
unsafe fn unmap(base: NonNull<u8>, len_bytes: usize) -> io::Result<()> {
    /// The ranges that are unmapped later, by other calls of this function.
    static REFUSED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    /// `true` if there are such ranges. If not, the lock is not taken.
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

/// Returns a multiple of `align_bytes` at which a free range of `span_bytes - align_bytes` bytes begins.
/// Another thread may map memory there meanwhile.
fn free_place(span_bytes: usize, align_bytes: usize) -> io::Result<*mut c_void> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice affects no existing memory.
    let span = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            span_bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    // SAFETY: the range was mapped above, and no reference to it exists.
    unsafe { unmap(non_null(span)?, span_bytes) }?;
    Ok(span.map_addr(|address| address.next_multiple_of(align_bytes)))
}

fn non_null(address: *mut c_void) -> io::Result<NonNull<u8>> {
    // mmap never chooses address zero itself.
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
    fn a_mapping_is_aligned_and_has_the_bytes_of_the_file() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 5000).unwrap();
        let mapping = Mapping::of_file(&memfd, 5000, Granule::SIZE_2M, Access::ReadWrite).unwrap();
        assert_eq!(mapping.start().addr().get() % (2 << 20), 0);
        assert_eq!(mapping.len_bytes(), 5000);
        // SAFETY: byte 4999 is inside the mapping.
        let last = unsafe { mapping.start().add(4999) };
        // SAFETY: it is also inside the file.
        unsafe { last.write_volatile(42) };
        let mut byte = [0];
        rustix::io::pread(&memfd, &mut byte, 4999).unwrap();
        assert_eq!(byte, [42]);
    }

    #[test]
    fn a_write_to_a_copy_on_write_mapping_does_not_reach_the_file() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 4096).unwrap();
        let access = Access::CopyOnWrite;
        let mapping = Mapping::of_file(&memfd, 4096, Granule::SIZE_4K, access).unwrap();
        // SAFETY: the first byte is inside the mapping and the file.
        unsafe { mapping.start().write_volatile(42) };
        let mut byte = [1];
        rustix::io::pread(&memfd, &mut byte, 0).unwrap();
        assert_eq!(byte, [0]);
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.start().read_volatile() }, 42);
    }

    #[test]
    fn the_kernel_reports_whether_a_child_inherits_a_mapping() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 4096).unwrap();
        let access = Access::ReadWrite;
        let mapping = Mapping::of_file(&memfd, 4096, Granule::SIZE_4K, access).unwrap();
        // "dc" is the flag VM_DONTCOPY in proc_pid_smaps(5).
        let is_kept_back = || {
            let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
            let start = format!("{:x}-", mapping.start().addr().get());
            let entry = smaps.lines().skip_while(|line| !line.starts_with(&start));
            let mut flags = entry.filter_map(|line| line.strip_prefix("VmFlags:"));
            flags.next().unwrap().split_whitespace().any(|flag| flag == "dc")
        };
        for inherited in [false, true] {
            mapping.set_inherited(inherited).unwrap();
            assert_eq!(is_kept_back(), !inherited);
        }
        Mapping::of_file(&memfd, 0, Granule::SIZE_4K, access)
            .unwrap()
            .set_inherited(false)
            .unwrap();
    }

    #[test]
    fn two_threads_do_not_block_each_others_places() {
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
                // SAFETY: it is the first of three bytes, inside the mapping and the file.
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
        // SAFETY: it is in the last page of the file, which is mapped.
        unsafe { mapped[0].start().write_volatile(9) };
        // SAFETY: it is in the same page.
        assert_eq!(unsafe { mapped[7].start().read_volatile() }, 9);
    }

    #[test]
    fn a_refused_mapping_takes_no_addresses() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        memfd::set_len(&memfd, 1 << 45).unwrap();
        let read_only = file::reopen_read_only(&memfd).unwrap();
        // All of them together would need more addresses than a process has.
        for _ in 0..8 {
            let refused =
                Mapping::of_file(&read_only, 1 << 45, Granule::SIZE_2M, Access::ReadWrite);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES));
        }
        Mapping::of_file(&read_only, 1 << 45, Granule::SIZE_2M, Access::Read).unwrap();
    }

    #[test]
    fn threads_that_map_concurrently_get_separate_places() {
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
    fn anonymous_memory_is_aligned_zero_and_writable_to_its_end() {
        for len_bytes in [1, 4096, (2 << 20) - 1, 5 << 20] {
            let mapping = Mapping::anonymous(len_bytes, Granule::SIZE_2M).unwrap();
            assert_eq!(mapping.start().addr().get() % (2 << 20), 0);
            assert_eq!(mapping.len_bytes() as u64, len_bytes);
            // SAFETY: the last byte is inside the mapping.
            let last = unsafe { mapping.start().add(mapping.len_bytes() - 1) };
            // SAFETY: as above.
            assert_eq!(unsafe { last.read_volatile() }, 0);
            // SAFETY: as above.
            unsafe { last.write_volatile(1) };
        }
        assert_eq!(Mapping::anonymous(0, Granule::SIZE_2M).unwrap().reserved_bytes(), 0);
        for len_bytes in [u64::MAX, u64::MAX - (2 << 20), 1 << 60] {
            assert!(Mapping::anonymous(len_bytes, Granule::SIZE_2M).is_err());
        }
    }

    #[test]
    fn an_empty_mapping_maps_nothing() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        let mapping = Mapping::of_file(&memfd, 0, Granule::SIZE_2M, Access::ReadWrite).unwrap();
        assert_eq!(mapping.len_bytes(), 0);
        assert_eq!(mapping.start().addr().get() % (2 << 20), 0);
    }

    #[test]
    fn a_length_beyond_the_address_space_is_refused() {
        let memfd = memfd::create("map-test", Backing::Shmem).unwrap();
        let huge = Mapping::of_file(&memfd, u64::MAX, Granule::SIZE_2M, Access::Read);
        assert_eq!(huge.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let vast = Mapping::of_file(&memfd, 1 << 62, Granule::SIZE_2M, Access::Read);
        assert_eq!(vast.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
