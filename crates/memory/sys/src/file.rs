//! Files to read from: opening, `statx(2)`, `preadv2(2)`.
#![expect(
    unsafe_code,
    reason = "a read into memory that other processes may see takes a raw pointer"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use longshore_mem::{FileOffset, Granule, VolatileSliceMut};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};

use crate::openat2::openat2;
use crate::retry_interrupted;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Any other file.
    Other,
}

impl Kind {
    /// Returns the kind with its article, for messages.
    pub fn described(self) -> &'static str {
        match self {
            Self::Regular => "a regular file",
            Self::Directory => "a directory",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Other => "not a regular file",
        }
    }
}

/// The numbers that identify a file.
///
/// A file system reuses the inode number of a deleted file, and some file systems give one number to
/// several files. The time of birth distinguishes most of them if the file system records it. Otherwise
/// two equal identities belong to one file only while a descriptor keeps its inode in use, and only if
/// the [handles](crate::file_handle) are equal, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The major and minor number of the device.
    pub device: (u32, u32),
    /// The inode number.
    pub inode: u64,
    /// The time of birth: seconds and nanoseconds since 1970. `None` if it is unknown.
    pub born: Option<(i64, u32)>,
}

impl Identity {
    pub(crate) fn of(answer: &Statx) -> Self {
        let answered = StatxFlags::from_bits_retain(answer.stx_mask);
        let born = (answer.stx_btime.tv_sec, answer.stx_btime.tv_nsec);
        Self {
            device: (answer.stx_dev_major, answer.stx_dev_minor),
            inode: answer.stx_ino,
            born: answered.contains(StatxFlags::BTIME).then_some(born),
        }
    }

    /// Returns `true` if both may be of one file. The times of birth are compared only if both have one,
    /// because a network file system may not have it for both.
    pub fn matches(&self, other: &Self) -> bool {
        let births = self.born.zip(other.born);
        (self.device, self.inode) == (other.device, other.inode)
            && births.is_none_or(|(own, others)| own == others)
    }
}

/// One state of a file: its identity, its size and the time of its last modification.
///
/// It does not contain the time of status change, because renaming or linking a file changes that, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    identity: Identity,
    len_bytes: u64,
    modified: (i64, u32),
}

impl Version {
    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the time of the last modification: seconds and nanoseconds since 1970.
    pub fn modified(&self) -> (i64, u32) {
        self.modified
    }

    /// Returns the file's identity, which is the same for all names of a file.
    pub fn identity(&self) -> Identity {
        self.identity
    }
}

/// The alignment that direct I/O on a file needs (`STATX_DIOALIGN`, Linux 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// The alignment of the memory.
    pub memory: Granule,
    /// The alignment of the file offset and the length.
    pub offset: Granule,
}

/// The answer of `statx(2)` for a file.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// The type of the file.
    pub kind: Kind,
    /// Its size, identity and times.
    pub version: Version,
    /// The number of its names (hard links): 0 after it was deleted.
    pub links: u32,
    /// The user ID of its owner.
    pub owner: u32,
    /// The number of bytes of the disk or memory that it takes.
    pub allocated_bytes: u64,
    /// The alignment of direct I/O; `None` if the file system does not support or report it.
    pub direct: Option<DirectAlignment>,
}

/// The file system of a file, as far as it determines how the file's pages behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileSystem {
    /// Shared memory: tmpfs, or a memfd of base pages. A missing page before the end of the file is
    /// allocated when it is touched.
    Shmem,
    /// The hugetlb pool. Touching a missing page raises SIGBUS if the pool is empty.
    Hugetlb {
        /// The size of its pages.
        page: Granule,
    },
    /// Any other.
    Other,
}

/// The flags of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadFlags {
    /// Reads only resident pages (`RWF_NOWAIT`). Fails with `WouldBlock` if the first page is not
    /// resident.
    pub resident_only: bool,
    /// Drops the pages from the page cache afterwards (`RWF_DONTCACHE`, Linux 6.14).
    pub uncached: bool,
}

/// `TMPFS_MAGIC` and `HUGETLBFS_MAGIC` of `linux/magic.h`.
const TMPFS_MAGIC: u32 = 0x0102_1994;
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// `RWF_DONTCACHE` of `linux/fs.h`, which libc does not define yet.
const RWF_DONTCACHE: i32 = 0x80;

/// Opens a file for reading. Opening a FIFO does not block, and a terminal does not become the
/// controlling terminal.
///
/// # Errors
/// Those of `open(2)`.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    retry_interrupted(|| Ok(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Opens a directory, to examine it or to change its mode. Does not follow a symbolic link.
///
/// # Errors
/// Those of `open(2)`; `ENOTDIR` or `ELOOP` for a symbolic link.
pub fn open_directory_itself(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_interrupted(|| Ok(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Opens a lock file, and creates it if it is missing, with access for this user only. It does not
/// follow a symbolic link in the last component, and does not block.
///
/// # Errors
/// Those of `open(2)`; `ELOOP` for a symbolic link.
pub fn open_lock(path: &Path) -> io::Result<OwnedFd> {
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = Mode::RUSR | Mode::WUSR;
    retry_interrupted(|| Ok(rustix::fs::open(path, how | OFlags::CLOEXEC, mode)?))
}

/// Opens the file of a descriptor again, for direct reads (`O_DIRECT`).
///
/// # Errors
/// `EINVAL` if the file system has no direct I/O, `EACCES` if the file may not be opened, `ENOENT` if
/// `/proc` is not mounted.
pub fn reopen_direct(file: impl AsFd) -> io::Result<OwnedFd> {
    reopen(file, OFlags::DIRECT)
}

/// Opens the file of a descriptor again, for reads through the page cache.
///
/// # Errors
/// `EACCES` if the file may not be opened, `ENOENT` if `/proc` is not mounted.
pub fn reopen_read_only(file: impl AsFd) -> io::Result<OwnedFd> {
    reopen(file, OFlags::empty())
}

fn reopen(file: impl AsFd, extra: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | extra;
    retry_interrupted(|| Ok(rustix::fs::open(path.as_str(), flags, Mode::empty())?))
}

/// Returns `true` if reads through this descriptor are direct (`O_DIRECT`).
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn is_direct(file: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(file)?.contains(OFlags::DIRECT))
}

/// Returns a file's kind, version, number of names, owner and direct I/O alignment.
///
/// # Errors
/// Those of `statx(2)`.
pub fn status(file: impl AsFd) -> io::Result<Status> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::DIOALIGN;
    let answer = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    // Zero means that the file system does not report it, or has no direct I/O on this file.
    let granule = |bytes: u32| Granule::new(u64::from(bytes)).ok();
    let direct = granule(answer.stx_dio_mem_align)
        .zip(granule(answer.stx_dio_offset_align))
        .map(|(memory, offset)| DirectAlignment { memory, offset });
    Ok(Status {
        kind: kind_of(FileType::from_raw_mode(answer.stx_mode.into())),
        version: Version {
            identity: Identity::of(&answer),
            len_bytes: answer.stx_size,
            modified: (answer.stx_mtime.tv_sec, answer.stx_mtime.tv_nsec),
        },
        links: answer.stx_nlink,
        owner: answer.stx_uid,
        // In units of 512 bytes whatever the block size is.
        allocated_bytes: answer.stx_blocks.saturating_mul(512),
        direct,
    })
}

/// Returns `true` if the kernel knows without asking the file system that a file has no name left
/// (`AT_STATX_DONT_SYNC`). So this does not wait for FUSE or a network.
///
/// # Errors
/// Those of `statx(2)`.
pub fn is_known_unlinked(file: impl AsFd) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let answer = rustix::fs::statx(file, "", flags, StatxFlags::NLINK)?;
    Ok(answer.stx_nlink == 0)
}

/// Returns the file system of a file.
///
/// # Errors
/// Those of `fstatfs(2)`.
pub fn file_system(file: impl AsFd) -> io::Result<FileSystem> {
    let answer = retry_interrupted(|| Ok(rustix::fs::fstatfs(&file)?))?;
    // The type of `f_type` differs between architectures; magic numbers have 32 bits.
    Ok(match answer.f_type as u32 {
        TMPFS_MAGIC => FileSystem::Shmem,
        HUGETLBFS_MAGIC => {
            let page = Granule::new(answer.f_bsize as u64);
            FileSystem::Hugetlb { page: page.map_err(|_| io::ErrorKind::InvalidData)? }
        }
        _ => FileSystem::Other,
    })
}

/// Returns the number of bytes that an unprivileged user can still write to the file system of `file`;
/// `None` if the file system does not count them.
///
/// # Errors
/// Those of `fstatvfs(3)`.
pub fn free_bytes(file: impl AsFd) -> io::Result<Option<u64>> {
    let found = rustix::fs::fstatvfs(file)?;
    Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Returns the kind of the file at `path` without opening it; a socket cannot be opened at all.
///
/// # Errors
/// Those of `stat(2)`.
pub fn kind_at(path: &Path) -> io::Result<Kind> {
    let answer = rustix::fs::stat(path)?;
    Ok(kind_of(FileType::from_raw_mode(answer.st_mode)))
}

/// Returns the kind of a file whose path other users may change. Symbolic links are followed, if not
/// `refuses_links`, but never those of `/proc` to files of processes, which may lead to a file system whose
/// server does not answer.
///
/// # Errors
/// `ELOOP` for a link that is not followed; those of `openat2(2)` and `fstat(2)`.
pub fn kind_at_source(path: &Path, refuses_links: bool) -> io::Result<Kind> {
    let resolve = match refuses_links {
        true => ResolveFlags::NO_SYMLINKS,
        false => ResolveFlags::NO_MAGICLINKS,
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = openat2(CWD, path, flags, Mode::empty(), resolve)?;
    Ok(kind_of(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode)))
}

/// Reads from `offset` into `memory` with one system call, which may read less. Returns the number of
/// bytes.
///
/// # Errors
/// Those of `preadv2(2)`; `WouldBlock` for [`ReadFlags::resident_only`] if the first page is not
/// resident, `Unsupported` if the file system or kernel does not support a flag. A call that a signal
/// interrupts is repeated.
pub fn read_at(
    file: impl AsFd,
    memory: &mut VolatileSliceMut<'_>,
    offset: FileOffset,
    flags: ReadFlags,
) -> io::Result<usize> {
    let offset = i64::try_from(offset.raw()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let target = libc::iovec { iov_len: memory.len(), iov_base: memory.as_mut_ptr().cast() };
    let mut bits = 0;
    if flags.resident_only {
        bits |= libc::RWF_NOWAIT;
    }
    if flags.uncached {
        bits |= RWF_DONTCACHE;
    }
    let fd = file.as_fd().as_raw_fd();
    retry_interrupted(|| {
        // SAFETY: the view is valid and writable for its length, and is borrowed for the call.
        let done = unsafe { libc::preadv2(fd, &raw const target, 1, offset, bits) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    })
}

/// Reads from `offset` into private memory, like [`read_at`].
///
/// # Errors
/// The same as for [`read_at`].
pub fn read_into(
    file: impl AsFd,
    bytes: &mut [u8],
    offset: FileOffset,
    flags: ReadFlags,
) -> io::Result<usize> {
    read_at(file, &mut VolatileSliceMut::from(bytes), offset, flags)
}

pub(crate) fn kind_of(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => Kind::Device,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn kinds_are_distinguished_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        assert_eq!(status(open(&fifo).unwrap()).unwrap().kind, Kind::Fifo);
        assert_eq!(status(open(dir.path()).unwrap()).unwrap().kind, Kind::Directory);
        assert_eq!(status(open(Path::new("/dev/null")).unwrap()).unwrap().kind, Kind::Device);
    }

    #[test]
    fn a_version_changes_with_the_content() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let before = status(file.as_file()).unwrap().version;
        assert_eq!(before, status(open(file.path()).unwrap()).unwrap().version);
        file.write_all(b"more").unwrap();
        let after = status(file.as_file()).unwrap().version;
        assert_ne!(before, after);
        assert_eq!(after.len_bytes(), 4);
        assert_eq!(before.identity(), after.identity());
    }

    #[test]
    fn files_with_one_inode_number_are_distinguished_by_their_birth() {
        let file = Identity { device: (8, 1), inode: 12, born: Some((1_700_000_000, 1)) };
        assert!(file.matches(&file));
        assert!(file.matches(&Identity { born: None, ..file }));
        assert!(Identity { born: None, ..file }.matches(&file));
        assert!(!file.matches(&Identity { born: Some((1_700_000_000, 2)), ..file }));
        assert!(!file.matches(&Identity { inode: 13, ..file }));
        assert!(!file.matches(&Identity { device: (8, 2), ..file }));
    }

    #[test]
    fn the_number_of_names_drops_to_zero() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        std::fs::write(&first, b"model").unwrap();
        let file = open(&first).unwrap();
        let links = || status(&file).unwrap().links;
        std::fs::hard_link(&first, &second).unwrap();
        assert_eq!(links(), 2);
        std::fs::remove_file(&first).unwrap();
        std::fs::remove_file(&second).unwrap();
        assert_eq!(links(), 0);
    }

    #[test]
    fn a_version_does_not_change_with_the_names_of_the_file() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let [first, second, third] = ["first", "second", "third"].map(|name| dir.path().join(name));
        std::fs::write(&first, b"model").unwrap();
        let file = std::fs::File::open(&first).unwrap();
        let status_changed = || {
            let metadata = file.metadata().unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        let check = |change_names: &dyn Fn()| {
            let (version, before) = (status(&file).unwrap().version, status_changed());
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            // The clock of the file system is coarse, so the time moves only after some changes.
            while status_changed() == before {
                assert!(std::time::Instant::now() < deadline, "the time never changes");
                change_names();
            }
            assert_eq!(status(&file).unwrap().version, version);
        };
        check(&|| {
            let _ = std::fs::remove_file(&second);
            std::fs::hard_link(&first, &second).unwrap();
        });
        check(&|| {
            std::fs::rename(&first, &third).unwrap();
            std::fs::rename(&third, &first).unwrap();
        });
    }

    #[test]
    fn a_read_stops_at_the_end_of_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut bytes = [0u8; 8];
        let mut read =
            |offset| read_into(&file, &mut bytes, FileOffset::new(offset), ReadFlags::default());
        assert_eq!(read(10).unwrap(), 0);
        assert_eq!(read(u64::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(read(6).unwrap(), 4);
        assert_eq!(&bytes[..4], b"6789");
    }
}
