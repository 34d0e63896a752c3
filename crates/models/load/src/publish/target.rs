//! The directory that models are published in, and a model that is being filled there.
//!
//! ```text
//!   DIR/.NAME.0123456789abcdef.lock       locked by the process that fills or removes the directory
//!   DIR/.NAME.0123456789abcdef.partial/   mode 0700
//!      │  files, record, attributes
//!      ▼  renameat2
//!   DIR/NAME/
//! ```
//!
//! A publisher also has the lock file `.NAME.lock`, for which a second one of the same user waits, so that
//! it need not read the model again.
//!
//! The kernel releases the locks when the process ends. A directory of that form without a lock is a
//! leftover of a process that was killed.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use longshore_sys::directory::{self, Attributes, EntryKind};
use longshore_sys::tmpfs::{self, HugeOption};
use longshore_sys::{beneath, descriptors, effective_uid, huge_pages};

use super::problem::PublishProblem;
use super::record::Record;
use super::tree::{publish_error, write_error};
use crate::error::{Error, Result};

const SUFFIX: &str = ".partial";
const LOCK_SUFFIX: &str = ".lock";
/// The time between two attempts to lock a name.
const LOCK_PERIOD: Duration = Duration::from_millis(20);
const NAME_MAX_BYTES: usize = 200;
/// The number of random names that are tried.
const ATTEMPTS_MAX: u32 = 100;
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The directory that models are published in.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    folder: OwnedFd,
}

/// The entry that has the name of a model.
#[derive(Debug)]
pub(crate) enum Existing {
    /// None.
    Nothing,
    /// A model with this record, and its directory.
    Model(Record, OwnedFd),
    /// An entry that is not a model, or of a user that is not trusted.
    Other,
}

/// The lock of a name. Dropping it removes the lock file.
#[derive(Debug)]
pub(crate) struct NameLock<'a> {
    target: &'a Target,
    name: PathBuf,
    _file: OwnedFd,
}

/// A model that is being filled. Dropping it removes it, unless it was renamed.
#[derive(Debug)]
pub(crate) struct Partial<'a> {
    target: &'a Target,
    name: PathBuf,
    pub(crate) folder: OwnedFd,
    is_renamed: bool,
    _lock: NameLock<'a>,
}

impl Target {
    /// Opens the directory, and checks that no other user can redirect its names.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Publish`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let refuse = |reason| Err(publish_error(path, reason));
        let failed = |source| Error::Open { path: path.to_owned(), source };
        let folder = match directory::open(path) {
            Err(error) if beneath::is_loop(&error) => return refuse(PublishProblem::Link),
            opened => opened.map_err(failed)?,
        };
        if !tmpfs::contains(&folder).map_err(failed)? {
            return refuse(PublishProblem::NotTmpfs);
        }
        let attributes = directory::attributes(&folder).map_err(failed)?;
        if attributes.owner != 0 && attributes.owner != effective_uid() {
            return refuse(PublishProblem::OtherOwner { uid: attributes.owner });
        }
        if attributes.mode & WRITABLE_BY_OTHERS > 0 && attributes.mode & STICKY == 0 {
            return refuse(PublishProblem::WritableByOthers);
        }
        let path = std::path::absolute(path).map_err(failed)?;
        Ok(Self { path, folder })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that no other user can put another directory in its place.
    ///
    /// # Errors
    /// [`Error::Publish`] with [`PublishProblem::UnsafePath`], [`Error::Open`].
    pub(crate) fn check_path(&self) -> Result<()> {
        match directory::has_safe_path(&self.folder) {
            Ok(true) => Ok(()),
            Ok(false) => Err(publish_error(&self.path, PublishProblem::UnsafePath)),
            Err(source) => Err(Error::Open { path: self.path.clone(), source }),
        }
    }

    /// Returns `true` if the path still leads to this directory.
    pub(crate) fn has_path(&self) -> bool {
        match directory::open_path(&self.path) {
            Ok(now) => directory::is_same(now, &self.folder).unwrap_or(true),
            // Any other error, such as a lack of descriptors, does not show it.
            Err(error) => {
                let kind = error.kind();
                kind != io::ErrorKind::NotFound
                    && kind != io::ErrorKind::NotADirectory
                    && !beneath::is_loop(&error)
            }
        }
    }

    /// Returns `true` if programs that map files in it get 2 MiB pages.
    pub(crate) fn gives_huge_pages(&self) -> bool {
        // The setting of the machine overrides the option of the mount with two of its values.
        match huge_pages::shmem_setting().as_deref() {
            Ok("force") => true,
            Ok("deny") => false,
            _ => matches!(
                tmpfs::huge_option(&self.folder),
                Ok(HugeOption::Always | HugeOption::WithinSize)
            ),
        }
    }

    /// Checks that a model with this name can be made.
    ///
    /// # Errors
    /// [`Error::Publish`] with [`PublishProblem::InvalidName`].
    pub(crate) fn check_name(&self, name: &str) -> Result<()> {
        let valid = !name.is_empty()
            && name.len() <= NAME_MAX_BYTES
            && !name.starts_with('.')
            && !name.contains(['/', '\0']);
        if valid {
            return Ok(());
        }
        let reason = PublishProblem::InvalidName { name: name.to_owned() };
        Err(publish_error(&self.path, reason))
    }

    /// Checks that there is room for files with these lengths, and for `folders` directories and empty files.
    ///
    /// # Errors
    /// [`Error::Publish`] with [`PublishProblem::NoRoom`] or [`PublishProblem::NoInodes`].
    pub(crate) fn check_room(
        &self,
        lengths: impl ExactSizeIterator<Item = u64>,
        folders: usize,
    ) -> Result<()> {
        let room = self.room()?;
        // The directory of the model, its record, the lock file, and a file that shows whether a user can have
        // access.
        let needed = (lengths.len() + folders + 4) as u64;
        let page_bytes = longshore_sys::page_size_bytes() as u64;
        let whole = |len_bytes: u64| len_bytes.div_ceil(page_bytes).saturating_mul(page_bytes);
        let needed_bytes = lengths.map(whole).fold(page_bytes, u64::saturating_add);
        if let Some(free) = room.free_inodes.filter(|free| needed > *free) {
            return Err(publish_error(&self.path, PublishProblem::NoInodes { needed, free }));
        }
        if let Some(free_bytes) = room.free_bytes.filter(|free| needed_bytes > *free) {
            let reason = PublishProblem::NoRoom { needed_bytes, free_bytes };
            return Err(publish_error(&self.path, reason));
        }
        Ok(())
    }

    /// Returns the room that is left in the tmpfs.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub(crate) fn room(&self) -> Result<tmpfs::Room> {
        tmpfs::room(&self.folder).map_err(|source| Error::Open { path: self.path.clone(), source })
    }

    /// Returns the entry with the name of a model.
    pub(crate) fn existing(&self, name: &str) -> Existing {
        let path = Path::new(name);
        for _ in 0..ATTEMPTS_MAX {
            let model = match directory::open_in(&self.folder, path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Existing::Nothing,
                Err(_) => return Existing::Other,
                Ok(model) => model,
            };
            if let Some(record) = Record::read(&model) {
                return Existing::Model(record, model);
            }
            // A model that is being removed has lost its name before its record.
            if directory::has_name(&self.folder, path, &model) {
                return Existing::Other;
            }
        }
        Existing::Other
    }

    /// Removes the leftovers of publishers that were killed. In a directory in which any user may make
    /// entries, those of other users stay. An error is ignored: the next publisher tries again.
    pub(crate) fn remove_leftovers(&self) {
        for (name, kind) in directory::entries(&self.folder).unwrap_or_default() {
            let Some(name) = name.to_str().filter(|name| name.starts_with('.')) else { continue };
            match (kind, name[1..].strip_suffix(LOCK_SUFFIX), HiddenName::parse(name)) {
                (EntryKind::Directory, _, Some(hidden)) => {
                    let _ = self.remove_leftover(&hidden);
                }
                // Dropping the lock removes its file.
                (EntryKind::File, Some(locked), _) => drop(self.try_lock_name(locked)),
                _ => {}
            }
        }
    }

    /// Locks a name, so that publishers of the same user publish one after the other. Calls `wait` while
    /// another process has the lock. Returns `None` if the lock file belongs to another user, or cannot be
    /// made: then both publish, and the second finds that the name exists.
    ///
    /// # Errors
    /// Those of `wait`.
    pub(crate) fn lock_name(
        &self,
        name: &str,
        mut wait: impl FnMut() -> Result<()>,
    ) -> Result<Option<NameLock<'_>>> {
        loop {
            match self.try_lock_name(name) {
                Ok(Some(lock)) => return Ok(Some(lock)),
                Ok(None) => {
                    wait()?;
                    thread::sleep(LOCK_PERIOD);
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// Locks a name, or returns `None` if another process has the lock.
    fn try_lock_name(&self, name: &str) -> io::Result<Option<NameLock<'_>>> {
        let path = PathBuf::from(format!(".{name}{LOCK_SUFFIX}"));
        let file = directory::open_lock_in(&self.folder, &path)?;
        if directory::attributes(&file)?.owner != effective_uid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let is_locked =
            directory::try_lock(&file)? && directory::has_name(&self.folder, &path, &file);
        Ok(is_locked.then(|| NameLock { target: self, name: path, _file: file }))
    }

    fn remove_leftover(&self, hidden: &HiddenName) -> io::Result<()> {
        // A full tmpfs may have no inode for the lock file.
        let _lock = match self.try_lock_name(&hidden.lock) {
            Ok(None) => return Ok(()),
            locked => locked.ok(),
        };
        let folder = directory::open_in(&self.folder, &hidden.path)?;
        // Another user could have moved a directory here into which that user may write.
        let Attributes { owner, mode, .. } = directory::attributes(&folder)?;
        if owner == effective_uid() && mode & WRITABLE_BY_OTHERS == 0 {
            directory::remove_all(&self.folder, &hidden.path)?;
        }
        Ok(())
    }

    /// Returns `true` if only this user and root can make entries in the directory.
    fn is_own(&self) -> bool {
        directory::attributes(&self.folder).is_ok_and(|it| it.mode & WRITABLE_BY_OTHERS == 0)
    }

    /// Returns the names of the directory that may be models.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let entries = directory::entries(&self.folder)
            .map_err(|source| Error::Open { path: self.path.clone(), source })?;
        let is_candidate = |(name, kind): (OsString, EntryKind)| {
            let name = name.into_string().ok()?;
            (kind == EntryKind::Directory && !name.starts_with('.')).then_some(name)
        };
        Ok(entries.into_iter().filter_map(is_candidate).collect())
    }

    /// Opens the directory of a model and its record. `None` if it is not a model, or if it belongs to
    /// another user and any user may make entries here.
    ///
    /// # Errors
    /// [`Error::Open`] if this process has no descriptors left.
    pub(crate) fn open_model(&self, name: &str) -> Result<Option<(OwnedFd, Record)>> {
        let path = Path::new(name);
        for _ in 0..ATTEMPTS_MAX {
            let model = match directory::open_in(&self.folder, path) {
                Ok(model) => model,
                Err(source) if descriptors::is_exhausted(&source) => {
                    return Err(Error::Open { path: self.path.join(name), source });
                }
                Err(_) => break,
            };
            let is_trusted = self.is_own()
                || directory::attributes(&model).is_ok_and(|it| it.owner == effective_uid());
            if let Some(record) = is_trusted.then(|| Record::read(&model)).flatten() {
                return Ok(Some((model, record)));
            }
            // A new version may have replaced it, and its record is removed.
            if directory::has_name(&self.folder, path, &model) {
                break;
            }
        }
        Ok(None)
    }

    /// Removes a model: gives it a hidden name first, so that no program finds a part of it. Returns
    /// `false` if the name is another model by now. If this process is killed, the next publisher
    /// removes the rest.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn remove(&self, name: &str, model: &OwnedFd) -> Result<bool> {
        let path = self.path.join(name);
        let failed = || write_error(&path);
        // With this lock, no publisher of this user replaces the model meanwhile.
        let _publishing = self.try_lock_name(name);
        if !directory::has_name(&self.folder, Path::new(name), model) {
            return Ok(false);
        }
        // It is not known yet which model this will be.
        let (hidden, _lock) = self.lock_hidden_name(name);
        match directory::rename_new(&self.folder, Path::new(name), &hidden.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            renamed => renamed.map_err(failed())?,
        }
        let is_it = directory::has_name(&self.folder, &hidden.path, model);
        if !is_it {
            // A publisher has replaced it. If its name exists again, the newest one stays.
            match directory::rename_new(&self.folder, &hidden.path, Path::new(name)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Without the lock, another process may have removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                back => return back.map_err(failed()).map(|()| false),
            }
        }
        directory::remove_all(&self.folder, &hidden.path).map_err(failed())?;
        Ok(is_it)
    }

    /// Chooses a hidden name and locks it. Another process that removes old lock files can have the lock of a
    /// new one for a moment; then it is another name. A full tmpfs may have no inode for the lock file, so there
    /// may be no lock.
    fn lock_hidden_name(&self, name: &str) -> (HiddenName, Option<NameLock<'_>>) {
        for _ in 1..ATTEMPTS_MAX {
            let hidden = HiddenName::new(name);
            match self.try_lock_name(&hidden.lock) {
                Ok(None) => {}
                locked => return (hidden, locked.ok().flatten()),
            }
        }
        (HiddenName::new(name), None)
    }

    /// Begins a model: makes its hidden directory.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn begin(&self, name: &str) -> Result<Partial<'_>> {
        let failed = |source| write_error(&self.path)(source);
        for _ in 0..ATTEMPTS_MAX {
            let hidden = HiddenName::new(name);
            let Some(lock) = self.try_lock_name(&hidden.lock).map_err(failed)? else { continue };
            let folder = match directory::create_in(&self.folder, &hidden.path) {
                Ok(folder) => folder,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(failed(error)),
            };
            let name = hidden.path;
            let partial = Partial { target: self, name, folder, is_renamed: false, _lock: lock };
            // Those that this directory gives to new entries could permit more than the source does.
            directory::remove_access_lists(&partial.folder).map_err(failed)?;
            return Ok(partial);
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }
}

/// The name of a directory that is incomplete or removed.
struct HiddenName {
    path: PathBuf,
    /// The name whose lock its owner has.
    lock: String,
}

impl HiddenName {
    fn new(name: &str) -> Self {
        let random = RandomState::new().build_hasher().finish();
        let lock = format!("{name}.{random:016x}");
        Self { path: PathBuf::from(format!(".{lock}{SUFFIX}")), lock }
    }

    fn parse(path: &str) -> Option<Self> {
        let lock = path.strip_suffix(SUFFIX)?.strip_prefix('.')?;
        let (name, random) = lock.rsplit_once('.')?;
        let is_random = random.len() == 16 && random.bytes().all(|it| it.is_ascii_hexdigit());
        let lock = (!name.is_empty() && is_random).then(|| lock.to_owned())?;
        Some(Self { path: PathBuf::from(path), lock })
    }
}

impl Partial<'_> {
    /// Returns the path by which the heap finds a directory of the model.
    pub(crate) fn path_of(folder: BorrowedFd<'_>) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
    }

    /// Opens a directory of the model; the empty path is the model itself.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn open(&self, path: &Path) -> Result<OwnedFd> {
        let opened = match path.as_os_str().is_empty() {
            true => self.folder.try_clone(),
            false => directory::open_in(&self.folder, path),
        };
        opened.map_err(write_error(&self.target.path))
    }

    /// Makes a directory of the model.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn create(&self, path: &Path) -> Result<OwnedFd> {
        directory::create_in(&self.folder, path).map_err(write_error(&self.target.path))
    }

    /// Gives the complete model its name. Returns `false`, and keeps the model hidden, if the name
    /// exists.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn rename(&mut self, name: &str) -> Result<bool> {
        match directory::rename_new(self.target.folder.as_fd(), &self.name, Path::new(name)) {
            Ok(()) => {
                self.is_renamed = true;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(write_error(&self.target.path.join(name))(error)),
        }
    }

    /// Exchanges the complete model and the one that has its name, which must be `old`. The old one is then
    /// removed, when this value is dropped; programs that have its files open keep them. Returns `false` if
    /// the name does not exist any more, or is another entry by now.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn exchange(&mut self, name: &str, old: impl AsFd) -> Result<bool> {
        let at = self.target.folder.as_fd();
        let exchange = || match directory::exchange(at, &self.name, Path::new(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(write_error(&self.target.path.join(name))(error)),
        };
        if !exchange()? {
            return Ok(false);
        }
        let is_old = directory::has_name(at, &self.name, old);
        if is_old {
            return Ok(true);
        }
        // The other entry gets its name back. If it is gone, the model has the name.
        self.is_renamed = true;
        self.is_renamed = !exchange()?;
        Ok(self.is_renamed)
    }
}

impl Drop for NameLock<'_> {
    fn drop(&mut self) {
        // Its name goes before the lock, so that a waiting publisher does not lock a file without a name.
        let _ = directory::remove_all(&self.target.folder, &self.name);
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // If this fails, the next publisher removes it.
            let _ = directory::remove_all(&self.target.folder, &self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn only_the_model_that_was_found_is_exchanged() {
        let Ok(shm) = tempfile::tempdir_in("/dev/shm") else {
            return println!("SKIPPED: /dev/shm is missing");
        };
        let target = match Target::open(shm.path()) {
            Err(Error::Publish { reason: PublishProblem::NotTmpfs, .. }) => {
                return println!("SKIPPED: /dev/shm is not a tmpfs");
            }
            opened => opened.unwrap(),
        };
        let create = |name: &str| directory::create_in(&target.folder, Path::new(name)).unwrap();
        let has_name =
            |name, it: &OwnedFd| directory::has_name(&target.folder, Path::new(name), it);
        let old = create("old");
        let other = create("model");
        let mut partial = target.begin("model").unwrap();
        assert!(!partial.exchange("missing", &old).unwrap());
        assert!(!partial.exchange("model", &old).unwrap());
        assert!(has_name("model", &other));
        assert!(partial.exchange("model", &other).unwrap());
        assert!(has_name("model", &partial.folder));
        drop(partial);
        assert!(!has_name("model", &other) && has_name("old", &old));
    }

    #[test]
    fn a_hidden_name_is_locked_while_others_remove_old_lock_files() {
        let Ok(shm) = tempfile::tempdir_in("/dev/shm") else {
            return println!("SKIPPED: /dev/shm is missing");
        };
        let target = match Target::open(shm.path()) {
            Err(Error::Publish { reason: PublishProblem::NotTmpfs, .. }) => {
                return println!("SKIPPED: /dev/shm is not a tmpfs");
            }
            target => target.unwrap(),
        };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    target.remove_leftovers();
                }
            });
            let locked = (0..3000).filter(|_| target.lock_hidden_name("model").1.is_some()).count();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(locked, 3000);
        });
    }
}
