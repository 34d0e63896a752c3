//! Mounts the kernel's own file systems.

use std::fs;

use rustix::mount::{MountFlags, mount};

use super::{Error, Result};

/// Type and mount point, in mount order.
const KERNEL_FILE_SYSTEMS: [(&str, &str); 7] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("debugfs", "/sys/kernel/debug"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("cgroup2", "/sys/fs/cgroup"),
];

/// Mounts the file systems that a program expects on Linux.
pub(super) fn mount_kernel_file_systems() -> Result<()> {
    for (kind, at) in KERNEL_FILE_SYSTEMS {
        mount_at(kind, kind, at, MountFlags::empty())?;
    }
    Ok(())
}

/// Mounts `source` on `at`, and creates `at` if necessary.
pub(super) fn mount_at(source: &str, kind: &str, at: &str, flags: MountFlags) -> Result<()> {
    fs::create_dir_all(at).map_err(Error::system("creating", at))?;
    mount(source, at, kind, flags, None)
        .map_err(Error::system("mounting", format!("{source} ({kind}) on {at}")))
}
