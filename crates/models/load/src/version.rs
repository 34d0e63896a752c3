//! Versions of a file.

use longshore_sys::file::Status;

/// A version of a file: its identity, its length and the time of its last modification.
///
/// The change time (`ctime`) is not a part of it, because renaming or linking a file changes it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileVersion {
    /// The major and minor number of the device.
    pub device: (u32, u32),
    /// The inode number.
    pub inode: u64,
    /// The creation time: seconds and nanoseconds since 1970. `None` if it is not known.
    pub born: Option<(i64, u32)>,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The time of the last modification: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
}

impl FileVersion {
    /// Makes a version from these numbers, as `statx(2)` returns them.
    pub const fn new(
        device: (u32, u32),
        inode: u64,
        born: Option<(i64, u32)>,
        len_bytes: u64,
        modified: (i64, u32),
    ) -> Self {
        Self { device, inode, born, len_bytes, modified }
    }

    pub(crate) fn from_status(status: &Status) -> Self {
        let (version, identity) = (status.version, status.version.identity());
        let (len_bytes, modified) = (version.len_bytes(), version.modified());
        Self::new(identity.device, identity.inode, identity.born, len_bytes, modified)
    }
}
