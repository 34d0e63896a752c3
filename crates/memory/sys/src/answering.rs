//! Files whose accesses end without the help of another process or machine.
//!
//! A read, a page fault or even a `close(2)` of a file in a FUSE file system waits for the process
//! that serves it, for ever if that process likes. The last close of a socket may wait for its peer, and
//! that of any file that can be polled waits for the lock of each epoll that lists it. So a server must not
//! touch a file of FUSE of a client, and must close none of these files on a thread that has other work:
//! [`crate::closing`] closes them.
#![expect(
    unsafe_code,
    reason = "asks for record locks: rustix does not take the process id of some"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};

use crate::memfd;

/// The magic number of the kernel's file system of DMA-bufs, which nobody can mount (`linux/magic.h`).
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// File systems without a block device that only the kernel answers for.
const LOCAL: [&str; 6] = ["bcachefs", "btrfs", "overlay", "ramfs", "tmpfs", "zfs"];

/// Returns `true` if the kernel alone answers for a regular file, so that no access to it and no
/// closing of it waits for another process or machine. Asking does not wait either. Of other kinds of
/// files it says nothing, and returns `false`.
///
/// It returns `true` for shared memory and the hugetlb pool; for files on
/// a block device; and for files of bcachefs, Btrfs, overlayfs, ramfs, tmpfs and ZFS that are mounted
/// in this process's mount namespace. It does not hold for FUSE, network file systems and `/proc`,
/// whose `/proc/PID/mem` may wait for a handler of page faults (`userfaultfd(2)`). It returns `false` if
/// the kernel does not report the mount of a file (`STATX_MNT_ID`, Linux 5.8).
///
/// Two cases are not noticed, which take root to mount: a block device that a process or another machine
/// answers for, such as a loop device whose file is on FUSE, or an NBD; and FUSE on a block device
/// (`fuseblk`) that is mounted in another mount namespace.
///
/// # Errors
/// Those of `statx(2)`, and of reading `/proc/self/fd` and `/proc/self/mountinfo`.
pub fn is_answered_by_kernel(file: impl AsFd) -> io::Result<bool> {
    let file = file.as_fd();
    // Only shared memory and the hugetlb pool have seals.
    if memfd::seals(file).is_ok() {
        return Ok(true);
    }
    let status = status(file, StatxFlags::TYPE | StatxFlags::MNT_ID)?;
    let is_regular = FileType::from_raw_mode(status.stx_mode.into()) == FileType::RegularFile;
    // File systems without a block device have device numbers with the major number 0.
    if !is_regular {
        return Ok(false);
    }
    let is_on_disk = status.stx_dev_major != 0;
    let has_mount = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::MNT_ID);
    if !has_mount || !name(file)?.starts_with(b"/") {
        return Ok(false);
    }
    // Mount points are any bytes.
    let mounts = fs::read("/proc/self/mountinfo")?;
    Ok(is_local(file_system_of(status.stx_mnt_id, &mounts), is_on_disk))
}

/// Returns `true` if only the kernel answers for the files of a file system of type `kind`, which is `None`
/// if it is not mounted in this process's mount namespace.
fn is_local(kind: Option<&[u8]>, is_on_disk: bool) -> bool {
    match kind {
        Some(kind) if is_on_disk => !kind.starts_with(b"fuseblk"),
        Some(kind) => LOCAL.iter().any(|local| local.as_bytes() == kind),
        None => is_on_disk,
    }
}

/// Returns the type of the file system with the mount id `mount`, as `proc_pid_mountinfo(5)` lists it.
fn file_system_of(mount: u64, mounts: &[u8]) -> Option<&[u8]> {
    let mount = mount.to_string();
    let mut lines =
        mounts.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    let mut words = lines.find(|words| words.clone().next() == Some(mount.as_bytes()))?;
    words.find(|word| *word == b"-")?;
    words.next()
}

/// Returns `true` if a regular file is closed at once: [`is_answered_by_kernel`] is true, and no process has
/// set a record lock on it. `close(2)` walks the list of all these locks: 1,000,000 take 75 ms, for each
/// descriptor. Asking does not wait, and looks at one lock.
pub(crate) fn is_closed_at_once(file: impl AsFd) -> bool {
    let file = file.as_fd();
    is_answered_by_kernel(file).unwrap_or(false) && !has_record_locks(file)
}

/// Returns `true` if another process, or an open file, has a lock of `fcntl(2)` on a file, or if the kernel
/// does not report that. `close(2)` looks at each of these locks. Only files for which
/// [`is_answered_by_kernel`] or [`is_disposable`] is true may be asked: FUSE asks its server.
pub fn has_record_locks(file: impl AsFd) -> bool {
    let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    // Of the whole file, by this process: every lock conflicts, and the kernel returns the first.
    let mut lock = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open, and the kernel writes one structure of this type.
    let asked = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    asked != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Returns `true` if a file is known to be of a kind that [`crate::disposal`] closes without waiting:
/// every kind but regular files, so also eventfds and DMA-bufs. Asking does not wait.
pub fn is_disposable(file: impl AsFd) -> bool {
    let file = file.as_fd();
    match file_type(file) {
        // Some versions of Linux report anonymous inodes as regular files.
        Ok(FileType::RegularFile) => name(file).is_ok_and(|name| !name.starts_with(b"/")),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Returns `true` if a descriptor that an untrusted process sent can be used like the server's own, so
/// that none of that waits for another process or machine: memory, regular files for which
/// [`is_answered_by_kernel`] is true, both without record locks (`fcntl(2)`), eventfds, and DMA-bufs. It is
/// `false` if the kernel does not tell.
///
/// `close(2)` walks the list of all record locks of a file, and another process decides how long it is.
///
/// Eventfds and DMA-bufs must still be closed by [`crate::closing`]: the last close of a file that can be
/// polled waits for the lock of each epoll that lists it. A thread that waits for an epoll holds the lock
/// while it writes events to memory, for ever if that memory is of FUSE.
///
/// All other kinds are left out, since some of them block: sockets, terminals, devices, FIFOs. So are
/// DMA-bufs on the few stable releases of Linux from June 2025 that report them as regular files.
pub fn may_be_passed_on(file: impl AsFd) -> bool {
    let file = file.as_fd();
    match file_type(file) {
        Ok(FileType::RegularFile) if is_closed_at_once(file) => true,
        // In some versions of Linux, anonymous inodes have the type of a regular file.
        Ok(FileType::RegularFile) => is_eventfd(file).unwrap_or(false),
        Ok(FileType::Unknown) => is_eventfd(file).unwrap_or(false) || is_dma_buf(file),
        _ => false,
    }
}

/// Returns `true` for an eventfd of any kind, by its name in `/proc/self/fd`.
///
/// # Errors
/// Those of reading `/proc/self/fd`.
pub fn is_eventfd(file: impl AsFd) -> io::Result<bool> {
    Ok(name(file.as_fd())? == b"anon_inode:[eventfd]")
}

/// Returns the type of a file; [`FileType::Unknown`] for anonymous inodes.
fn file_type(file: BorrowedFd<'_>) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(status(file, StatxFlags::TYPE)?.stx_mode.into()))
}

/// Asks `statx(2)` without having a file system ask another process or machine.
fn status(file: BorrowedFd<'_>, wanted: StatxFlags) -> io::Result<Statx> {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(file, "", how, wanted)?)
}

/// Returns the name of a file in `/proc/self/fd`. That of an anonymous inode does not begin with `/`,
/// except for DMA-bufs.
///
/// `/proc/self/fdinfo` must not be read of a file of another process. It lists each record lock of the file,
/// so the reader's memory and time depend on how many locks that process has set; and epoll and others take
/// a lock for it, which a process that has the same file can hold for ever.
fn name(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.into_bytes())
}

/// Returns `true` for a DMA-buf, by its file system; the name of a file could be chosen by anyone.
///
/// `file` must be of no type: the files of FUSE and of network file systems have one, and `fstatfs(2)` of
/// these asks their server. The kernel answers for a DMA-buf from memory.
fn is_dma_buf(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|status| status.f_type as u32 == DMA_BUF_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::event_fd;

    #[test]
    fn the_kernel_answers_for_memory_events_and_files_on_disks() {
        let memory = memfd::create("answering", memfd::Backing::Shmem).unwrap();
        assert!(is_answered_by_kernel(&memory).unwrap() && may_be_passed_on(&memory));
        let file = tempfile::tempfile().unwrap();
        assert!(is_answered_by_kernel(&file).unwrap() && may_be_passed_on(&file));
        assert!(!is_disposable(&file) && !is_disposable(&memory));
        let event = event_fd::create().unwrap();
        assert!(may_be_passed_on(&event) && is_disposable(&event));
    }

    #[test]
    fn other_kinds_of_files_are_not_passed_on() {
        let (stream, _peer) = UnixStream::pair().unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let others: [OwnedFd; 6] = [
            stream.into(),
            reader.into(),
            socket.into(),
            epoll.unwrap(),
            File::open("/").unwrap().into(),
            File::open("/dev/null").unwrap().into(),
        ];
        for other in &others {
            assert!(!may_be_passed_on(other) && is_disposable(other), "{other:?}");
        }
    }

    #[test]
    fn memory_of_a_process_may_wait_for_that_process() {
        assert!(!is_answered_by_kernel(File::open("/proc/self/mem").unwrap()).unwrap());
    }

    #[test]
    fn fuse_is_not_local_whether_on_a_disk_or_not() {
        for (kind, is_on_disk, expected) in [
            ("ext4", true, true),
            ("fuseblk", true, false),
            ("fuseblk.ntfs-3g", true, false),
            ("btrfs", false, true),
            ("fuse.sshfs", false, false),
            ("nfs4", false, false),
        ] {
            assert_eq!(is_local(Some(kind.as_bytes()), is_on_disk), expected, "{kind}");
        }
        assert!(is_local(None, true) && !is_local(None, false));
    }

    #[test]
    fn the_type_of_a_file_system_stands_behind_the_options_of_its_mount() {
        let mounts = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                       30 27 0:40 / /a\\040b rw shared:1 - fuse.sshfs me@there: rw,user_id=1\n\
                       31 27 0:41 /@home /not-utf-8-\xff rw - btrfs /dev/vdb rw,subvol=/@home\n";
        assert_eq!(file_system_of(30, mounts), Some(&b"fuse.sshfs"[..]));
        assert_eq!(file_system_of(31, mounts), Some(&b"btrfs"[..]));
        assert_eq!(file_system_of(3, mounts), None);
    }
}
