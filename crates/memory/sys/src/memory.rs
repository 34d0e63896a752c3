//! The memory that is available to this process: of the machine, of its control groups, and within its
//! own limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// The number of bytes that this process can take without swapping or being killed, according to each
/// limit; `None` if there is no such limit or it cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Available {
    /// `MemAvailable` of `/proc/meminfo`.
    pub machine_bytes: Option<u64>,
    /// The memory that the tightest control group of this process leaves, and the file with its limit.
    pub control_group: Option<(u64, PathBuf)>,
    /// The address space that `RLIMIT_AS` leaves.
    pub address_space_bytes: Option<u64>,
}

/// Returns the available memory.
pub fn available() -> Available {
    Available {
        machine_bytes: meminfo_bytes("MemAvailable:"),
        control_group: tightest_control_group(),
        address_space_bytes: getrlimit(Resource::As)
            .current
            .map(|limit| limit.saturating_sub(address_space_used_bytes().unwrap_or(0))),
    }
}

/// Returns the size in bytes of the largest file that this process may make (`RLIMIT_FSIZE`); `None` if
/// there is no limit. It applies to memfds, too. Exceeding it raises `SIGXFSZ`.
pub fn file_size_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Returns the number of bytes that this process may lock or register (`RLIMIT_MEMLOCK`); `None` if
/// there is no limit.
pub fn locked_memory_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Returns `true` if [`locked_memory_limit`] does not apply to this process, because it has
/// `CAP_IPC_LOCK` in the initial user namespace, where the kernel checks it when pages are pinned for a
/// device.
pub fn may_lock_without_limit() -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    locks_without_limit(&read("/proc/self/status"), &read("/proc/self/uid_map"))
}

/// Returns a field of `/proc/meminfo`, in bytes. `field` includes the colon.
pub fn meminfo_bytes(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

fn locks_without_limit(status: &str, uid_map: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Only the initial user namespace maps all user IDs to themselves.
    let has_all_users = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    has_all_users && effective.is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1)
}

fn address_space_used_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
    pages.checked_mul(crate::page_size_bytes() as u64)
}

fn tightest_control_group() -> Option<(u64, PathBuf)> {
    own_directories()
        .into_iter()
        .filter_map(|(directory, version)| left_in(&directory, version).ok())
        .min()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupVersion {
    V1,
    V2,
}

/// Returns the directory of this process's control group, version 2.
pub(crate) fn control_group_v2() -> Option<PathBuf> {
    let own = own_directories().into_iter().find(|(_, version)| *version == CgroupVersion::V2);
    own.map(|(directory, _)| directory)
}

fn own_directories() -> Vec<(PathBuf, CgroupVersion)> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    group_directories(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

/// Returns the directories of this process's memory control groups, from its own up to the root of each
/// mount.
fn group_directories(groups: &str, mounts: &str) -> Vec<(PathBuf, CgroupVersion)> {
    let mut directories = Vec::new();
    for mount in mounts.lines() {
        // 35 24 0:30 ROOT MOUNTPOINT OPTIONS ... - TYPE SOURCE SUPEROPTIONS (proc_pid_mountinfo(5))
        let Some((left, right)) = mount.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(3);
        let (Some(root), Some(point)) = (left.next(), left.next()) else { continue };
        let mut right = right.split(' ');
        let (kind, options) = (right.next(), right.nth(1).unwrap_or(""));
        let version = match kind {
            Some("cgroup2") => CgroupVersion::V2,
            Some("cgroup") if options.split(',').any(|o| o == "memory") => CgroupVersion::V1,
            _ => continue,
        };
        let own_path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let matches = match version {
                CgroupVersion::V2 => controllers.is_empty(),
                CgroupVersion::V1 => controllers.split(',').any(|c| c == "memory"),
            };
            matches.then_some(path)
        });
        let Some(own_path) = own_path else { continue };
        // In a container, its group is the root of the mount, but the path may be that of the host.
        let below = own_path.strip_prefix(root).unwrap_or(own_path).trim_start_matches('/');
        let own = Path::new(point).join(below);
        directories.extend(
            own.ancestors()
                .take_while(|directory| directory.starts_with(point))
                .map(|directory| (directory.to_owned(), version)),
        );
    }
    directories
}

/// Returns the bytes that a control group leaves, and the file with its limit. That is its limit minus
/// its usage; the page cache counts as free, also the part of it that the kernel calls active, because
/// the kernel drops it before it ends a process. Returns an error if there is no limit.
fn left_in(directory: &Path, version: CgroupVersion) -> io::Result<(u64, PathBuf)> {
    let (limit_name, used_name, cache_fields) = match version {
        CgroupVersion::V2 => ("memory.max", "memory.current", ["inactive_file ", "active_file "]),
        CgroupVersion::V1 => (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ["total_inactive_file ", "total_active_file "],
        ),
    };
    let number = |name: &str| {
        let text = fs::read_to_string(directory.join(name))?;
        text.trim().parse::<u64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    let limit = number(limit_name)?;
    let used = number(used_name)?;
    let stat = fs::read_to_string(directory.join("memory.stat"))?;
    let field = |name: &str| {
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<u64>().ok();
        stat.lines().find_map(value).unwrap_or(0)
    };
    let droppable = cache_fields.into_iter().map(field).fold(0, u64::saturating_add);
    // Version 1 writes "no limit" as a number close to 2^63.
    if limit >= 1 << 62 {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((limit.saturating_sub(used.saturating_sub(droppable)), directory.join(limit_name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory() {
        assert!(available().machine_bytes.unwrap() > 1 << 20);
        assert!(meminfo_bytes("NoSuchField:").is_none());
    }

    #[test]
    fn the_capability_to_lock_is_valid_in_the_initial_namespace_only() {
        let all = "Name:\tx\nCapEff:\t000001ffffffffff\n";
        let own = "         0          0 4294967295\n";
        assert!(locks_without_limit(all, own));
        assert!(locks_without_limit("CapEff:\t0000000000004000\n", own));
        assert!(!locks_without_limit("CapEff:\t0000000000003fff\n", own));
        assert!(!locks_without_limit(all, "         0     100000      65536\n"));
        assert!(!locks_without_limit("", ""));
    }

    #[test]
    fn groups_are_found_up_to_the_mount() {
        let mounts = "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                      36 24 0:31 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      37 24 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let groups = "4:memory:/docker/x/inner\n0::/user.slice/a.scope\n";
        let found = group_directories(groups, mounts);
        let paths: Vec<&str> = found.iter().map(|(path, _)| path.to_str().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "/sys/fs/cgroup/user.slice/a.scope",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/memory/inner",
                "/sys/fs/cgroup/memory",
            ]
        );
    }

    #[test]
    fn a_group_leaves_its_limit_minus_memory_that_cannot_be_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        write("memory.stat", "anon 300\ninactive_file 300\nactive_file 100\n");
        let (left, path) = left_in(dir.path(), CgroupVersion::V2).unwrap();
        assert_eq!((left, path), (700, dir.path().join("memory.max")));
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "700\n");
        write("memory.stat", "active_file 9\ntotal_inactive_file 300\ntotal_active_file 50\n");
        assert_eq!(left_in(dir.path(), CgroupVersion::V1).unwrap().0, 650);
        write("memory.max", "max\n");
        assert!(left_in(dir.path(), CgroupVersion::V2).is_err());
    }
}
