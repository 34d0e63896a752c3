//! The access to published files: that to their source, or less.
//!
//! Another user may access a file only if its mode and the modes of all directories above it permit
//! that. A published file has other directories above it, so its mode must contain both.
//!
//! The files and directories of a copy belong to the publisher, so that no other user can change them or
//! their names. If the source belongs to another user, an access control list gives that user the
//! permissions that the owner of the source has.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use longshore_sys::directory::{self, Access as Permissions, Attributes, GivenAccess};
use longshore_sys::{effective_uid, namespace, tmpfs};

/// The number of times that permissions of all files of a model together are read once more.
const RETRIES_MAX: u32 = 200;
/// The number of times that the permissions of each file are read at least, if they change all the time.
const TRIES_MIN: u32 = 3;
/// The permission bits of owner, group and others, without write permission.
const UNWRITABLE: u32 = 0o555;

/// The permissions of a published file or directory, which belongs to the publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyAccess {
    /// The permission bits of the publisher, of the group, and of others.
    pub(crate) mode: u32,
    /// The group; `None` if it keeps the one that it has.
    pub(crate) group: Option<u32>,
    /// The owner of the source, and its permission bits, if they differ from those of the group or of
    /// others.
    pub(crate) user: Option<(u32, u32)>,
    /// The owner of the source, if its permission bits are those of the group and of others.
    pub(crate) owner: Option<u32>,
}

/// Determines the permissions of published files and directories.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// The requested mode of files, in place of that of the source.
    mode: Option<u32>,
    /// The permission bits that all files and directories of the model have.
    common: Option<u32>,
    /// `true` for each group that a file in the tmpfs can get.
    groups: HashMap<u32, bool>,
    /// `true` for each user that an access control list in the tmpfs can have.
    users: HashMap<u32, bool>,
    /// The number of times that permissions had to be read once more.
    retries: u32,
}

impl CopyAccess {
    /// Returns `true` if a file or directory has these permissions.
    ///
    /// # Errors
    /// Those of `fstat(2)` and `getxattr(2)`.
    pub(crate) fn is_of(&self, copy: impl AsFd) -> io::Result<bool> {
        let copy = copy.as_fd();
        let group = directory::attributes(copy)?.group;
        let has_group = self.group.unwrap_or(group) == group;
        let wanted = GivenAccess { mode: self.mode & 0o777, user: self.user };
        Ok(has_group && directory::given_access(copy)? == Some(wanted))
    }

    /// Gives a file or directory these permissions.
    ///
    /// # Errors
    /// Those of `fchmod(2)`, `fchown(2)` and `setxattr(2)`.
    pub(crate) fn give(&self, copy: impl AsFd) -> io::Result<()> {
        let copy = copy.as_fd();
        if let Some(group) = self.group
            && directory::attributes(copy)?.group != group
        {
            // The members of the new group get no permission of the old one.
            directory::set_access(copy, self.mode & 0o700, None)?;
            directory::set_group(copy, group)?;
        }
        directory::set_access(copy, self.mode, self.user)
    }

    /// Takes the permissions from a file or directory that are not among these. Those of a group that is not the
    /// same now are taken whole, and a user that was not listed gets no more than it had.
    ///
    /// # Errors
    /// Those of `fchmod(2)`, `setxattr(2)` and `removexattr(2)`.
    pub(crate) fn limit(&self, copy: impl AsFd) -> io::Result<()> {
        let copy = copy.as_fd();
        if self.is_of(copy)? {
            return Ok(());
        }
        let Attributes { group, mode, .. } = directory::attributes(copy)?;
        let given = directory::given_access(copy)?;
        let has_group = self.group.unwrap_or(group) == group;
        // With another list, the bits of the group in the mode are not those of the group.
        let (mode, user) = given.map_or((mode & 0o707, None), |given| (given.mode, given.user));
        let user = match (self.user, user) {
            (Some((wanted, most)), Some((listed, bits))) if listed == wanted => {
                Some((wanted, bits & most))
            }
            // It may be a member of the group, or not.
            (Some((wanted, most)), _) => Some((wanted, mode >> 3 & mode & most)),
            (None, Some((listed, bits))) if self.owner == Some(listed) => {
                Some((listed, bits & self.mode & 7))
            }
            (None, _) => None,
        };
        let mut kept = mode & self.mode;
        // The members of another group are among the others now.
        if !has_group {
            kept &= 0o707 & (0o770 | self.mode >> 3 & 7);
        }
        directory::set_access(copy, kept, user)
    }
}

impl Access {
    pub(crate) fn new(mode: Option<u32>) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Returns the permissions for the published copy of an open file, which has the group `copy_group` if
    /// it gets no other one. `folder` is a directory in the tmpfs of the copy.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub(crate) fn of_file(
        &mut self,
        source: BorrowedFd<'_>,
        folder: BorrowedFd<'_>,
        copy_group: u32,
    ) -> io::Result<CopyAccess> {
        let requested = self.mode;
        // The publisher has read the source, and may so read the copy.
        let found = self.limited(source, folder, copy_group, 0o400, |mode| {
            requested.unwrap_or(mode) & UNWRITABLE
        })?;
        self.note_common(&found, found.mode);
        Ok(found)
    }

    /// Returns the permissions for the published copy of an open directory, as [`Access::of_file`] does. The
    /// publisher may remove entries.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub(crate) fn of_directory(
        &mut self,
        source: BorrowedFd<'_>,
        folder: BorrowedFd<'_>,
        copy_group: u32,
    ) -> io::Result<CopyAccess> {
        let requested = self.mode;
        let found = self.limited(source, folder, copy_group, 0o700, |mode| match requested {
            // Every user who may read the files may search the directory.
            Some(mode) => (mode | (mode & 0o444) >> 2) & UNWRITABLE,
            None => mode & UNWRITABLE,
        })?;
        // The names in a directory are known to users who may read it.
        let known = found.mode & (found.mode & 0o111) << 2;
        self.note_common(&found, known);
        Ok(found)
    }

    /// Returns the permissions for the copy of a file of a server: only the publisher has the right to read it,
    /// unless another mode is requested.
    pub(crate) fn of_remote_file(&mut self) -> CopyAccess {
        let mode = self.mode.unwrap_or(0) & UNWRITABLE | 0o400;
        self.remote(mode, mode)
    }

    /// Returns the permissions for a directory with such files.
    pub(crate) fn of_remote_directory(&mut self) -> CopyAccess {
        let mode = self.mode.unwrap_or(0);
        let mode = (mode | (mode & 0o444) >> 2) & UNWRITABLE | 0o700;
        self.remote(mode, mode & (mode & 0o111) << 2)
    }

    fn remote(&mut self, mode: u32, known: u32) -> CopyAccess {
        let found = CopyAccess { mode, ..CopyAccess::default() };
        self.note_common(&found, known);
        found
    }

    /// Notes the permission bits that users have to read a file or directory.
    fn note_common(&mut self, found: &CopyAccess, mode: u32) {
        let of_user = found.user.map_or(0o777, |(_, bits)| bits << 6 | bits << 3 | bits);
        *self.common.get_or_insert(0o777) &= mode & of_user;
    }

    /// Returns the permissions of the record of the model, which has names, lengths and checksums of all
    /// files and directories: only if all users may read them all, they may read it.
    pub(crate) fn of_record(&self) -> CopyAccess {
        let is_common = self.common.unwrap_or(0) & 0o044 == 0o044;
        let mode = if is_common { 0o444 } else { 0o400 };
        CopyAccess { mode, ..CopyAccess::default() }
    }

    /// Returns the permissions that give no user more access than the source does. `own` are the bits that
    /// the publisher has in any case; `requested` replaces the mode of the source.
    fn limited(
        &mut self,
        source: BorrowedFd<'_>,
        folder: BorrowedFd<'_>,
        copy_group: u32,
        own: u32,
        requested: impl Fn(u32) -> u32,
    ) -> io::Result<CopyAccess> {
        let (Permissions { attributes, has_list, .. }, all_above) = self.at_one_time(source)?;
        let Attributes { owner, group, mut mode } = attributes;
        if has_list {
            // The list may permit less to some users than the bits.
            mode &= 0o700;
        }
        let mut owner_can_search = true;
        for above in all_above {
            // The bits of the owner are not limited by a list.
            let kept = if above.has_list { 0o700 } else { 0o777 };
            let mode_above = above.attributes.mode & kept;
            let above = Attributes { mode: mode_above, ..above.attributes };
            let (by_group, by_others) = (above.mode & 0o010 > 0, above.mode & 0o001 > 0);
            if !(by_group && (by_others || above.group == group)) {
                mode &= !0o070;
            }
            if !(by_group && by_others) {
                mode &= !0o007;
            }
            owner_can_search &= match above.owner == owner {
                true => above.mode & 0o100 > 0,
                // It may be a member of the group.
                false => by_group && by_others,
            };
        }
        let gets_group = self.gets_group(group, folder);
        if !gets_group && (copy_group != group || namespace::hides_groups_as(group)) {
            // Each user of another group now was in the source's group or among its others.
            let both = (mode & 0o070) >> 3 & mode & 0o007;
            mode = mode & 0o700 | both << 3 | both;
        }
        let mode = requested(mode);
        let group = gets_group.then_some(group);
        let found = CopyAccess { mode, group, user: None, owner: None };
        if owner == effective_uid() {
            return Ok(CopyAccess { mode: mode | own & !0o077, ..found });
        }
        let user = mode >> 6 & 7;
        let mode = mode & 0o077 | own;
        if mode >> 3 & 7 == user && mode & 7 == user {
            return Ok(CopyAccess { mode, owner: owner_can_search.then_some(owner), ..found });
        }
        // An owner that may not search a directory above the source, except perhaps as a member of its group,
        // gets the access of the group or of others.
        if owner_can_search && self.gets_user(owner, folder) {
            return Ok(CopyAccess { mode, user: Some((owner, user)), ..found });
        }
        Ok(CopyAccess { mode: mode & (0o700 | user << 3 | user), ..found })
    }

    /// Returns `true` if a file in the tmpfs can get this group, by trying it.
    fn gets_group(&mut self, group: u32, folder: BorrowedFd<'_>) -> bool {
        let attempt = || directory::set_group(unnamed_in(folder)?, group);
        let gets = || !namespace::hides_groups_as(group) && is_possible(&attempt());
        *self.groups.entry(group).or_insert_with(gets)
    }

    /// Returns `true` if an access control list in the tmpfs can have this user, by trying it. Only root uses
    /// such lists: another user cannot know that the owner of a file that it reads wants them.
    fn gets_user(&mut self, user: u32, folder: BorrowedFd<'_>) -> bool {
        let attempt = || directory::set_access(unnamed_in(folder)?, 0o400, Some((user, 4)));
        let gets =
            || effective_uid() == 0 && !namespace::hides_owners_as(user) && is_possible(&attempt());
        *self.users.entry(user).or_insert_with(gets)
    }

    /// Returns the permissions of a file and of all directories above it, as they were together. The retries of
    /// all files together are limited, except for a few of each file: each takes time, and a user can change
    /// permissions all the time. The last one compares only the permissions, because a program that writes to a
    /// file all the time changes its status, too.
    fn at_one_time(
        &mut self,
        source: BorrowedFd<'_>,
    ) -> io::Result<(Permissions, Vec<Permissions>)> {
        let permissions = |all: &[Permissions]| -> Vec<_> {
            all.iter().map(|it| (it.attributes, it.has_list)).collect()
        };
        for tries in 1.. {
            let is_last = tries >= TRIES_MIN && self.retries >= RETRIES_MAX;
            let attempt = || -> io::Result<_> {
                let (before, found) = (directory::access(source)?, directory::above(source)?);
                let (after, again) = (directory::access(source)?, directory::above(source)?);
                let is_same = (is_last || before.changed == after.changed)
                    && permissions(&[before]) == permissions(&[after])
                    && permissions(&found) == permissions(&again);
                Ok(is_same.then_some((after, again)))
            };
            match attempt() {
                Ok(Some(found)) => return Ok(found),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ if is_last => break,
                _ => self.retries += 1,
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "permissions change all the time"))
    }
}

/// Returns `true` if a trial shows that an access is possible, or if there was no room for the trial.
fn is_possible(trial: &io::Result<()>) -> bool {
    use io::ErrorKind::{OutOfMemory, QuotaExceeded, StorageFull};
    let Err(error) = trial else { return true };
    matches!(error.kind(), StorageFull | OutOfMemory | QuotaExceeded)
}

fn unnamed_in(folder: BorrowedFd<'_>) -> io::Result<std::os::fd::OwnedFd> {
    tmpfs::create_unnamed(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_file_that_is_written_to_has_permissions_after_all_retries() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = std::fs::File::create(dir.path().join("file")).unwrap();
        let file = writer.try_clone().unwrap();
        let folder = directory::open(dir.path()).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    writer.write_all(b" ").unwrap();
                }
            });
            let mut access = Access { retries: RETRIES_MAX, ..Access::default() };
            let found = (0..1_000).map(|_| access.of_file(file.as_fd(), folder.as_fd(), 0));
            let failed = found.filter(Result::is_err).count();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0);
        });
    }
}
