//! The owner, the group, the mode and the access control list of files and directories.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, XattrFlags};
use rustix::io::Errno;

/// The extended attribute with the access control list of a file.
const ACCESS_LIST: &str = "system.posix_acl_access";
/// The length of a list with five entries.
const ACCESS_LIST_LEN: usize = 4 + 5 * 8;

/// The owner, the group and the mode of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The user ID of the owner.
    pub owner: u32,
    /// The ID of the group.
    pub group: u32,
    /// The mode: permission bits, the sticky bit, and the set-ID bits.
    pub mode: u32,
}

/// The permissions of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The owner, the group and the mode.
    pub attributes: Attributes,
    /// The time of the last change of its status, in seconds and nanoseconds.
    pub changed: (i64, u32),
    /// `true` if there is an access control list. Then the bits of the group in the mode are the largest
    /// access of any entry of the list.
    pub has_list: bool,
}

/// Returns the attributes of a file or directory.
///
/// # Errors
/// Those of `fstat(2)`.
pub fn attributes(file: impl AsFd) -> io::Result<Attributes> {
    Ok(Attributes::of(&rustix::fs::fstat(file)?))
}

impl Attributes {
    fn of(status: &Stat) -> Self {
        Self { owner: status.st_uid, group: status.st_gid, mode: status.st_mode & 0o7777 }
    }
}

/// Sets the group of a file or directory.
///
/// # Errors
/// `EPERM` without CAP_CHOWN, except for a group of this process; `EINVAL` for an ID that the user
/// namespace does not have.
pub fn set_group(file: impl AsFd, group: u32) -> io::Result<()> {
    let group = Some(Gid::from_raw(group));
    Ok(rustix::fs::chownat(file, "", None, group, AtFlags::EMPTY_PATH)?)
}

/// Sets the permission bits of a file or directory.
///
/// # Errors
/// `EPERM` if it belongs to another user.
pub fn set_mode(file: impl AsFd, mode: u32) -> io::Result<()> {
    let (file, mode) = (file.as_fd(), Mode::from_raw_mode(mode & 0o777));
    match rustix::fs::fchmod(file, mode) {
        // It was opened with `O_PATH`.
        Err(Errno::BADF) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            Ok(rustix::fs::chmodat(CWD, path, mode, AtFlags::empty())?)
        }
        set => Ok(set?),
    }
}

/// Returns the permissions of a file or directory, for which it needs no permission. All of them are of one
/// time. A program that writes to the file all the time changes its status, too; then the attributes were
/// the same before and after the list was looked for.
///
/// # Errors
/// Those of `fstat(2)`; `WouldBlock` if they change all the time.
pub fn access(file: impl AsFd) -> io::Result<Access> {
    const TRIES_MAX: u32 = 10;
    let file = file.as_fd();
    // `fgetxattr` refuses a descriptor that was opened with `O_PATH`.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut none = [0_u8; 0];
    for tries in 1..=TRIES_MAX {
        let before = rustix::fs::fstat(file)?;
        // The value is not needed: with an empty buffer, the call returns its length.
        let has_list = rustix::fs::getxattr(&*path, ACCESS_LIST, &mut none).is_ok();
        let status = rustix::fs::fstat(file)?;
        let attributes = Attributes::of(&status);
        // The nanoseconds are below 10^9.
        let changed = |it: &Stat| (it.st_ctime, it.st_ctime_nsec as u32);
        let is_unchanged = changed(&before) == changed(&status) || tries == TRIES_MAX;
        if is_unchanged && Attributes::of(&before) == attributes {
            return Ok(Access { attributes, changed: changed(&status), has_list });
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "its permissions change all the time"))
}

/// Sets the permission bits of a file or directory. With `user`, an access control list gives a user
/// permission bits (4 read, 2 write, 1 execute or search) that differ from those of the group and of others;
/// without it, an existing list is removed.
///
/// # Errors
/// `EPERM` if it belongs to another user, `EOPNOTSUPP` if the file system has no lists, `EINVAL` for an ID that
/// the user namespace does not have.
pub fn set_access(file: impl AsFd, mode: u32, user: Option<(u32, u32)>) -> io::Result<()> {
    let file = file.as_fd();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Some(user) = user {
        // This sets the permission bits, too.
        let list = access_list(mode, user);
        return Ok(rustix::fs::setxattr(path, ACCESS_LIST, &list, XattrFlags::empty())?);
    }
    // With a list, this sets its mask, which the group gets when the list is removed.
    set_mode(file, mode)?;
    match rustix::fs::removexattr(path, ACCESS_LIST) {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The permissions that [`set_access`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenAccess {
    /// The permission bits of the owner, of the group, and of others.
    pub mode: u32,
    /// A user, and its permission bits.
    pub user: Option<(u32, u32)>,
}

/// Returns the permissions of a file or directory, if [`set_access`] can give them; `None` if it has another
/// access control list.
///
/// # Errors
/// Those of `fstat(2)` and `getxattr(2)`.
pub fn given_access(file: impl AsFd) -> io::Result<Option<GivenAccess>> {
    let file = file.as_fd();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut list = [0; ACCESS_LIST_LEN + 1];
    let len = match rustix::fs::getxattr(path, ACCESS_LIST, &mut list) {
        Ok(len) => len,
        Err(Errno::NODATA | Errno::NOTSUP) => {
            return Ok(Some(GivenAccess { mode: attributes(file)?.mode & 0o777, user: None }));
        }
        // A longer list.
        Err(Errno::RANGE) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if len != ACCESS_LIST_LEN {
        return Ok(None);
    }
    let entries = &list[4..len];
    let bits = |entry: usize| u32::from(entries[entry * 8 + 2]);
    let user = u32::from_le_bytes([entries[12], entries[13], entries[14], entries[15]]);
    let mode = (bits(0) & 7) << 6 | (bits(2) & 7) << 3 | bits(4) & 7;
    let given = GivenAccess { mode, user: Some((user, bits(1) & 7)) };
    // Another list of five entries differs.
    Ok((list[..len] == access_list(mode, (user, bits(1)))).then_some(given))
}

/// Returns an access control list of five entries, as extended attributes have it
/// (`linux/posix_acl_xattr.h`): the owner, one user, the group, the mask, and others.
fn access_list(mode: u32, (user, bits): (u32, u32)) -> [u8; ACCESS_LIST_LEN] {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let group = mode >> 3 & 7;
    let entries = [
        (0x01, mode >> 6 & 7, NO_ID),
        (0x02, bits & 7, user),
        (0x04, group, NO_ID),
        (0x10, group | bits & 7, NO_ID),
        (0x20, mode & 7, NO_ID),
    ];
    let mut list = [0; ACCESS_LIST_LEN];
    list[..4].copy_from_slice(&VERSION.to_le_bytes());
    for (bytes, (tag, bits, id)) in list[4..].chunks_exact_mut(8).zip(entries) {
        bytes[..2].copy_from_slice(&u16::to_le_bytes(tag));
        // Three bits.
        bytes[2..4].copy_from_slice(&(bits as u16).to_le_bytes());
        bytes[4..].copy_from_slice(&id.to_le_bytes());
    }
    list
}

/// Removes the access control lists of a directory, also the one that new entries would get.
///
/// # Errors
/// Those of `fremovexattr(2)`.
pub fn remove_access_lists(directory: impl AsFd) -> io::Result<()> {
    for name in ["system.posix_acl_default", ACCESS_LIST] {
        match rustix::fs::fremovexattr(directory.as_fd(), name) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{open, write_new};
    use super::*;

    #[test]
    fn an_access_list_gives_one_user_permissions_of_its_own() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = write_new(open(dir.path()).unwrap(), Path::new("file"), b"x").unwrap();
        let user = Some((65_534, 4));
        match set_access(&file, 0o400, user) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return println!("SKIPPED: this kernel's tmpfs has no access control lists");
            }
            set => set.unwrap(),
        }
        let given = |mode, user| Some(GivenAccess { mode, user });
        assert_eq!(given_access(&file).unwrap(), given(0o400, user));
        let found = access(&file).unwrap();
        assert!(found.has_list);
        // The bits of the group are the mask.
        assert_eq!(found.attributes.mode & 0o777, 0o440);
        set_access(&file, 0o440, None).unwrap();
        assert_eq!(given_access(&file).unwrap(), given(0o440, None));
        assert!(!access(&file).unwrap().has_list);
        // The mask is not the union of the others.
        let mut other = access_list(0o440, (65_533, 5));
        other[30] = 4;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::setxattr(path, ACCESS_LIST, &other, XattrFlags::empty()).unwrap();
        assert_eq!(given_access(&file).unwrap(), None);
        set_access(&file, 0o444, None).unwrap();
        assert_eq!(attributes(&file).unwrap().mode & 0o777, 0o444);
    }
}
