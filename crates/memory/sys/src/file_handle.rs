//! `name_to_handle_at(2)`: the handle by which a file system identifies a file.
//!
//! Some file systems give one inode number to several files: virtiofs and 9p over several disks, and
//! many FUSE file systems. FUSE and virtiofs nevertheless have a separate handle for each file.
#![expect(unsafe_code, reason = "the kernel writes to a buffer")]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

/// The maximum size of a handle in bytes (`MAX_HANDLE_SZ`).
const LEN_MAX_BYTES: usize = libc::MAX_HANDLE_SZ as usize;

/// The handle of a file: equal for all descriptors of one file of one mounted file system, while the
/// file is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHandle {
    kind: c_int,
    bytes: Box<[u8]>,
}

/// `struct file_handle` of `linux/fs.h`.
#[repr(C)]
struct Buffer {
    len_bytes: u32,
    kind: c_int,
    bytes: [u8; LEN_MAX_BYTES],
}

impl FileHandle {
    /// Returns the handle of a file, which may have been opened with `O_PATH`. Returns `None` if its
    /// file system or the kernel has no handles (file systems without NFS export have some since Linux
    /// 6.6), or a seccomp filter forbids the call. So a file system has handles for all of its files or
    /// for none.
    ///
    /// The call can block on an overlay file system, which may ask the file systems below it.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let file = file.as_fd().as_raw_fd();
        // Linux before 6.5 refuses AT_HANDLE_FID.
        [libc::AT_HANDLE_FID, 0].into_iter().find_map(|flag| {
            let mut buffer =
                Buffer { len_bytes: LEN_MAX_BYTES as u32, kind: 0, bytes: [0; LEN_MAX_BYTES] };
            let mut mount_id = 0;
            // SAFETY: the path is a C string, `buffer` has the layout of the kernel's structure with
            // room for `len_bytes` bytes, and both outlive the call.
            let failed = unsafe {
                libc::name_to_handle_at(
                    file,
                    c"".as_ptr(),
                    (&raw mut buffer).cast(),
                    &raw mut mount_id,
                    libc::AT_EMPTY_PATH | flag,
                )
            };
            let bytes = buffer.bytes.get(..buffer.len_bytes as usize).filter(|_| failed == 0)?;
            Some(Self { kind: buffer.kind, bytes: bytes.into() })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::beneath::{Reach, locate, open_directory};

    #[test]
    fn two_descriptors_have_the_same_handle_only_if_they_are_of_one_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), b"a").unwrap();
        fs::hard_link(dir.path().join("a"), dir.path().join("same")).unwrap();
        fs::write(dir.path().join("b"), b"a").unwrap();
        let handle = |name: &str| FileHandle::of(fs::File::open(dir.path().join(name)).unwrap());
        let Some(a) = handle("a") else {
            println!("SKIPPED: the file system of {} has no handles", dir.path().display());
            return;
        };
        let directory = open_directory(dir.path()).unwrap();
        let located = locate(directory, "a".as_ref(), Reach::Beneath).unwrap();
        assert_eq!(FileHandle::of(located).as_ref(), Some(&a));
        assert_eq!(handle("same").as_ref(), Some(&a));
        assert_ne!(handle("b").unwrap(), a);
        // A pipe has no handle, or a different one.
        assert_ne!(FileHandle::of(std::io::pipe().unwrap().0), Some(a));
    }
}
