//! Pages of files that can be missing when they are touched.

use std::io;
use std::os::fd::BorrowedFd;

use longshore_sys::file::{self, FileSystem};
use longshore_sys::memfd;

/// Returns whether the kernel makes sure that every page of a file below `end` is there when it is
/// touched, whatever other processes do.
///
/// A punched hole counts: shared memory fills it when it is touched, and a file that is sealed against
/// writing cannot have one. A file of the hugetlb pool can, and so can one on persistent memory, which
/// has no seals at all.
pub(crate) fn stays_whole(of: BorrowedFd<'_>, end: u64) -> io::Result<bool> {
    let Ok(seals) = memfd::seals(of) else { return Ok(false) };
    // Sealed first and measured then, it stays as long as it was found to be.
    Ok(seals.shrink
        && (seals.write || file::file_system(of)? == FileSystem::Shmem)
        && file::status(of)?.version.len_bytes() >= end)
}

/// Returns whether a file is of the hugetlb pool, where a hole may have no page to be filled with, and
/// not sealed against writing, which rules out holes.
pub(crate) fn can_be_punched(of: BorrowedFd<'_>) -> bool {
    matches!(file::file_system(of), Ok(FileSystem::Hugetlb { .. }))
        && !memfd::seals(of).is_ok_and(|seals| seals.write)
}
