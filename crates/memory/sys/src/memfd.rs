//! Anonymous files in memory: `memfd_create(2)` and the seals of `fcntl(2)`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// The backing of a memfd's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Shared memory: base pages, or transparent huge pages if they are requested later.
    Shmem,
    /// 2 MiB pages of the hugetlb pool; the length must be a multiple of 2 MiB.
    Hugetlb2M,
}

/// The seals of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seals {
    /// It cannot become shorter (`F_SEAL_SHRINK`).
    pub shrink: bool,
    /// It cannot become longer (`F_SEAL_GROW`).
    pub grow: bool,
    /// Its content cannot change (`F_SEAL_WRITE`).
    pub write: bool,
    /// No further seal can be added (`F_SEAL_SEAL`).
    pub seal: bool,
}

/// Makes an empty memfd that can be sealed, is close-on-exec and cannot be executed.
///
/// `name` appears in `/proc/PID/maps` and `/proc/PID/fd`, and need not be unique.
///
/// # Errors
/// Those of `memfd_create(2)`, if descriptors are exhausted or hugetlb is not supported for example.
pub fn create(name: &str, backing: Backing) -> io::Result<OwnedFd> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if backing == Backing::Hugetlb2M {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 has no MFD_NOEXEC_SEAL.
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create(name, flags)?),
        made => Ok(made?),
    }
}

/// Adds seals to a memfd.
///
/// # Errors
/// `EBUSY` for [`Seals::write`] while any process has the file mapped writable or its pages are pinned,
/// `EPERM` if [`Seals::seal`] is set.
pub fn add_seals(memfd: impl AsFd, seals: Seals) -> io::Result<()> {
    let mut flags = SealFlags::empty();
    flags.set(SealFlags::SHRINK, seals.shrink);
    flags.set(SealFlags::GROW, seals.grow);
    flags.set(SealFlags::WRITE, seals.write);
    flags.set(SealFlags::SEAL, seals.seal);
    Ok(rustix::fs::fcntl_add_seals(memfd, flags)?)
}

/// Returns the seals of a memfd.
///
/// # Errors
/// `EINVAL` if the descriptor is not a memfd.
pub fn seals(memfd: impl AsFd) -> io::Result<Seals> {
    let flags = rustix::fs::fcntl_get_seals(memfd)?;
    Ok(Seals {
        shrink: flags.contains(SealFlags::SHRINK),
        grow: flags.contains(SealFlags::GROW),
        write: flags.contains(SealFlags::WRITE),
        seal: flags.contains(SealFlags::SEAL),
    })
}

/// Sets a memfd's length.
///
/// # Errors
/// `EPERM` if a seal forbids it, `EFBIG` beyond the file size limit. The kernel also sends `SIGXFSZ`
/// then, so check [`crate::memory::file_size_limit`] first.
pub fn set_len(memfd: impl AsFd, len_bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::ftruncate(memfd, len_bytes)?)
}

/// Sets the file permissions of a memfd, which apply when it is opened again by its link in
/// `/proc/PID/fd`. Existing descriptors do not change.
///
/// # Errors
/// `EPERM` if the memfd belongs to another user.
pub fn set_permissions(memfd: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(memfd, rustix::fs::Mode::from_raw_mode(mode & 0o777))?)
}

/// Returns the length of a memfd in bytes, and `true` if this descriptor permits writing.
///
/// # Errors
/// Those of `fstat(2)` and `fcntl(2)`.
pub fn look_at(memfd: impl AsFd) -> io::Result<(u64, bool)> {
    let memfd = memfd.as_fd();
    let status = rustix::fs::fstat(memfd)?;
    let access = rustix::fs::fcntl_getfl(memfd)? & rustix::fs::OFlags::RWMODE;
    let len_bytes = u64::try_from(status.st_size).unwrap_or(0);
    Ok((len_bytes, access != rustix::fs::OFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_hold_and_are_reported() {
        let memfd = create("seal-test", Backing::Shmem).unwrap();
        set_len(&memfd, 8192).unwrap();
        add_seals(&memfd, Seals { shrink: true, grow: true, ..Seals::default() }).unwrap();
        let held = seals(&memfd).unwrap();
        assert!(held.shrink && held.grow && !held.write && !held.seal);
        assert_eq!(set_len(&memfd, 4096).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(set_len(&memfd, 12288).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        rustix::io::pwrite(&memfd, b"still writable", 0).unwrap();
        add_seals(&memfd, Seals { write: true, ..Seals::default() }).unwrap();
        assert!(rustix::io::pwrite(&memfd, b"no more", 0).is_err());
    }
}
