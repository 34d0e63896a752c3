//! Publishes models as files in a tmpfs, for every program of the machine.
//!
//! ```text
//!   source ─► Tree: files, versions ─► Partial: each file filled by a Loader, linked when complete
//!                                         │
//!               unchanged? verified? ◄────┘
//!                     │
//!                     ▼ renameat2
//!                DIR/NAME with all files and the record of their versions
//! ```
//!
//! A model appears complete or not at all. See [`Publisher`].

mod access;
mod hold;
mod models;
mod origin;
mod problem;
mod published;
mod record;
mod refresh;
mod remote;
mod target;
mod tree;

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use longshore_heap::{self as heap, Heap, PageReport};
use longshore_sys::directory::{self, GivenAccess};

pub use hold::{HeldFile, HeldModel};
pub use models::{ManagerLock, ModelUse, PublishedModel, PublishedModels, SourceState};
pub use problem::PublishProblem;
pub use published::{Outcome, Published, PublishedFile};
pub(crate) use remote::RemoteFile;
pub use remote::{FoundModel, RemoteModel};

use crate::budget;
use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::loader::Loader;
use crate::open::HeadersOfModel;
use crate::plan::Plan;
use crate::progress::{CancelToken, Progress};
use crate::source::SourceFile;
use crate::verify::Manifest;
use access::{Access, CopyAccess};
use origin::Origin;
use record::{FileRecord, Record};
use refresh::{limit, refresh};
use target::{Existing, Partial, Target};
use tree::{Links, Tree, publish_error, write_error};

/// The number of times that a model is renamed while other programs make and remove the name.
const RENAMES_MAX: u32 = 100;

/// A builder that publishes models in a directory of a tmpfs.
///
/// A model is a directory, a single file, the index of a safetensors model with its shards, or the first
/// split of a GGUF model with the others. It becomes a directory with files of the same names, each
/// filled by a [`Loader`] in memory of its own. The directory appears when all files are complete and
/// verified, or not at all.
///
/// The files of the model belong to the user of this process. Group and permission bits of the source are
/// carried over, without write permission; if the source belongs to another user, an access control list gives
/// that user the permissions that the owner of the source has. No user has more access than to the source,
/// whose directories count, too.
///
/// ```no_run
/// use longshore_load::Publisher;
///
/// let published = Publisher::new("/models").publish("/srv/models/llama".as_ref())?;
/// println!("{}", published.path.display());
/// # Ok::<(), longshore_load::Error>(())
/// ```
pub struct Publisher<'a> {
    target: PathBuf,
    name: Option<String>,
    replace: bool,
    pin: bool,
    links: Links,
    mode: Option<u32>,
    digests: Vec<DigestKind>,
    manifest: Option<Manifest>,
    cancel: CancelToken,
    observe: Option<Box<dyn FnMut(Progress) + 'a>>,
}

/// The results of filling the files of a model.
struct Filled {
    files: Vec<PublishedFile>,
    records: Vec<FileRecord>,
    pages: PageReport,
    access: CopyAccess,
}

/// The model that has the name already.
enum Found {
    None,
    /// The same versions of the same files.
    Same(Same),
    /// Another one, which may be replaced.
    Old(Record, OwnedFd),
}

/// The model that is published already, in its present version.
struct Same {
    record: Record,
    folder: OwnedFd,
    /// `true` if its permissions were changed.
    is_changed: bool,
}

impl<'a> Publisher<'a> {
    /// Makes a publisher for a directory of a tmpfs. It must belong to root or to this user, and other
    /// users may not be able to write to it, unless it has the sticky bit, as `/dev/shm` has.
    pub fn new(target: impl Into<PathBuf>) -> Self {
        Self {
            target: target.into(),
            name: None,
            replace: false,
            pin: false,
            links: Links::Followed,
            mode: None,
            digests: Vec::new(),
            manifest: None,
            cancel: CancelToken::new(),
            observe: None,
        }
    }

    /// Sets the name of the model. Without it, the name is that of the source: of the directory, of the
    /// repository in the cache of the Hugging Face Hub, or of the file without its ending.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets whether a model of this name that is another model, or another version, is replaced.
    /// Programs that have its files open keep them.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets whether the model is pinned, so that no server evicts it. A new version of a pinned model is
    /// pinned, too.
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Refuses symbolic links in the path of the source, for a program that publishes it again and again: a
    /// user who can change a link could choose another source.
    pub fn refuse_links(mut self) -> Self {
        self.links = Links::Refused;
        self
    }

    /// Sets the permission bits of the files, in place of those of the source. Bits for writing are
    /// ignored.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode & 0o555);
        self
    }

    /// Adds a checksum to compute over every file.
    pub fn digest(mut self, kind: DigestKind) -> Self {
        if !self.digests.contains(&kind) {
            self.digests.push(kind);
        }
        self
    }

    /// Verifies the files against a manifest. It must name each safetensors and GGUF file; other files
    /// are verified if it names them.
    pub fn manifest(mut self, manifest: &Manifest) -> Self {
        self.manifest = Some(manifest.resolved());
        manifest.kinds().into_iter().fold(self, Self::digest)
    }

    /// Sets the token that cancels the publication.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Sets a function that is called with the progress, as [`Loader::observe`] calls it for each file.
    pub fn observe(mut self, observe: impl FnMut(Progress) + 'a) -> Self {
        self.observe = Some(Box::new(observe));
        self
    }

    /// Publishes the model at `source`.
    ///
    /// If the same versions of the same files are published under this name already, nothing is read, and
    /// they get the permissions that a new copy would have.
    /// Several publishers may use one directory at the same time. If two of the same user publish under
    /// the same name, the second waits for the first.
    ///
    /// # Errors
    /// [`Error::Publish`], [`Error::Write`], [`Error::Changed`] if a file of the source changes, and
    /// those of [`Loader::load`]. Then no model appears, and an existing one stays.
    pub fn publish(self, source: &Path) -> Result<Published> {
        let target = Target::open(&self.target)?;
        target.remove_leftovers();
        let tree = Tree::of(source, self.links)?;
        self.publish_from(&target, &Origin::Local(tree))
    }

    /// Publishes a model on this machine or on servers.
    ///
    /// # Errors
    /// Those of [`Publisher::publish`].
    pub fn publish_found(self, model: &FoundModel) -> Result<Published> {
        match model {
            FoundModel::Local(source) => self.publish(source),
            FoundModel::Remote(model) => self.publish_remote(model),
        }
    }

    /// Publishes a model whose files are on servers, like [`Publisher::publish`]. Only the user of this process may
    /// read the copy, unless [`Publisher::mode`] requests more.
    ///
    /// # Errors
    /// Those of [`Publisher::publish`].
    pub fn publish_remote(self, model: &RemoteModel) -> Result<Published> {
        let target = Target::open(&self.target)?;
        target.remove_leftovers();
        if model.files().is_empty() {
            return Err(publish_error(model.source(), PublishProblem::Empty));
        }
        self.publish_from(&target, &Origin::Remote(model))
    }

    fn publish_from(mut self, target: &Target, tree: &Origin<'_>) -> Result<Published> {
        let began = Instant::now();
        let name = self.name.clone().unwrap_or_else(|| tree.default_name());
        target.check_name(&name)?;
        // The same model may be published by another process of a job, such as another rank.
        let total_bytes = tree.content_bytes();
        let _lock = target.lock_name(&name, || {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled { done_bytes: 0, total_bytes });
            }
            if let Some(observe) = &mut self.observe {
                observe(Progress::new(0, total_bytes, began.elapsed()));
            }
            Ok(())
        })?;
        let mut found = self.find(target, &name, tree)?;
        if let Found::Old(record, old) = &found {
            self.pin |= directory::exists(old, Path::new(record::PIN_NAME));
            // Another model stays as it is until it is replaced.
            if tree.is_source_of(record) {
                tree.limit(record, old.as_fd(), self.mode)?;
            }
        }
        tree.check_owners()?;
        if let Found::Same(same) = &found {
            return self.described(target, &name, tree, same, began);
        }
        self.check_headers(tree, began)?;
        let lengths: Vec<_> = tree.records().iter().map(|file| file.bytes).collect();
        target.check_room(lengths.into_iter(), tree.folders().len() + usize::from(self.pin))?;
        // Each load checks its own file, but the whole model must fit, too.
        drop(budget::check(tree.content_bytes(), &Heap::MemfdBasePages, None)?);

        let mut partial = target.begin(&name)?;
        let filled = self.fill(tree, &partial, began).map_err(|error| named(error, target))?;
        tree.check_unchanged()?;
        let mut attempts = 0;
        let outcome = loop {
            if partial.rename(&name)? {
                break Outcome::New;
            }
            attempts += 1;
            if attempts == RENAMES_MAX {
                return Err(publish_error(&target.path().join(&name), PublishProblem::NameExists));
            }
            // Another publisher may have published the model meanwhile.
            found = self.find(target, &name, tree)?;
            match &found {
                Found::Same(same) => return self.described(target, &name, tree, same, began),
                Found::Old(_, old) if partial.exchange(&name, old)? => break Outcome::Replaced,
                Found::Old(..) | Found::None => {}
            }
        };
        // Permissions of the source may have changed meanwhile. It is published, also if this fails.
        let _ = tree.refresh(partial.folder.as_fd(), self.mode);
        let directory = target.path().join(&name);
        Ok(Published {
            path: tree.main().map_or_else(|| directory.clone(), |it| directory.join(it)),
            directory,
            outcome,
            files: filled.files,
            content_bytes: tree.content_bytes(),
            pages: filled.pages,
            gives_huge_pages: target.gives_huge_pages(),
            mode: filled.access.mode,
            user: filled.access.user,
            elapsed: began.elapsed(),
        })
    }

    /// Gives the model that is published under the name of `source` the access of the source, without
    /// publishing it. If it is another version, it loses the access that a new copy would not have. If it was
    /// published from another source, it stays as it is.
    ///
    /// # Errors
    /// Those of [`Publisher::publish`] for a source that cannot be read.
    pub fn update_access(&self, source: &Path) -> Result<()> {
        let target = Target::open(&self.target)?;
        let tree = Tree::of(source, self.links)?;
        let name = self.name.clone().unwrap_or_else(|| tree.default_name());
        target.check_name(&name)?;
        let Existing::Model(record, folder) = target.existing(&name) else { return Ok(()) };
        let wanted = Record::new(tree.root(), self.mode, tree.records());
        match record.is_same(&wanted) {
            true => refresh(&tree, folder.as_fd(), self.mode).map(drop),
            false if tree.is_source_of(&record) => limit(&tree, &record, folder.as_fd(), self.mode),
            false => Ok(()),
        }
    }

    /// Finds the model with this name. If it is the same, it gets the access of the source.
    fn find(&self, target: &Target, name: &str, tree: &Origin<'_>) -> Result<Found> {
        let wanted = Record::new(tree.root(), self.mode, tree.records());
        let refuse = |reason| Err(publish_error(&target.path().join(name), reason));
        match target.existing(name) {
            Existing::Nothing => Ok(Found::None),
            Existing::Other => refuse(PublishProblem::NotAModel),
            Existing::Model(record, folder)
                if record.is_same(&wanted)
                    && record.is_complete(&folder)
                    && self.has_digests(&record) =>
            {
                let is_changed = tree.refresh(folder.as_fd(), self.mode)?;
                self.verify(tree, &record)?;
                Ok(Found::Same(Same { record, folder, is_changed }))
            }
            Existing::Model(record, folder) if self.replace => Ok(Found::Old(record, folder)),
            Existing::Model(record, folder) => {
                // It stays, but an old version of this model has no more access than the new one.
                if tree.is_source_of(&record) {
                    tree.limit(&record, folder.as_fd(), self.mode)?;
                }
                refuse(PublishProblem::NameExists)
            }
        }
    }

    /// Returns `true` if the requested checksums of a published model are recorded.
    fn has_digests(&self, record: &Record) -> bool {
        record.files.iter().all(|file| {
            self.digests.iter().all(|kind| file.digests.contains_key(&kind.to_string()))
        })
    }

    fn verify(&self, tree: &Origin<'_>, record: &Record) -> Result<()> {
        for file in &record.files {
            let path = tree.root().join(&file.path);
            check_manifest(self.manifest.as_ref(), &path, &file.digests())?;
        }
        Ok(())
    }

    /// Checks the headers of all files with weights. One file can have many names, with one of two endings.
    fn check_headers(&mut self, tree: &Origin<'_>, began: Instant) -> Result<()> {
        let headers = HeadersOfModel::default();
        let mut seen = HashSet::new();
        let total_bytes = tree.content_bytes();
        for (number, file) in tree.records().iter().enumerate() {
            if let Some(observe) = &mut self.observe {
                observe(Progress::new(0, total_bytes, began.elapsed()));
            }
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled { done_bytes: 0, total_bytes });
            }
            let path = Path::new(&file.path);
            let is_new = |identity| seen.insert((identity, path.extension()));
            if has_weights(path) && file.identity().is_none_or(is_new) {
                headers.check(&tree.open(number)?)?;
            }
        }
        Ok(())
    }

    fn fill(&mut self, tree: &Origin<'_>, partial: &Partial<'_>, began: Instant) -> Result<Filled> {
        let mut access = Access::new(self.mode);
        for path in tree.folders() {
            partial.create(path)?;
        }
        let (total_bytes, records) = (tree.content_bytes(), tree.records());
        let mut filled = Filled {
            files: Vec::with_capacity(records.len()),
            records: Vec::with_capacity(records.len()),
            pages: PageReport::default(),
            access: CopyAccess::default(),
        };
        let mut done_bytes = 0;
        for (number, mut record) in records.into_iter().enumerate() {
            let mut observe = self.observe.take();
            let path = Path::new(&record.path);
            let source = tree.open(number)?;
            let filled_one = self.fill_file(tree, source, path, partial, &mut access, |progress| {
                if let Some(observe) = &mut observe {
                    let done_bytes = done_bytes + progress.done_bytes;
                    observe(Progress::new(done_bytes, total_bytes, began.elapsed()));
                }
            });
            self.observe = observe;
            let (published, pages) = filled_one?;
            done_bytes += published.len_bytes;
            add(&mut filled.pages, &pages);
            let digests = published.digests.iter();
            record.digests = digests.map(|(kind, it)| (kind.to_string(), it.clone())).collect();
            filled.records.push(record);
            filled.files.push(published);
        }
        let record = Record::new(tree.root(), self.mode, std::mem::take(&mut filled.records));
        filled.access = self.finish(tree, partial, &mut access, &record)?;
        Ok(filled)
    }

    fn fill_file(
        &self,
        tree: &Origin<'_>,
        source: SourceFile,
        path: &Path,
        partial: &Partial<'_>,
        access: &mut Access,
        observe: impl FnMut(Progress),
    ) -> Result<(PublishedFile, PageReport)> {
        let folder = partial.open(path.parent().unwrap_or(Path::new("")))?;
        let (full, len_bytes) = (source.path().to_owned(), source.len());
        let group = directory::attributes(&folder).map_err(write_error(&full))?.group;
        let permissions = tree.access_of_file(&source, folder.as_fd(), group, access)?;
        let mut plan = Plan::new();
        plan.push(source)?;
        let mut loader = Loader::new()
            .heap(Heap::Tmpfs(Partial::path_of(folder.as_fd())))
            .cancel(&self.cancel)
            .observe(observe);
        for kind in &self.digests {
            loader = loader.digest(*kind);
        }
        let loaded = loader.load(&plan)?;
        let digests = loaded.files.into_iter().next().map(|file| file.digests).unwrap_or_default();
        check_manifest(self.manifest.as_ref(), &full, &digests)?;
        let name = Path::new(path.file_name().unwrap_or_default());
        loaded.buffer.link(folder.as_fd(), name, 0o400)?;
        let given = directory::find_in(&folder, name).and_then(|copy| permissions.give(copy));
        given.map_err(write_error(&full))?;
        Ok((PublishedFile { path: path.to_owned(), len_bytes, digests }, loaded.report.pages))
    }

    /// Writes the record, and sets the attributes of all directories. Returns those of the model's
    /// directory.
    fn finish(
        &self,
        tree: &Origin<'_>,
        partial: &Partial<'_>,
        access: &mut Access,
        record: &Record,
    ) -> Result<CopyAccess> {
        let failed = || write_error(&self.target);
        let json = serde_json::to_vec(record).map_err(std::io::Error::other).map_err(failed())?;
        if json.len() as u64 > record::LEN_MAX_BYTES {
            return Err(publish_error(tree.root(), PublishProblem::RecordTooLong));
        }
        let written = directory::write_new(&partial.folder, Path::new(record::NAME), &json);
        let written = written.map_err(failed())?;
        if self.pin {
            models::pin(partial.folder.as_fd()).map_err(failed())?;
        }
        let mut given = CopyAccess::default();
        // The model itself comes last.
        let folders = tree.folders().iter().rev().map(PathBuf::as_path).chain([Path::new("")]);
        for path in folders {
            let folder = partial.open(path)?;
            let group = directory::attributes(&folder).map_err(failed())?.group;
            let permissions = tree.access_of_directory(path, folder.as_fd(), group, access)?;
            if path.as_os_str().is_empty() {
                access.of_record().give(&written).map_err(failed())?;
                given = permissions;
            }
            permissions.give(&folder).map_err(failed())?;
        }
        Ok(given)
    }

    /// Pins a model that was published before if that is requested, and describes it.
    fn described(
        &self,
        target: &Target,
        name: &str,
        tree: &Origin<'_>,
        same: &Same,
        began: Instant,
    ) -> Result<Published> {
        let directory = target.path().join(name);
        let failed = || write_error(&directory);
        if self.pin {
            models::pin(same.folder.as_fd()).map_err(failed())?;
        }
        let files = same.record.files.iter().map(|file| PublishedFile {
            path: PathBuf::from(&file.path),
            len_bytes: file.bytes,
            digests: file.digests(),
        });
        let given = directory::given_access(&same.folder).map_err(failed())?;
        // Another program gave it another list.
        let given = given.unwrap_or(GivenAccess { mode: 0o700, user: None });
        let outcome = match same.is_changed {
            true => Outcome::AccessChanged,
            false => Outcome::AlreadyPublished,
        };
        Ok(Published {
            path: tree.main().map_or_else(|| directory.clone(), |it| directory.join(it)),
            outcome,
            files: files.collect(),
            content_bytes: tree.content_bytes(),
            pages: PageReport::default(),
            gives_huge_pages: target.gives_huge_pages(),
            mode: given.mode,
            user: given.user,
            directory,
            elapsed: began.elapsed(),
        })
    }
}

impl std::fmt::Debug for Publisher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("target", &self.target)
            .field("name", &self.name)
            .field("replace", &self.replace)
            .finish_non_exhaustive()
    }
}

/// Compares the checksums of a file with the manifest, if there is one.
fn check_manifest(
    manifest: Option<&Manifest>,
    path: &Path,
    digests: &[(DigestKind, String)],
) -> Result<()> {
    let Some(manifest) = manifest else { return Ok(()) };
    match manifest.check(path, digests) {
        Err(Error::Manifest { .. }) if !has_weights(path) => Ok(()),
        checked => checked,
    }
}

pub(crate) fn has_weights(path: &Path) -> bool {
    matches!(path.extension().and_then(|it| it.to_str()), Some("safetensors" | "gguf"))
}

fn add(sum: &mut PageReport, pages: &PageReport) {
    sum.hugetlb_2m_bytes += pages.hugetlb_2m_bytes;
    sum.huge_2m_bytes += pages.huge_2m_bytes;
    sum.mid_64k_bytes += pages.mid_64k_bytes;
    sum.base_bytes += pages.base_bytes;
    sum.unknown_bytes += pages.unknown_bytes;
}

/// Replaces the path of a descriptor by that of the target in an error of the heap.
fn named(error: Error, target: &Target) -> Error {
    match error {
        Error::Heap(heap::Error::TmpfsFull { len_bytes, free_bytes, source, .. }) => {
            let directory = target.path().to_owned();
            Error::Heap(heap::Error::TmpfsFull { directory, len_bytes, free_bytes, source })
        }
        error => error,
    }
}
