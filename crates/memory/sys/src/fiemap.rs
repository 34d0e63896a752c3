//! The extents of a file on its disk (`linux/fiemap.h`).
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use longshore_mem::FileOffset;
use rustix::ioctl::opcode;

use crate::retry_interrupted;

/// A range of a file that is contiguous on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The offset of its start in the file.
    pub file_offset: FileOffset,
    /// The offset of its start on the file system's disk, in bytes.
    pub disk_offset: u64,
    /// Its length. It may reach beyond the end of the file if the file system has reserved blocks there.
    pub len_bytes: u64,
    /// `true` if the blocks were reserved but never written. They read as zeros, whatever is on the
    /// disk.
    pub is_unwritten: bool,
    /// `true` if the disk does not have the file's plain bytes there: they are compressed, encrypted,
    /// not yet allocated, or share a block with other data.
    pub is_opaque: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ExtentArg {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}
const _: () = assert!(size_of::<ExtentArg>() == 56);

#[repr(C)]
#[derive(Default)]
struct HeadArg {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<HeadArg>() == 32);

/// The number of extents of one call.
const COUNT: usize = 128;

#[repr(C)]
struct Arg {
    head: HeadArg,
    extents: [ExtentArg; COUNT],
}
const _: () = assert!(size_of::<Arg>() == 32 + 56 * COUNT);

/// `FS_IOC_FIEMAP`, whose size is that of the head.
const FIEMAP: libc::Ioctl = opcode::read_write::<HeadArg>(b'f', 11) as libc::Ioctl;

/// Flag: write the file back first.
const SYNC: u32 = 1 << 0;
const LAST: u32 = 1 << 0;
const UNKNOWN: u32 = 1 << 1;
const DELAYED: u32 = 1 << 2;
const ENCODED: u32 = 1 << 3;
const ENCRYPTED: u32 = 1 << 7;
const NOT_ALIGNED: u32 = 1 << 8;
const INLINE: u32 = 1 << 9;
const TAIL: u32 = 1 << 10;
const UNWRITTEN: u32 = 1 << 11;
const OPAQUE: u32 = UNKNOWN | DELAYED | ENCODED | ENCRYPTED | NOT_ALIGNED | INLINE | TAIL;

/// Writes a file back, and returns all of its extents in file order. Between them are holes, which read
/// as zeros.
///
/// # Errors
/// `EOPNOTSUPP` if the file system does not support it (tmpfs); those of writing back.
pub fn extents(file: impl AsFd) -> io::Result<Vec<Extent>> {
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let head = HeadArg {
            start,
            length: u64::MAX - start,
            flags: SYNC,
            extent_count: COUNT as u32,
            ..HeadArg::default()
        };
        let mut arg = Arg { head, extents: [ExtentArg::default(); COUNT] };
        retry_interrupted(|| {
            let fd = file.as_fd().as_raw_fd();
            // SAFETY: the kernel reads and writes a `struct fiemap`, whose layout the argument has,
            // followed by `extent_count` extents.
            match unsafe { libc::ioctl(fd, FIEMAP, &raw mut arg) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })?;
        let there = (arg.head.mapped_extents as usize).min(COUNT);
        let Some(last) = arg.extents[..there].last() else { return Ok(found) };
        found.extend(arg.extents[..there].iter().map(|extent| Extent {
            file_offset: FileOffset::new(extent.logical),
            disk_offset: extent.physical,
            len_bytes: extent.length,
            is_unwritten: extent.flags & UNWRITTEN != 0,
            is_opaque: extent.flags & OPAQUE != 0,
        }));
        let end = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || end <= start {
            return Ok(found);
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn extents_cover_all_written_blocks_and_no_hole() {
        const BLOCK: u64 = 1 << 16;
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for at in [0, 2, 3, 7] {
            file.write_all_at(&[1; BLOCK as usize], at * BLOCK).unwrap();
        }
        let found = match extents(&file) {
            Ok(found) => found,
            // Not every file system supports it.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
            Err(error) => panic!("{error}"),
        };
        for block in 0..8 {
            let at = block * BLOCK;
            let has = found.iter().any(|extent| {
                let start = extent.file_offset.raw();
                start <= at && at < start + extent.len_bytes && !extent.is_unwritten
            });
            assert_eq!(has, [0, 2, 3, 7].contains(&block), "{block}: {found:?}");
        }
    }

    #[test]
    fn a_file_system_in_memory_has_no_extents() {
        let file = crate::memfd::create("file", crate::memfd::Backing::Shmem).unwrap();
        let refused = extents(&file).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP), "{refused}");
    }
}
