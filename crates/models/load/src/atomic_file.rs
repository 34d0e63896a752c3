//! Files that have their name only when they are complete.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use longshore_sys::file::free_bytes;

/// What of a mode says who may do what; set-user-ID and the like say something else.
const PERMISSION_BITS: u32 = 0o777;

/// A new file that gets its name when it is complete and on the disk. Until then it has a hidden name
/// in the same directory that ends in `.partial`; dropping it removes it.
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
    file: File,
    partial: Option<PathBuf>,
    target: PathBuf,
    /// Where it is; `None` where that may be written to and not read.
    folder: Option<File>,
}

impl AtomicFile {
    /// Creates the file in the directory of `target`, the name that it is to have. If that is a link to
    /// a file, the link stays and the file is replaced.
    ///
    /// # Errors
    /// Those of `open(2)`; `InvalidInput` where `target` is there and no regular file, so that
    /// neither a device nor a folder is replaced.
    pub fn create(target: &Path) -> io::Result<Self> {
        let target = match fs::metadata(target) {
            // A link stays, and what it leads to is replaced.
            Ok(found) if found.is_file() => fs::canonicalize(target)?,
            Ok(_) => {
                let reason = "something that is not a regular file has this name";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.to_owned(),
            Err(error) => return Err(error),
        };
        let Some(name) = target.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
        };
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = match File::open(parent.unwrap_or(Path::new("."))) {
            Ok(folder) => Some(folder),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        // Another process's, or one that a killed process left, has another number.
        for number in 0..100 {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}.{number}.partial", std::process::id()));
            let partial = target.with_file_name(hidden);
            match File::create_new(&partial) {
                Ok(file) => return Ok(Self { file, partial: Some(partial), target, folder }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns the file, to be written to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file the permission bits of `source`. Call it before anything is written: others could
    /// read that meanwhile.
    ///
    /// # Errors
    /// Those of `fstat(2)` and `fchmod(2)`.
    pub fn permit_as(&self, source: &File) -> io::Result<()> {
        let mode = source.metadata()?.permissions().mode() & PERMISSION_BITS;
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Checks that the file system has room for so many bytes more.
    ///
    /// # Errors
    /// `StorageFull` with both numbers, or those of `fstatvfs(3)`.
    pub fn check_room(&self, needed_bytes: u64) -> io::Result<()> {
        // Some file systems do not count.
        let Some(free_bytes) = free_bytes(&self.file)?.filter(|free| needed_bytes > *free) else {
            return Ok(());
        };
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).display();
        let reason = format!(
            "{needed_bytes} bytes are needed, but the file system of {folder} has {free_bytes} \
             free; free some, or write elsewhere"
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, reason))
    }

    /// Waits until the disk has the content, and then gives the file its name, also on the disk. Errors
    /// of a disk that is found full only now are returned here.
    ///
    /// # Errors
    /// Those of `fsync(2)` and `rename(2)`. If only the directory could not be written out, the file has
    /// its name.
    pub fn commit(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(partial) = &self.partial {
            fs::rename(partial, &self.target)?;
        }
        self.partial = None;
        let Some(folder) = &self.folder else { return Ok(()) };
        match folder.sync_all() {
            // A file system that knows no such thing.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Whoever removed it already has done what is wanted.
            let _ = fs::remove_file(partial);
        }
    }
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
    fn it_has_its_name_only_when_it_is_complete() {
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
    fn what_has_no_room_is_told_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let file = AtomicFile::create(&folder.path().join("model")).unwrap();
        file.check_room(1).unwrap();
        let refused = file.check_room(u64::MAX).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        let message = refused.to_string();
        let folder = folder.path().display().to_string();
        assert!(message.contains(&u64::MAX.to_string()), "{message}");
        assert!(message.contains(&folder), "{message}");
    }

    #[test]
    fn a_link_stays_and_what_is_no_file_is_refused() {
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
