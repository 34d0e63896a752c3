//! The disk and file system below a folder.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Serialize;

/// A disk and its file system.
#[derive(Debug, Serialize)]
pub(crate) struct Disk {
    /// The type, as `mount` prints it.
    pub(crate) file_system: String,
    options: String,
    /// The block device's name; unknown for a file system without a block device.
    device: Option<String>,
    model: Option<String>,
    rotational: Option<bool>,
    scheduler: Option<String>,
    #[serde(skip)]
    pub(crate) free_bytes: u64,
}

impl Disk {
    /// Returns `true` if the "disk" is memory, which has no cold reads.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.file_system.as_str(), "tmpfs" | "ramfs" | "devtmpfs" | "rootfs" | "hugetlbfs")
    }
}

/// Returns the disk and the file system that contain `folder`.
pub(crate) fn disk_of(folder: &Path) -> io::Result<Disk> {
    let device = fs::metadata(folder)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let resolved = fs::canonicalize(folder)?;
    let (file_system, options) = mount_of(&mounts, &resolved)
        .ok_or_else(|| io::Error::other("the folder is below no mount"))?;
    let room = rustix::fs::statvfs(folder)?;
    let block = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    // A partition uses the queue of its disk.
    let queue = [block.join("queue"), block.join("../queue")].into_iter().find(|at| at.is_dir());
    let text = |path: Option<std::path::PathBuf>| {
        let text = fs::read_to_string(path?).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let in_queue = |name: &str| text(queue.as_ref().map(|queue| queue.join(name)));
    Ok(Disk {
        file_system,
        options,
        device: fs::canonicalize(&block)
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
        model: text(Some(block.join("device/model")))
            .or_else(|| text(Some(block.join("../device/model")))),
        rotational: in_queue("rotational").map(|flag| flag == "1"),
        scheduler: in_queue("scheduler"),
        free_bytes: room.f_bavail * room.f_frsize,
    })
}

/// Returns the type and the options of the mount that contains `path`: the last one with the longest
/// mount point, because a later mount covers an earlier one.
fn mount_of(mounts: &str, path: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, (String, String))> = None;
    for line in mounts.lines() {
        // 36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/root rw,errors=continue
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(4);
        let (Some(point), Some(options)) = (left.next(), left.next()) else { continue };
        let Some(kind) = right.split(' ').next() else { continue };
        let length = point.len();
        if path.starts_with(point) && best.as_ref().is_none_or(|(longest, _)| length >= *longest) {
            best = Some((length, (kind.to_owned(), options.to_owned())));
        }
    }
    best.map(|(_, mount)| mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_is_used() {
        let mounts = "1 0 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      2 1 0:21 / /run rw,nosuid - tmpfs tmpfs rw\n\
                      3 2 0:22 / /run/disk rw,noatime - xfs /dev/vdb rw\n";
        let kind = |path: &str| mount_of(mounts, Path::new(path)).unwrap().0;
        assert_eq!(kind("/home"), "ext4");
        assert_eq!(kind("/run/x"), "tmpfs");
        assert_eq!(kind("/run/disk/a"), "xfs");
        assert_eq!(kind("/running"), "ext4");
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn memory_file_systems_are_recognised() {
        let proc = disk_of(Path::new("/proc")).unwrap();
        assert_eq!(proc.file_system, "proc");
        assert!(!proc.is_memory());
        let shm = Disk { file_system: "tmpfs".to_owned(), ..proc };
        assert!(shm.is_memory());
    }
}
