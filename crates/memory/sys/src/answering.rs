//! Detecting files that the kernel serves itself, whose operations do not wait for another process or
//! machine.
//!
//! A read, a page fault or even a `close(2)` of a file in a FUSE file system waits for its server
//! process, for ever if that process likes. The last close of a socket may wait for its peer, and the
//! last close of any pollable file waits for the lock of each epoll that lists it. So a server must not
//! access FUSE files of clients, and must not close files of clients on a thread that has other work:
//! [`crate::closing`] closes them.
#![expect(
    unsafe_code,
    reason = "queries record locks, of which rustix does not accept some process ids"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Take};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};

use crate::block_device::{self, BlockDevices, ManyDevices};
use crate::bounded::{self, Hung};
use crate::{memfd, statmount};

/// The magic number of the kernel's file system of DMA-bufs, which cannot be mounted (`linux/magic.h`).
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// The names and magic numbers of file systems that the kernel serves itself without a block device.
///
/// The numbers are those of `linux/magic.h` and of OpenZFS (`sys/fs/zfs.h`). `devtmpfs` and `rootfs` are
/// tmpfs or ramfs.
const LOCAL: [(&[u8], u64); 6] = [
    (b"devtmpfs", 0x0102_1994),
    (b"overlay", 0x794c_7630),
    (b"ramfs", 0x8584_58f6),
    (b"rootfs", 0x0102_1994),
    (b"tmpfs", 0x0102_1994),
    (b"zfs", 0x2fc1_2fc1),
];

/// The names and magic numbers of file systems that the kernel serves itself from a block device.
///
/// The numbers are those of `linux/magic.h` and of the sources of Linux (`ntfs3`). The list is needed because
/// network file systems can have device numbers that look like those of disks (Lustre).
const ON_DISK: [(&[u8], u64); 14] = [
    (b"ext2", 0xef53),
    (b"ext3", 0xef53),
    (b"ext4", 0xef53),
    (b"xfs", 0x5846_5342),
    (b"f2fs", 0xf2f5_2010),
    (b"vfat", 0x4d44),
    (b"msdos", 0x4d44),
    (b"exfat", 0x2011_bab0),
    (b"ntfs3", 0x7366_746e),
    (b"iso9660", 0x9660),
    (b"udf", 0x1501_3346),
    (b"squashfs", 0x7371_7368),
    (b"erofs", 0xe0f5_e1e2),
    (b"jfs", 0x3153_464a),
];

/// The names and magic numbers of file systems that the kernel serves itself from several block devices.
///
/// The numbers are those of `linux/magic.h` and of bcachefs (`bcachefs_format.h`).
const ON_DISKS: [(&[u8], u64, ManyDevices); 2] = [
    (b"bcachefs", 0xca45_1a4e, ManyDevices::Bcachefs),
    (b"btrfs", 0x9123_683e, ManyDevices::Btrfs),
];

/// The maximum number of bytes of `/proc/self/mountinfo` that are read: enough for 5,000 mounts with
/// names of 200 bytes. A user who may mount FUSE file systems can make the list as long as 47 MB.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// The server of the files of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// The kernel itself.
    Kernel,
    /// The kernel itself if the files are on a local block device. This is for the file systems of [`ON_DISK`],
    /// and those that are not mounted in this process's mount namespace.
    KernelOnDisk,
    /// The kernel itself if all block devices of the file system are local.
    KernelOnDisks(ManyDevices),
    /// Another process or machine (FUSE, network file systems), or an unknown server.
    Others,
}

/// The block devices of a file system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Devices {
    /// The device with this major and minor number.
    One(u32, u32),
    /// Those of the file system with this name in `/sys/fs`.
    Many(ManyDevices, String),
}

impl Devices {
    /// Looks these devices up in `/sys`, which another user can delay.
    fn are_local(&self) -> bool {
        let all = BlockDevices::of_this_machine();
        match self {
            Self::One(major, minor) => all.is_local(*major, *minor),
            Self::Many(kind, name) => all.are_local_in(*kind, name),
        }
    }
}

/// The look-ups that did not end in time, which are not repeated until they end. Without this, each message
/// would wait again.
static HUNG: Mutex<BTreeMap<Devices, Hung>> = Mutex::new(BTreeMap::new());

/// The look-ups of block devices for some files, such as those of one message. All of them together take at
/// most two seconds, and each device is looked up once. If an earlier look-up of the same device still hangs,
/// they take no time.
#[derive(Debug)]
pub(crate) struct DeviceLookUps {
    /// The end of the two seconds, which begin with the first look-up.
    deadline: Option<Instant>,
    found: BTreeMap<Devices, bool>,
    look: fn(&Devices) -> bool,
}

impl DeviceLookUps {
    pub(crate) fn new() -> Self {
        Self::with_look(Devices::are_local)
    }

    pub(crate) fn with_look(look: fn(&Devices) -> bool) -> Self {
        Self { deadline: None, found: BTreeMap::new(), look }
    }

    /// Returns `false` as well if the look-up does not end in time.
    fn are_local(&mut self, devices: Devices) -> bool {
        let deadline = *self.deadline.get_or_insert_with(bounded::deadline);
        let look = self.look;
        *self.found.entry(devices).or_insert_with_key(|devices| look_up(devices, deadline, look))
    }
}

fn look_up(devices: &Devices, deadline: Instant, look: fn(&Devices) -> bool) -> bool {
    let hung = || HUNG.lock().unwrap_or_else(PoisonError::into_inner);
    if hung().get(devices).is_some_and(|look_up| !look_up.has_ended()) {
        return false;
    }
    let asked = devices.clone();
    let Some(looking) = bounded::begin_until(deadline, move || look(&asked)) else { return false };
    looking.wait().unwrap_or_else(|look_up| {
        let mut hung = hung();
        hung.retain(|_, earlier| !earlier.has_ended());
        hung.insert(devices.clone(), look_up);
        false
    })
}

/// The place of a file, as far as that is known without a look-up of block devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A regular file that the kernel serves itself without a block device.
    Memory,
    /// A regular file that the kernel serves itself if its block devices are local.
    Disk,
    /// All other files.
    Other,
}

/// Returns the place of a file. Neither another process nor another user can delay this call.
pub(crate) fn place(file: impl AsFd) -> Place {
    match answers(file.as_fd()) {
        Ok((Answers::Kernel, _)) => Place::Memory,
        Ok((Answers::KernelOnDisk | Answers::KernelOnDisks(_), _)) => Place::Disk,
        Ok((Answers::Others, _)) | Err(_) => Place::Other,
    }
}

/// Returns `true` if the kernel serves a regular file itself, so that neither accesses nor closes of it
/// wait for another process or machine. For other kinds of files it returns `false`. If another user
/// delays the look-up of block devices in `/sys`, it returns `false` after two seconds.
///
/// It returns `true` for:
/// * shared memory and the hugetlb pool,
/// * files of overlayfs, ramfs, tmpfs and ZFS that are mounted in this process's mount namespace,
/// * files of bcachefs (Linux 6.9) and Btrfs that are mounted in this process's mount namespace, if all
///   block devices of the file system are local,
/// * files on a local block device, if their file system is ext2 to ext4, XFS, F2FS, FAT, exFAT, NTFS,
///   ISO 9660, UDF, SquashFS, EROFS or JFS, or is not mounted in this process's mount namespace.
///
/// A block device is local if it is hardware, virtio, or memory, or if all devices below it are: those of
/// a partition, or of device mapper, RAID or bcache. Loop devices, NBD, ublk and DRBD are not local. No
/// device is if `/sys` is not mounted.
///
/// It returns `false` for FUSE, network file systems and `/proc`, whose `/proc/PID/mem` may wait for a
/// page-fault handler (`userfaultfd(2)`), and if the kernel does not report the mount of a file
/// (`STATX_MNT_ID`, Linux 5.8).
///
/// If the kernel does not have `statmount(2)` (Linux 6.8) or refuses it, the mount is looked up in
/// `/proc/self/mountinfo`. It returns `false` if the mount is not in the first MiB of that list.
///
/// It does not detect these cases, for which only root can mount the file system: a disk that another
/// machine serves (iSCSI, NVMe over fabrics, RBD); a loop device below ZFS or overlayfs, or one that holds
/// only the journal of a file system; and, in another mount namespace, FUSE on a block device (`fuseblk`)
/// or a network file system whose device number is that of a local disk.
///
/// # Errors
/// Those of `statx(2)`, and of reading `/proc/self/fd` and `/proc/self/mountinfo`.
pub fn is_answered_by_kernel(file: impl AsFd) -> io::Result<bool> {
    is_answered(file.as_fd(), &mut DeviceLookUps::new())
}

fn is_answered(file: BorrowedFd<'_>, look_ups: &mut DeviceLookUps) -> io::Result<bool> {
    let devices = match answers(file)? {
        (Answers::Kernel, _) => return Ok(true),
        (Answers::KernelOnDisk, (major, minor)) => Devices::One(major, minor),
        (Answers::KernelOnDisks(kind), _) => match block_device::name_of(kind, file) {
            Ok(name) => Devices::Many(kind, name),
            Err(_) => return Ok(false),
        },
        (Answers::Others, _) => return Ok(false),
    };
    Ok(look_ups.are_local(devices))
}

/// Returns the server of a file, and the number of its device. Files that are not regular have
/// [`Answers::Others`].
fn answers(file: BorrowedFd<'_>) -> io::Result<(Answers, (u32, u32))> {
    // Only shared memory and the hugetlb pool have seals.
    if memfd::seals(file).is_ok() {
        return Ok((Answers::Kernel, (0, 0)));
    }
    let status = status(file, StatxFlags::TYPE | statmount::UNIQUE_ID)?;
    let device = (status.stx_dev_major, status.stx_dev_minor);
    let is_regular = FileType::from_raw_mode(status.stx_mode.into()) == FileType::RegularFile;
    if !is_regular || !name(file)?.starts_with(b"/") {
        return Ok((Answers::Others, device));
    }
    let answers = match by_mount(file, &status)? {
        // File systems without a block device have device numbers with the major number 0.
        Answers::KernelOnDisk if device.0 == 0 => Answers::Others,
        answers => answers,
    };
    Ok((answers, device))
}

/// Returns the server of the files of the mount of `file`.
fn by_mount(file: BorrowedFd<'_>, status: &Statx) -> io::Result<Answers> {
    if StatxFlags::from_bits_retain(status.stx_mask).contains(statmount::UNIQUE_ID) {
        match statmount::magic(status.stx_mnt_id) {
            Ok(magic) => return Ok(by_magic(magic)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Answers::KernelOnDisk);
            }
            // A seccomp filter or a security module refuses the call, or the mount is not below the root
            // of this process; then the list does not have it either.
            Err(_) => {}
        }
    }
    by_list(file)
}

fn by_magic(magic: u64) -> Answers {
    by_type(|_, known| known == magic)
}

fn by_name(name: &[u8]) -> Answers {
    by_type(|known, _| known == name)
}

/// Returns the server of the files of a file system of the type for which `is_it` returns `true`.
fn by_type(is_it: impl Fn(&[u8], u64) -> bool) -> Answers {
    if LOCAL.iter().any(|(name, magic)| is_it(name, *magic)) {
        Answers::Kernel
    } else if ON_DISK.iter().any(|(name, magic)| is_it(name, *magic)) {
        Answers::KernelOnDisk
    } else {
        let several = ON_DISKS.iter().find(|(name, magic, _)| is_it(name, *magic));
        several.map_or(Answers::Others, |(.., kind)| Answers::KernelOnDisks(*kind))
    }
}

/// Returns the same as [`by_mount`], from the list of all mounts.
fn by_list(file: BorrowedFd<'_>) -> io::Result<Answers> {
    let status = status(file, StatxFlags::MNT_ID)?;
    if !StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::MNT_ID) {
        return Ok(Answers::Others);
    }
    let mounts = BufReader::new(File::open("/proc/self/mountinfo")?);
    listed(status.stx_mnt_id, mounts.take(LIST_BYTES_MAX))
}

/// Returns the server of the files of the mount with the ID `mount`, from a list in the format of
/// `proc_pid_mountinfo(5)`.
fn listed(mount: u64, mut mounts: Take<impl BufRead>) -> io::Result<Answers> {
    let mount = mount.to_string();
    // Mount points can have any bytes.
    let mut line = Vec::new();
    // A line that ends at the limit may be cut off.
    while mounts.read_until(b'\n', &mut line)? > 0 && mounts.limit() > 0 {
        // Split only at spaces: a mount point can contain a carriage return.
        let mut words = line.strip_suffix(b"\n").unwrap_or(&line).split(|byte| *byte == b' ');
        if words.next() == Some(mount.as_bytes()) {
            let kind = words.skip_while(|word| *word != b"-").nth(1);
            return Ok(kind.map_or(Answers::Others, by_name));
        }
        line.clear();
    }
    Ok(if mounts.limit() > 0 { Answers::KernelOnDisk } else { Answers::Others })
}

/// Returns `true` if another process, or an open file, has a lock of `fcntl(2)` on a file, or if the
/// kernel does not report that. `close(2)` walks all of these locks. Call this only for files for which
/// [`is_answered_by_kernel`] or [`is_disposable`] returns `true`, because FUSE would ask its server.
pub fn has_record_locks(file: impl AsFd) -> bool {
    let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    // A lock of the whole file by this process conflicts with every other lock, and the kernel returns
    // the first.
    let mut lock = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open, and the kernel writes one structure of this type.
    let asked = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    asked != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Returns `true` if a file is known to be of a kind that [`crate::disposal`] closes without waiting:
/// every kind except regular files, so also eventfds and DMA-bufs. This call does not wait.
pub fn is_disposable(file: impl AsFd) -> bool {
    let file = file.as_fd();
    match file_type(file) {
        // Some versions of Linux report anonymous inodes as regular files.
        Ok(FileType::RegularFile) => name(file).is_ok_and(|name| !name.starts_with(b"/")),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Returns `true` if a descriptor that an untrusted process sent can be used like the server's own,
/// without waiting for another process or machine. These are memory, regular files for which
/// [`is_answered_by_kernel`] returns `true`, both without record locks (`fcntl(2)`), eventfds, and
/// DMA-bufs. Returns `false` if the kernel does not report this.
///
/// `close(2)` walks the list of all record locks of a file, whose length another process controls. That
/// process can set locks after this call, and locks of `flock(2)` are not detected. So memory and
/// regular files, too, must be closed by [`crate::closing`].
///
/// Eventfds and DMA-bufs must be closed by [`crate::closing`] as well: the last close of a pollable file
/// waits for the lock of each epoll that lists it. A thread that waits for an epoll holds the lock while
/// it writes events to memory, for ever if that memory is a mapped FUSE file.
///
/// It returns `false` for all other kinds, because some of them block: sockets, terminals, devices,
/// FIFOs; and for DMA-bufs on the few stable releases of Linux from June 2025 that report them as
/// regular files.
pub fn may_be_passed_on(file: impl AsFd) -> bool {
    may_be_passed_on_with(file, &mut DeviceLookUps::new())
}

/// Returns the same as [`may_be_passed_on`] for one of several files.
pub(crate) fn may_be_passed_on_with(file: impl AsFd, look_ups: &mut DeviceLookUps) -> bool {
    let file = file.as_fd();
    match file_type(file) {
        Ok(FileType::RegularFile) if is_answered(file, look_ups).unwrap_or(false) => {
            !has_record_locks(file)
        }
        // Some versions of Linux report anonymous inodes as regular files.
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

/// Calls `statx(2)` such that the file system does not ask another process or machine.
fn status(file: BorrowedFd<'_>, wanted: StatxFlags) -> io::Result<Statx> {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(file, "", how, wanted)?)
}

/// Returns the name of a file in `/proc/self/fd`. The name of an anonymous inode does not begin with
/// `/`, except for DMA-bufs.
///
/// Never read `/proc/self/fdinfo` for a file of another process. It lists each record lock of the file,
/// so the reader's memory and time depend on how many locks that process has set. Also, epoll and other
/// files take a lock for it, which a process with the same file can hold for ever.
fn name(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.into_bytes())
}

/// Returns `true` for a DMA-buf. It checks the file system, because any process can choose the name of a
/// file.
///
/// `file` must not have a file type. Files of FUSE and of network file systems have one, and
/// `fstatfs(2)` would ask their server. For a DMA-buf the kernel answers from memory.
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
    #[cfg(not(miri))]
    fn look_ups_of_several_files_have_one_deadline() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut look_ups = DeviceLookUps::with_look(|_| {
            COUNT.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_secs(5));
            true
        });
        let begin = Instant::now();
        for _ in 0..2 {
            assert!((0..50).all(|number| !look_ups.are_local(Devices::One(1, number))));
        }
        let most = std::time::Duration::from_secs(30);
        assert!(begin.elapsed() < most, "each of them waits: {:?}", begin.elapsed());
        assert!(COUNT.load(Ordering::Relaxed) <= 1);
    }

    #[test]
    #[cfg(not(miri))]
    fn a_look_up_that_hangs_is_not_repeated_until_it_ends() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
        use std::time::Duration;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static IS_HELD: AtomicBool = AtomicBool::new(true);
        let is_local = || {
            let mut look_ups = DeviceLookUps::with_look(|_| {
                COUNT.fetch_add(1, Ordering::Relaxed);
                while IS_HELD.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                true
            });
            look_ups.are_local(Devices::One(2, 0))
        };
        assert!(!is_local());
        let begin = Instant::now();
        assert!((0..20).all(|_| !is_local()));
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        assert_eq!(COUNT.load(Ordering::Relaxed), 1);
        IS_HELD.store(false, Ordering::Relaxed);
        while !is_local() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is not looked up again");
        }
    }

    #[test]
    fn memory_of_a_process_may_wait_for_that_process() {
        assert!(!is_answered_by_kernel(File::open("/proc/self/mem").unwrap()).unwrap());
    }

    #[test]
    fn only_known_file_systems_are_local() {
        for (name, magic, expected) in [
            ("ext4", 0xef53, Answers::KernelOnDisk),
            ("nfs4", 0x6969, Answers::Others),
            ("lustre", 0x0bd0_0bd0, Answers::Others),
            ("xfs", 0x5846_5342, Answers::KernelOnDisk),
            ("fuse", 0x6573_5546, Answers::Others),
            ("fuseblk", 0x6573_5546, Answers::Others),
            ("fuse.sshfs", 0x6573_5546, Answers::Others),
            ("fuseblk.ntfs-3g", 0x6573_5546, Answers::Others),
            ("virtiofs", 0x6573_5546, Answers::Others),
            ("bcachefs", 0xca45_1a4e, Answers::KernelOnDisks(ManyDevices::Bcachefs)),
            ("btrfs", 0x9123_683e, Answers::KernelOnDisks(ManyDevices::Btrfs)),
            ("ramfs", 0x8584_58f6, Answers::Kernel),
            ("overlay", 0x794c_7630, Answers::Kernel),
        ] {
            assert_eq!(by_name(name.as_bytes()), expected, "{name}");
            assert_eq!(by_magic(magic), expected, "{name}");
        }
    }

    const MOUNTS: &[u8] = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        30 27 0:40 / /a\\040b\r-\rtmpfs rw shared:1 - fuse.sshfs me@there: rw,user_id=1\n\
        31 27 0:41 /@home /not-utf-8-\xff rw - btrfs /dev/vdb rw,subvol=/@home\n\
        32 27 0:42 / /t rw - tmpfs\n";

    #[test]
    fn the_type_of_a_file_system_is_found_in_the_list_of_mounts() {
        let within = |mount, bytes| listed(mount, MOUNTS.take(bytes)).unwrap();
        for (mount, expected) in [
            (27, Answers::KernelOnDisk),
            (30, Answers::Others),
            (31, Answers::KernelOnDisks(ManyDevices::Btrfs)),
            (32, Answers::Kernel),
            // Not in the list, because it is mounted in another mount namespace.
            (3, Answers::KernelOnDisk),
        ] {
            assert_eq!(within(mount, LIST_BYTES_MAX), expected, "{mount}");
        }
        // Mounts beyond the limit, or cut off by it, are unknown.
        let len_bytes = MOUNTS.len() as u64;
        for bytes in [0, 1, len_bytes - 80, len_bytes - 3, len_bytes] {
            assert_eq!(within(32, bytes), Answers::Others, "{bytes}");
            assert_eq!(within(3, bytes), Answers::Others, "{bytes}");
        }
        assert_eq!(within(32, len_bytes + 1), Answers::Kernel);
    }
}
