//! Opening files beneath a directory (`openat2(2)`), and telling whether a descriptor that came from
//! somebody else is of the same file.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::file::Kind;
use crate::retry_interrupted;

/// Where a name may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only beneath the directory, whatever `..` and symbolic links there are on the way.
    Beneath,
    /// Wherever symbolic links lead.
    Anywhere,
}

/// What a descriptor says of itself, asked without the file system's help: that may be a process
/// which answers late, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// What it is.
    pub kind: Kind,
    /// Its device number and inode number, as [`crate::file::Version::inode`].
    pub inode: ((u32, u32), u64),
    /// Whether it can be read through this descriptor, so that whoever opened it was allowed to.
    pub is_readable: bool,
}

/// Opens a directory as a place to begin from.
///
/// # Errors
/// Those of `open(2)`.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_interrupted(|| Ok(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Opens the file that is called `name` in `directory` for reading. A FIFO does not block.
///
/// # Errors
/// `EXDEV` where the name leads out of the directory, `ENOSYS` where the kernel (before Linux 5.6)
/// or a filter does not know `openat2`, else those of `open(2)`.
pub fn open(directory: impl AsFd, name: &Path, reach: Reach) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = match reach {
        Reach::Beneath => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        Reach::Anywhere => ResolveFlags::NO_MAGICLINKS,
    };
    // A rename somewhere else while `..` is walked has it say "again".
    const ATTEMPTS_MAX: u32 = 16;
    let mut attempts = 0;
    loop {
        let opened = rustix::fs::openat2(&directory, name, flags, Mode::empty(), resolve);
        match opened {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if attempts < ATTEMPTS_MAX => attempts += 1,
            opened => return Ok(opened?),
        }
    }
}

/// Looks at a descriptor that came from somebody else. It does not block.
///
/// # Errors
/// Those of `statx(2)` and `fcntl(2)`.
pub fn examine(handed: impl AsFd) -> io::Result<Handed> {
    let handed = handed.as_fd();
    let flags = rustix::fs::fcntl_getfl(handed)?;
    let access = flags & OFlags::RWMODE;
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let answer = rustix::fs::statx(handed, "", how, StatxFlags::TYPE | StatxFlags::INO)?;
    let kind = match FileType::from_raw_mode(answer.stx_mode.into()) {
        FileType::RegularFile => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => Kind::Device,
        _ => Kind::Other,
    };
    Ok(Handed {
        kind,
        inode: ((answer.stx_dev_major, answer.stx_dev_minor), answer.stx_ino),
        is_readable: !flags.contains(OFlags::PATH)
            && (access == OFlags::RDONLY || access == OFlags::RDWR),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::file;

    #[test]
    fn no_name_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), b"secret").unwrap();
        fs::write(root.join("model"), b"model").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("../model", root.join("sub/in")).unwrap();
        symlink(root.join("model"), root.join("absolute")).unwrap();
        let from = open_directory(&root).unwrap();
        let beneath = |name: &str| open(&from, Path::new(name), Reach::Beneath);
        for name in ["model", "sub/in", "sub/../model", "./model"] {
            assert!(beneath(name).is_ok(), "{name}");
        }
        for name in ["../secret", "sub/../../secret", "out", "absolute", "/etc/passwd"] {
            let refused = beneath(name).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EXDEV), "{name}");
        }
        assert_eq!(beneath("absent").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(open(&from, Path::new("out"), Reach::Anywhere).is_ok());
        assert!(open(&from, Path::new("/proc/self/fd/0"), Reach::Anywhere).is_err());
    }

    #[test]
    fn a_descriptor_proves_access_only_where_it_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        fs::write(&path, b"model").unwrap();
        let readable = examine(file::open(&path).unwrap()).unwrap();
        assert!(readable.is_readable);
        assert_eq!(readable.kind, Kind::Regular);
        let status = file::status(file::open(&path).unwrap()).unwrap();
        assert_eq!(readable.inode, status.version.inode());
        let open = |flags| rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        assert!(!examine(open(OFlags::PATH)).unwrap().is_readable);
        assert!(!examine(open(OFlags::WRONLY)).unwrap().is_readable);
        assert!(examine(open(OFlags::RDWR)).unwrap().is_readable);
    }
}
