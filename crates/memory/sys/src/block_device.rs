//! Detecting block devices that another process can serve, from the devices below them in `/sys`.
//!
//! ```text
//!   /sys/dev/block/259:3              ─► /sys/devices/virtual/block/loop0/loop0p1, a partition
//!   /sys/devices/…/block/dm-0/slaves  the devices below dm-0: dm, md and bcache list theirs
//!   /sys/fs/btrfs/UUID/devices        the devices of a file system; bcachefs has dev-0/block, …
//! ```
//!
//! Hardware and virtio devices are in the folders of their buses. Devices that exist in software only are
//! in `/sys/devices/virtual/block`: loop devices, whose file can be on FUSE, and NBD, ublk and DRBD, which a
//! process or another machine serves.
#![expect(unsafe_code, reason = "ioctls that return the name of a file system")]

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::ioctl::opcode;

use crate::ioctl::exchange;

/// The maximum number of devices that are looked at, so that a stack of devices cannot take long.
const DEVICES_MAX: usize = 256;

/// A file system on several block devices, which has no device number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ManyDevices {
    Bcachefs,
    Btrfs,
}

/// The block devices that the kernel lists in a folder like `/sys`.
pub(crate) struct BlockDevices {
    sys: PathBuf,
}

/// Returns the name in `/sys/fs` of the file system of `file`.
pub(crate) fn name_of(kind: ManyDevices, file: BorrowedFd<'_>) -> io::Result<String> {
    match kind {
        ManyDevices::Bcachefs => bcachefs_name(file),
        ManyDevices::Btrfs => btrfs_name(file),
    }
}

impl BlockDevices {
    /// Returns the block devices of this machine.
    pub(crate) fn of_this_machine() -> Self {
        Self { sys: "/sys".into() }
    }

    /// Returns `true` if the block device with this number and all devices below it are hardware, virtio
    /// or memory. It returns `false` if they cannot be found.
    pub(crate) fn is_local(&self, major: u32, minor: u32) -> bool {
        let device = self.sys.join(format!("dev/block/{major}:{minor}"));
        self.are_local([device].into_iter())
    }

    /// Returns the same as [`is_local`](Self::is_local) for all devices of the file system with this name in
    /// `/sys/fs/btrfs` or `/sys/fs/bcachefs`.
    pub(crate) fn are_local_in(&self, kind: ManyDevices, name: &str) -> bool {
        let devices = match kind {
            ManyDevices::Bcachefs => {
                children(&self.sys.join("fs/bcachefs").join(name)).map(|all| {
                    let is_device = |path: &PathBuf| {
                        path.file_name()
                            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"dev-"))
                    };
                    all.into_iter().filter(is_device).map(|device| device.join("block")).collect()
                })
            }
            ManyDevices::Btrfs => children(&self.sys.join("fs/btrfs").join(name).join("devices")),
        };
        devices.is_ok_and(|devices| !devices.is_empty() && self.are_local(devices.into_iter()))
    }

    /// Returns `true` if the devices of all these links are local, as [`is_local`](Self::is_local).
    fn are_local(&self, links: impl Iterator<Item = PathBuf>) -> bool {
        let mut links: Vec<PathBuf> = links.collect();
        let mut left = DEVICES_MAX;
        while let Some(link) = links.pop() {
            let Some(rest) = left.checked_sub(1) else { return false };
            left = rest;
            let Ok(device) = target(&link) else { return false };
            let is_partition = device.join("partition").exists();
            let whole = if is_partition { device.parent() } else { Some(&*device) };
            // Every device that is not a partition has this folder.
            let Some(whole) = whole else { return false };
            let Ok(below) = children(&whole.join("slaves")) else { return false };
            if below.is_empty() && !self.has_hardware_or_memory(whole) {
                return false;
            }
            links.extend(below);
        }
        true
    }

    /// Returns `true` for a device on a bus, and for one that is memory (`brd`, `zram`). `device` has no
    /// devices below it.
    fn has_hardware_or_memory(&self, device: &Path) -> bool {
        let Ok(sys) = target(&self.sys) else { return false };
        let Ok(name) = device.strip_prefix(sys.join("devices/virtual/block")) else { return true };
        let name =
            name.to_str().unwrap_or_default().trim_end_matches(|at: char| at.is_ascii_digit());
        match name {
            "ram" => true,
            // It can write pages to a block device, which the kernel does not list in `slaves`.
            "zram" => match fs::read_to_string(device.join("backing_dev")) {
                Ok(backing) => backing.trim_end() == "none",
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            },
            _ => false,
        }
    }
}

/// Returns the path of the folder at which a path ends.
///
/// `fs::canonicalize` makes system calls that devices do not need otherwise (`docs/system-calls.md`).
fn target(path: &Path) -> io::Result<PathBuf> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let folder = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let link = format!("/proc/self/fd/{}", folder.as_raw_fd());
    Ok(OsString::from_vec(rustix::fs::readlink(link, Vec::new())?.into_bytes()).into())
}

/// Returns the paths in a folder.
fn children(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|child| child.map(|child| child.path())).collect()
}

/// Returns the UUID of a Btrfs file system, as in `/sys/fs/btrfs`. Since Linux 5.8 at the latest, this
/// takes no locks. The caller has checked that the file is on Btrfs.
fn btrfs_name(file: BorrowedFd<'_>) -> io::Result<String> {
    /// `struct btrfs_ioctl_fs_info_args` of `linux/btrfs.h`: its UUID is at byte 16.
    type Info = [u64; 128];
    /// `BTRFS_IOC_FS_INFO`.
    const REQUEST: libc::Ioctl = opcode::read::<Info>(0x94, 31) as libc::Ioctl;
    let mut info: Info = [0; 128];
    // SAFETY: the kernel reads and writes one structure of this length.
    unsafe { exchange(file, REQUEST, info.as_mut_ptr().cast()) }?;
    let hex: String =
        [info[2], info[3]].map(|half| format!("{:016x}", u64::from_be(half))).concat();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// Returns the name of a bcachefs file system in `/sys/fs/bcachefs`. The kernel copies it from memory
/// (Linux 6.9). The caller has checked that the file is on bcachefs.
fn bcachefs_name(file: BorrowedFd<'_>) -> io::Result<String> {
    /// `struct fs_sysfs_path` of `linux/fs.h`: a length, then `bcachefs/UUID`.
    type SysfsPath = [u8; 129];
    /// `FS_IOC_GETFSSYSFSPATH`.
    const REQUEST: libc::Ioctl = opcode::read::<SysfsPath>(0x15, 1) as libc::Ioctl;
    let mut path: SysfsPath = [0; 129];
    // SAFETY: the kernel writes one structure of this length.
    unsafe { exchange(file, REQUEST, path.as_mut_ptr().cast()) }?;
    let [len, path @ ..] = path;
    let path = path.get(..usize::from(len)).and_then(|path| str::from_utf8(path).ok());
    let name = path.and_then(|path| path.strip_prefix("bcachefs/"));
    name.map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder like `/sys`.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn devices(&self) -> BlockDevices {
            BlockDevices { sys: self.0.path().into() }
        }

        /// Adds a device on `below`, whose names begin in `devices`.
        fn add(&self, number: &str, device: &str, below: &[&str]) {
            let path = self.0.path().join("devices").join(device);
            fs::create_dir_all(path.join("slaves")).unwrap();
            for (nth, below) in below.iter().enumerate() {
                self.link(below, &format!("devices/{device}/slaves/{nth}"));
            }
            self.link(device, &format!("dev/block/{number}"));
        }

        fn add_partition(&self, number: &str, device: &str) {
            let path = self.0.path().join("devices").join(device);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("partition"), "1\n").unwrap();
            self.link(device, &format!("dev/block/{number}"));
        }

        /// Makes a symbolic link to a device.
        fn link(&self, device: &str, at: &str) {
            let at = self.0.path().join(at);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            symlink(self.0.path().join("devices").join(device), at).unwrap();
        }
    }

    const DISK: &str = "pci0000:00/0000:00:02.0/virtio1/block/vda";
    const LOOP: &str = "virtual/block/loop0";

    #[test]
    fn disks_and_memory_are_local_but_not_other_devices_in_software() {
        let sys = Sys::new();
        sys.add("254:0", DISK, &[]);
        sys.add_partition("254:1", &format!("{DISK}/vda1"));
        sys.add("259:0", "virtual/nvme-subsystem/nvme-subsys0/nvme0n1", &[]);
        sys.add("1:0", "virtual/block/ram0", &[]);
        sys.add("253:0", "virtual/block/zram0", &[]);
        let devices = sys.devices();
        for (major, minor) in [(254, 0), (254, 1), (259, 0), (1, 0), (253, 0)] {
            assert!(devices.is_local(major, minor), "{major}:{minor}");
        }
        let swap = sys.0.path().join("devices/virtual/block/zram0/backing_dev");
        fs::write(&swap, "none\n").unwrap();
        assert!(devices.is_local(253, 0));
        fs::write(&swap, "/dev/loop0\n").unwrap();
        assert!(!devices.is_local(253, 0));
        for name in ["loop0", "nbd0", "ublkb0", "drbd0", "ramp", "zram0x"] {
            let sys = Sys::new();
            sys.add("7:0", &format!("virtual/block/{name}"), &[]);
            sys.add_partition("259:1", &format!("virtual/block/{name}/{name}p1"));
            assert!(!sys.devices().is_local(7, 0), "{name}");
            assert!(!sys.devices().is_local(259, 1), "a partition of {name}");
        }
    }

    #[test]
    fn a_device_is_local_only_if_all_devices_below_it_are() {
        let sys = Sys::new();
        sys.add("254:0", DISK, &[]);
        sys.add_partition("254:1", &format!("{DISK}/vda1"));
        sys.add("7:0", LOOP, &[]);
        sys.add_partition("259:1", &format!("{LOOP}/loop0p1"));
        let (disk, looped) = (format!("{DISK}/vda1"), format!("{LOOP}/loop0p1"));
        sys.add("9:0", "virtual/block/md0", &[DISK, &disk]);
        sys.add("252:0", "virtual/block/dm-0", &["virtual/block/md0"]);
        sys.add("9:1", "virtual/block/md1", &[DISK, &looped]);
        sys.add_partition("259:2", "virtual/block/md1/md1p1");
        sys.add("252:1", "virtual/block/dm-1", &["virtual/block/md1/md1p1"]);
        sys.add("252:2", "virtual/block/dm-2", &["virtual/block/dm-0", "virtual/block/dm-1"]);
        // A target without devices, such as `zero`.
        sys.add("252:3", "virtual/block/dm-3", &[]);
        let devices = sys.devices();
        for (major, minor) in [(9, 0), (252, 0)] {
            assert!(devices.is_local(major, minor), "{major}:{minor}");
        }
        for (major, minor) in [(9, 1), (259, 2), (252, 1), (252, 2), (252, 3)] {
            assert!(!devices.is_local(major, minor), "{major}:{minor}");
        }
    }

    #[test]
    fn devices_that_cannot_be_found_are_not_local() {
        let sys = Sys::new();
        let devices = sys.devices();
        assert!(!devices.is_local(254, 0));
        sys.link(DISK, "dev/block/254:0");
        assert!(!devices.is_local(254, 0), "a broken link");
        fs::create_dir_all(sys.0.path().join("devices").join(DISK)).unwrap();
        assert!(!devices.is_local(254, 0), "a device without slaves");
        for kind in [ManyDevices::Btrfs, ManyDevices::Bcachefs] {
            assert!(!devices.are_local_in(kind, "missing"));
            assert!(name_of(kind, fs::File::open("/dev/null").unwrap().as_fd()).is_err());
        }
    }

    #[test]
    fn a_loop_of_devices_ends() {
        let sys = Sys::new();
        sys.add("252:0", "virtual/block/dm-0", &["virtual/block/dm-1"]);
        sys.add("252:1", "virtual/block/dm-1", &["virtual/block/dm-0"]);
        assert!(!sys.devices().is_local(252, 0));
    }

    #[test]
    fn a_file_system_is_local_only_if_all_its_devices_are() {
        let sys = Sys::new();
        sys.add("254:0", DISK, &[]);
        sys.add("7:0", LOOP, &[]);
        let devices = sys.devices();
        let (btrfs, bcachefs) = (ManyDevices::Btrfs, ManyDevices::Bcachefs);
        fs::create_dir_all(sys.0.path().join("fs/btrfs/a/devices")).unwrap();
        fs::create_dir_all(sys.0.path().join("fs/bcachefs/a/options")).unwrap();
        assert!(!devices.are_local_in(btrfs, "a") && !devices.are_local_in(bcachefs, "a"));
        sys.link(DISK, "fs/btrfs/a/devices/vda");
        sys.link(DISK, "fs/bcachefs/a/dev-0/block");
        assert!(devices.are_local_in(btrfs, "a") && devices.are_local_in(bcachefs, "a"));
        sys.link(LOOP, "fs/btrfs/a/devices/loop0");
        sys.link(LOOP, "fs/bcachefs/a/dev-1/block");
        assert!(!devices.are_local_in(btrfs, "a") && !devices.are_local_in(bcachefs, "a"));
        // A device that has been removed leaves a folder without a link.
        fs::remove_file(sys.0.path().join("fs/bcachefs/a/dev-1/block")).unwrap();
        assert!(!devices.are_local_in(bcachefs, "a"));
    }
}
