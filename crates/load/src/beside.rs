//! A file that comes to be under its name only when it is complete.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A file beside the one to be. Dropping it removes it.
pub(crate) struct Beside {
    file: File,
    partial: Option<PathBuf>,
    target: PathBuf,
}

impl Beside {
    /// Creates it in the folder of `target`.
    ///
    /// # Errors
    /// Those of `open(2)`; `InvalidInput` where `target` is there and no regular file, so that
    /// neither a device nor a folder is replaced.
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
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
        // Another process's, or one that a killed process left, has another number.
        for number in 0..100 {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}.{number}.partial", std::process::id()));
            let partial = target.with_file_name(hidden);
            match File::create_new(&partial) {
                Ok(file) => return Ok(Self { file, partial: Some(partial), target }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The file to write.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Waits until the disk has it and gives it its name. A disk that fills up or fails only now
    /// is an error here.
    ///
    /// # Errors
    /// Those of `fsync(2)` and `rename(2)`.
    pub(crate) fn rename(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(partial) = &self.partial {
            fs::rename(partial, &self.target)?;
        }
        self.partial = None;
        Ok(())
    }
}

impl Drop for Beside {
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
        let mut dropped = Beside::create(&target).unwrap();
        dropped.file().write_all(b"half").unwrap();
        assert!(!target.exists());
        drop(dropped);
        assert!(names(folder.path()).is_empty());

        let mut two = [Beside::create(&target).unwrap(), Beside::create(&target).unwrap()];
        two[0].file().write_all(b"whole").unwrap();
        let [first, second] = two;
        first.rename().unwrap();
        drop(second);
        assert_eq!(fs::read(&target).unwrap(), b"whole");
        assert_eq!(names(folder.path()), ["model"]);
    }

    #[test]
    fn a_link_stays_and_what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        Beside::create(&link).unwrap().rename().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"");
        for refused in [folder.path(), Path::new("/dev/null"), Path::new("/")] {
            let error = Beside::create(refused).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", refused.display());
        }
    }
}
