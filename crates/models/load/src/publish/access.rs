//! The access to published files: that to their source, or less.
//!
//! Another user may access a file only if its mode and the modes of all directories above it permit
//! that. A published file has other directories above it, so its mode must contain both.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use longshore_heap::FileAttributes;
use longshore_sys::directory::{self, Access as Permissions, Attributes};
use longshore_sys::{effective_uid, tmpfs};

/// The permission bits of owner, group and others, without write permission.
const UNWRITABLE: u32 = 0o555;

/// Determines the attributes of published files and directories.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// The requested mode of files, in place of that of the source.
    mode: Option<u32>,
    /// The permission bits that all files and directories of the model have.
    common: Option<u32>,
    /// The attributes that a file in the tmpfs can get, by owner and group of the source.
    carried: HashMap<(u32, u32), (Option<u32>, Option<u32>)>,
}

impl Access {
    pub(crate) fn new(mode: Option<u32>) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Returns the attributes for the published copy of an open file, which has the group `copy_group` if
    /// it gets no other one. `folder` is a directory in the tmpfs of the copy.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub(crate) fn of_file(
        &mut self,
        source: BorrowedFd<'_>,
        folder: BorrowedFd<'_>,
        copy_group: u32,
    ) -> io::Result<FileAttributes> {
        let (found, uid, gid) = self.limited(source, folder, copy_group)?;
        let mode = self.mode.unwrap_or(found) & UNWRITABLE;
        // The user of this process has read the source, and may so read the copy.
        let mode = if uid.is_none() { mode | 0o400 } else { mode };
        *self.common.get_or_insert(0o777) &= mode;
        Ok(FileAttributes { mode, uid, gid })
    }

    /// Returns the attributes for the published copy of an open directory, as [`Access::of_file`] does. Its
    /// owner may remove entries.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub(crate) fn of_directory(
        &mut self,
        source: BorrowedFd<'_>,
        folder: BorrowedFd<'_>,
        copy_group: u32,
    ) -> io::Result<FileAttributes> {
        let (found, uid, gid) = self.limited(source, folder, copy_group)?;
        let mode = match self.mode {
            // Every user who may read the files may search the directory.
            Some(mode) => mode | (mode & 0o444) >> 2,
            None => found,
        };
        // The names in a directory are known to users who may read it.
        let known = mode & (mode & 0o111) << 2;
        *self.common.get_or_insert(0o777) &= known;
        Ok(FileAttributes { mode: mode & UNWRITABLE | 0o700, uid, gid })
    }

    /// Returns the mode of the record of the model, which has names, lengths and checksums of all files and
    /// directories: only if others may read them all, they may read it. It belongs to the publisher.
    pub(crate) fn of_record(&self) -> u32 {
        if self.common.unwrap_or(0) & 0o004 > 0 { 0o444 } else { 0o400 }
    }

    /// Returns the mode that gives no user more access than the source does, and the owner and group
    /// that can be carried over.
    fn limited(
        &mut self,
        source: BorrowedFd<'_>,
        folder: BorrowedFd<'_>,
        copy_group: u32,
    ) -> io::Result<(u32, Option<u32>, Option<u32>)> {
        let Permissions { attributes, has_list } = directory::access(source)?;
        let Attributes { owner, group, mut mode } = attributes;
        if has_list {
            // The list may permit less to some users than the bits.
            mode &= 0o700;
        }
        let mut owner_can_search = true;
        for above in directory::above(source)? {
            let mode_above = if above.has_list { 0 } else { above.attributes.mode };
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
                false => by_others,
            };
        }
        let (uid, gid) = self.carried(owner, group, folder);
        // The owner of a file that it cannot reach does not become the owner of the copy.
        let uid = uid.filter(|_| owner_can_search || owner == effective_uid());
        if gid.is_none() && copy_group != group {
            // Each user of another group now was in the source's group or among its others.
            let both = (mode & 0o070) >> 3 & mode & 0o007;
            mode = mode & 0o700 | both << 3 | both;
        }
        Ok((mode, uid, gid))
    }

    /// Returns the owner and the group of these that a file in the tmpfs can get, by trying it.
    fn carried(
        &mut self,
        owner: u32,
        group: u32,
        folder: BorrowedFd<'_>,
    ) -> (Option<u32>, Option<u32>) {
        *self.carried.entry((owner, group)).or_insert_with(|| {
            let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
            let can = |owner, group| {
                let file = tmpfs::create_unnamed(Path::new(&path))?;
                directory::set_owner(&file, owner, group)?;
                directory::set_mode(file.as_fd(), 0o400)
            };
            if can(Some(owner), Some(group)).is_ok() {
                (Some(owner), Some(group))
            } else if can(None, Some(group)).is_ok() {
                (None, Some(group))
            } else {
                (None, None)
            }
        })
    }
}
