//! Files that get their name only when they are complete.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use longshore_mem::ByteSize;
use longshore_sys::file::free_bytes;
use tempfile::NamedTempFile;

/// The permission bits of a mode, without set-user-ID, set-group-ID and the sticky bit.
const PERMISSION_BITS: u32 = 0o777;

/// A new file that gets its name when it is complete and on the disk. Until then it has a hidden name in
/// the same directory, which ends in `.partial`. Dropping it removes the file.
///
/// ```
/// use std::io::Write;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.bin");
/// let mut file = longshore_load::AtomicFile::create(&path)?;
/// file.file().write_all(b"weights")?;
/// assert!(!path.exists());
/// file.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"weights");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    file: NamedTempFile,
    target: PathBuf,
    /// The directory; `None` if this process may write to it but not read it.
    folder: Option<File>,
}

impl AtomicFile {
    /// Creates a file that will get the name `target`, in the directory of that name. If `target` is a
    /// symbolic link to a file, the link stays, and the file that it refers to is replaced.
    ///
    /// # Errors
    /// Those of `open(2)`; `InvalidInput` if `target` exists and is not a regular file, such as a
    /// device or a directory.
    pub fn create(target: &Path) -> io::Result<Self> {
        let target = match fs::metadata(target) {
            // Follow a symbolic link, so that its target is replaced and not the link.
            Ok(found) if found.is_file() => fs::canonicalize(target)?,
            Ok(_) => {
                let reason = "something that is not a regular file has this name";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.to_owned(),
            Err(error) => return Err(error),
        };
        let Some(name) = target.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
        };
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let folder = match File::open(parent) {
            Ok(folder) => Some(folder),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(".");
        let file = tempfile::Builder::new()
            .prefix(&hidden)
            .suffix(".partial")
            .make_in(parent, |path| File::create_new(path))?;
        Ok(Self { file, target, folder })
    }

    /// Returns the file, for writing.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Gives the file the permission bits of `source`. Call this before writing, because until then
    /// other users may be able to read the file.
    ///
    /// # Errors
    /// Those of `fstat(2)` and `fchmod(2)`.
    pub fn permit_as(&self, source: &File) -> io::Result<()> {
        let mode = source.metadata()?.permissions().mode() & PERMISSION_BITS;
        self.file.as_file().set_permissions(Permissions::from_mode(mode))
    }

    /// Checks that the file system has `needed_bytes` of free space.
    ///
    /// # Errors
    /// `StorageFull` with both numbers, or those of `fstatvfs(3)`.
    pub fn check_room(&self, needed_bytes: u64) -> io::Result<()> {
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        check_room(self.file.as_file(), parent.unwrap_or(Path::new(".")), needed_bytes)
    }

    /// Syncs the content to the disk, then renames the file to its target, and syncs the directory. If
    /// the file system finds only now that the disk is full, this returns the error.
    ///
    /// # Errors
    /// Those of `fsync(2)` and `rename(2)`. If only syncing the directory fails, the file has its name.
    pub fn commit(self) -> io::Result<()> {
        let Self { file, target, folder } = self;
        file.as_file().sync_all()?;
        file.persist(target).map_err(|failed| failed.error)?;
        let Some(folder) = folder else { return Ok(()) };
        match folder.sync_all() {
            // Some file systems cannot sync a directory.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

/// Checks that the file system of a file or directory in `folder` has room for this number of bytes.
pub(crate) fn check_room(file: impl AsFd, folder: &Path, needed_bytes: u64) -> io::Result<()> {
    // Some file systems do not report their free space.
    let Some(free_bytes) = free_bytes(file)?.filter(|free| needed_bytes > *free) else {
        return Ok(());
    };
    let folder = folder.display();
    let reason = format!(
        "{} are needed, but the file system of {folder} has {} free, which is {} too few; free \
         some, or write elsewhere",
        ByteSize(needed_bytes),
        ByteSize(free_bytes),
        ByteSize(needed_bytes - free_bytes)
    );
    Err(io::Error::new(io::ErrorKind::StorageFull, reason))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        let mut dropped = AtomicFile::create(&target).unwrap();
        dropped.file().write_all(b"half").unwrap();
        assert!(!target.exists());
        drop(dropped);
        assert!(names(folder.path()).is_empty());

        let mut two = [AtomicFile::create(&target).unwrap(), AtomicFile::create(&target).unwrap()];
        two[0].file().write_all(b"whole").unwrap();
        let [first, second] = two;
        first.commit().unwrap();
        drop(second);
        assert_eq!(fs::read(&target).unwrap(), b"whole");
        assert_eq!(names(folder.path()), ["model"]);
    }

    #[test]
    fn a_file_has_the_mode_of_an_ordinary_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let (ordinary, target) = (folder.path().join("ordinary"), folder.path().join("model"));
        fs::write(&ordinary, "").unwrap();
        AtomicFile::create(&target).unwrap().commit().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&target), mode(&ordinary));
    }

    #[test]
    fn the_error_of_a_full_file_system_has_the_size_and_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = AtomicFile::create(&folder.path().join("model")).unwrap();
        file.check_room(1).unwrap();
        let refused = file.check_room(u64::MAX).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        let message = refused.to_string();
        let folder = folder.path().display().to_string();
        assert!(message.starts_with("18.45 EB are needed"), "{message}");
        assert!(message.contains(&folder), "{message}");
    }

    #[test]
    fn a_symbolic_link_stays_and_only_regular_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        AtomicFile::create(&link).unwrap().commit().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"");
        for refused in [folder.path(), Path::new("/dev/null"), Path::new("/")] {
            let error = AtomicFile::create(refused).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", refused.display());
        }
    }
}
