//! Mount namespaces, in which a process without privileges may mount a tmpfs.
#![expect(unsafe_code, reason = "unshares namespaces of the calling thread")]

use std::fs;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;

/// The namespaces that [`enter`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// A mount namespace. The process had the privilege to make it.
    Mounts,
    /// A mount namespace in a new user namespace, in which only this user and group are mapped.
    UserAndMounts,
}

/// Returns the name of this process's user namespace.
///
/// # Errors
/// Those of reading `/proc/self/ns/user`.
pub fn user_namespace() -> io::Result<PathBuf> {
    fs::read_link("/proc/self/ns/user")
}

/// Returns `true` if files of other users can have this owner: in a user namespace in which not all users are
/// mapped, their files have the owner `kernel.overflowuid`.
pub fn hides_owners_as(uid: u32) -> bool {
    hides(uid, "/proc/sys/kernel/overflowuid", "/proc/self/uid_map")
}

/// Returns `true` if files of other groups can have this group, as [`hides_owners_as`] does for owners.
pub fn hides_groups_as(gid: u32) -> bool {
    hides(gid, "/proc/sys/kernel/overflowgid", "/proc/self/gid_map")
}

fn hides(id: u32, overflow: &str, map: &str) -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let overflow: Option<u32> = read(overflow).trim().parse().ok();
    // Only the initial user namespace maps all IDs to themselves.
    let maps_all = read(map).split_whitespace().eq(["0", "0", "4294967295"]);
    !maps_all && overflow.is_none_or(|overflow| overflow == id)
}

/// Moves the calling thread into a mount namespace of its own, and, if that needs a privilege that it
/// does not have, into a user namespace of its own. Mounts that are made in it are not visible outside,
/// and mounts that are made outside later are visible in it. Threads and programs that the thread starts
/// are in the same namespaces.
///
/// The process should have only one thread.
///
/// # Errors
/// `EPERM` or `QuotaExceeded` if user namespaces are not permitted; `EINVAL` if the process has other threads;
/// those of `mount(2)`. After an error, the thread may be in a new user namespace, in which it has its
/// own user ID.
pub fn enter() -> io::Result<Entered> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let entered = match unshare(UnshareFlags::NEWNS) {
        Ok(()) => Entered::Mounts,
        Err(Errno::PERM) => {
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(|error| match error {
                Errno::NOSPC => io::Error::new(
                    io::ErrorKind::QuotaExceeded,
                    "the limit on user or mount namespaces is reached (user.max_user_namespaces, \
                     user.max_mnt_namespaces)",
                ),
                error => error.into(),
            })?;
            // Without this, an unprivileged process may not map its group.
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
            fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
            Entered::UserAndMounts
        }
        Err(error) => return Err(error.into()),
    };
    let propagation = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    rustix::mount::mount_change("/", propagation)?;
    Ok(entered)
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: neither flag gives the thread a descriptor table of its own, so descriptors stay valid.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}
