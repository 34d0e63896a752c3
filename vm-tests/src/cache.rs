//! The folder for downloads, shared by every checkout and process.

use std::{
    env,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

/// A folder of entries that are each built once: an entry is either complete or absent.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Returns the user's cache: `$LONGSHORE_CACHE`, else `$XDG_CACHE_HOME/longshore`, else
    /// `~/.cache/longshore`.
    pub(crate) fn of_user() -> Result<Self> {
        let set = |key| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        root_from(set("LONGSHORE_CACHE"), set("XDG_CACHE_HOME"), set("HOME"))
            .map(Self::at)
            .ok_or_else(|| Error::Unavailable {
                what: "no cache folder: set LONGSHORE_CACHE, XDG_CACHE_HOME or HOME".into(),
                source: None,
            })
    }

    /// Returns the cache in `root`.
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns the complete entries of `kind` with their names, in no order.
    pub(crate) fn entries(&self, kind: &str) -> Result<Vec<(String, PathBuf)>> {
        let folder = self.root.join(kind);
        let listing = match fs::read_dir(&folder) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("listing", folder)(error)),
        };
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry.map_err(Error::io("listing", &folder))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Names that begin with a dot are the lock and unfinished folders.
            if !name.starts_with('.') {
                entries.push((name, entry.path()));
            }
        }
        Ok(entries)
    }

    /// Waits until no other process builds an entry of `kind`, and locks out others. If it must wait,
    /// which may take minutes, it prints a line to standard error.
    ///
    /// The kernel releases the lock when the process ends for any reason.
    pub(crate) fn lock(&self, kind: &str) -> Result<Building> {
        let folder = self.root.join(kind);
        fs::create_dir_all(&folder).map_err(Error::io("creating", &folder))?;
        let path = folder.join(".lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io("opening", &path))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            eprintln!("waiting for another process, which fills {}", folder.display());
        }
        file.lock().map_err(Error::io("locking", &path))?;
        Ok(Building { folder, _lock: file })
    }
}

/// The right to add an entry of one kind.
#[derive(Debug)]
pub(crate) struct Building {
    folder: PathBuf,
    _lock: File,
}

impl Building {
    /// Creates a folder to fill, which is removed if it is not published.
    pub(crate) fn scratch(&self) -> Result<tempfile::TempDir> {
        self.sweep();
        tempfile::Builder::new()
            .prefix(".filling-")
            .tempdir_in(&self.folder)
            .map_err(Error::io("creating a folder in", &self.folder))
    }

    /// Makes `filled` the entry called `name`. The rename is atomic, so that no process sees a
    /// half-filled entry.
    pub(crate) fn publish(&self, filled: &Path, name: &str) -> Result<PathBuf> {
        let entry = self.folder.join(name);
        if entry.exists() {
            fs::remove_dir_all(&entry).map_err(Error::io("replacing", &entry))?;
        }
        fs::rename(filled, &entry).map_err(Error::io("publishing", &entry))?;
        Ok(entry)
    }

    /// Removes the unfinished folders of killed processes. Because the lock is held, no running process
    /// owns one.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(".filling-") {
                // A folder that cannot be removed only costs disk space.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn root_from(own: Option<PathBuf>, xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    own.or_else(|| xdg.map(|dir| dir.join("longshore")))
        .or_else(|| home.map(|dir| dir.join(".cache/longshore")))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn the_most_specific_variable_wins() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(root_from(path("/own"), path("/xdg"), path("/home")), path("/own"));
        assert_eq!(root_from(None, path("/xdg"), path("/home")), path("/xdg/longshore"));
        assert_eq!(root_from(None, None, path("/home")), path("/home/.cache/longshore"));
        assert_eq!(root_from(None, None, None), None);
    }

    #[test]
    fn an_entry_appears_complete_and_unfinished_folders_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        assert!(cache.entries("kernel").unwrap().is_empty());

        let building = cache.lock("kernel").unwrap();
        let scratch = building.scratch().unwrap();
        fs::create_dir(scratch.path().join("tree")).unwrap();
        fs::write(scratch.path().join("tree/file"), "x").unwrap();
        assert!(cache.entries("kernel").unwrap().is_empty(), "half-filled folders are not entries");

        let entry = building.publish(&scratch.path().join("tree"), "6.12").unwrap();
        drop(scratch);
        assert_eq!(cache.entries("kernel").unwrap(), [("6.12".to_owned(), entry.clone())]);
        assert_eq!(fs::read_to_string(entry.join("file")).unwrap(), "x");
    }

    #[test]
    fn unfinished_folders_of_killed_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        let litter = cache.lock("kernel").unwrap().scratch().unwrap().keep();
        let _scratch = cache.lock("kernel").unwrap().scratch().unwrap();
        assert!(!litter.exists());
    }

    #[test]
    fn a_second_builder_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        let first = cache.lock("kernel").unwrap();
        let (sender, got_it) = mpsc::channel();
        let second = thread::spawn({
            let cache = cache.clone();
            move || {
                let _building = cache.lock("kernel").unwrap();
                sender.send(()).unwrap();
            }
        });
        assert!(got_it.recv_timeout(Duration::from_millis(200)).is_err(), "the lock does not hold");
        drop(first);
        got_it.recv_timeout(Duration::from_secs(10)).expect("the lock was not released");
        second.join().unwrap();
    }
}
