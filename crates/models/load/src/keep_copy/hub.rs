//! Files in the cache of the Hugging Face Hub.
//!
//! No name beneath a repository is followed if it is a symbolic link, except by readers: it could lead anywhere.

use std::io::{self, ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use longshore_sys::directory;

use super::partial::{Partial, open_parent, sync, write_error};
use crate::error::Result;
use crate::find::{HubCache, HubName, RepositoryKind};
use crate::open::{FormatChoice, is_index};
use crate::publish::{RemoteFile, RemoteModel};
use crate::source::SourceFile;

/// The name of the file with the commit of a branch before it gets its own. It is no part of a model.
const REVISION: &str = ".longshore.revision";

impl HubCache {
    /// Sets the commit of the branch or tag of a name, as for `huggingface_hub`. For a name with a commit, it does
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Write`](crate::Error::Write).
    pub fn set_revision(&self, name: &HubName, commit: &str) -> Result<()> {
        let branch = name.revision.as_deref().unwrap_or("main");
        if HubName::is_commit(branch) {
            return Ok(());
        }
        let path = self.repository(name.kind, &name.repository);
        let set = || {
            let above = directory::open_followed(self.directory())?;
            let repository = open_repository(self, name.kind, &name.repository, &above)?;
            let partial = Partial::create(repository.try_clone()?)?;
            set_revision(&repository, branch, commit, &partial)
        };
        set().map_err(write_error(&path.join("refs").join(branch)))
    }
}

/// Moves the files of a model into a cache of the Hub.
pub(super) fn add(
    cache: &HubCache,
    branch: Option<&str>,
    model: &RemoteModel,
    partial: &Partial,
) -> Result<()> {
    let is_last = |file: &&RemoteFile| is_index(Path::new(&file.path), FormatChoice::Auto);
    let (last, first): (Vec<_>, Vec<_>) = model.files().iter().partition(is_last);
    let mut of_commit = None;
    for RemoteFile { path, source } in first.into_iter().chain(last) {
        let Ok(Some(HubName {
            kind, repository, revision: Some(commit), file: Some(file), ..
        })) = HubName::from_path(source.path())
        else {
            let reason = "only files of the Hub can be in its cache; name a directory";
            let error = io::Error::new(ErrorKind::InvalidInput, reason);
            return Err(write_error(source.path())(error));
        };
        let shown = cache.repository(kind, &repository);
        let add = || {
            let repository = open_repository(cache, kind, &repository, partial.above())?;
            let (from, written) = open_parent(partial.folder(), Path::new(path))?;
            let place = PathBuf::from("snapshots").join(&commit).join(&file);
            let (to, name) = open_parent(&repository, &place)?;
            if let Some(blob) = blob_of(source) {
                let blobs = directory::make_in(&repository, Path::new("blobs"))?;
                directory::move_to(&from, written, &blobs, Path::new(&blob))?;
                sync(&blobs);
                // From the folder of the file up to that of the repository.
                let up = "../".repeat(2 + file.matches('/').count());
                directory::link_in(&from, written, Path::new(&format!("{up}blobs/{blob}")))?;
            }
            directory::move_to(&from, written, &to, name)?;
            sync(&to);
            Ok(repository)
        };
        let opened =
            add().map_err(write_error(&shown.join("snapshots").join(&commit).join(&file)))?;
        of_commit = Some((opened, shown, commit));
    }
    let (Some(branch), Some((repository, shown, commit))) = (branch, of_commit) else {
        return Ok(());
    };
    let set = set_revision(&repository, branch, &commit, partial);
    set.map_err(write_error(&shown.join("refs").join(branch)))
}

/// Returns the name of the content of a file in a cache of the Hub: the SHA-256 checksum that the Hub sends. Small files
/// have none. Their content is in the snapshot itself, where `huggingface_hub` also has it if a file system has no
/// links.
pub(super) fn blob_of(source: &SourceFile) -> Option<String> {
    let sum = source.object()?.sha256()?;
    let is_sum = sum.len() == 64 && sum.bytes().all(|it| it.is_ascii_hexdigit());
    is_sum.then(|| sum.to_ascii_lowercase())
}

/// Opens the directory of a repository in that of the cache, and makes it if it is missing.
fn open_repository(
    cache: &HubCache,
    kind: RepositoryKind,
    repository: &str,
    above: &OwnedFd,
) -> io::Result<OwnedFd> {
    let path = cache.repository(kind, repository);
    directory::make_in(above, Path::new(path.file_name().unwrap_or_default()))
}

fn set_revision(
    repository: &OwnedFd,
    branch: &str,
    commit: &str,
    partial: &Partial,
) -> io::Result<()> {
    let place = PathBuf::from("refs").join(branch);
    let (folder, name) = open_parent(repository, &place)?;
    let written = Path::new(REVISION);
    let mut file = directory::create_file_in(partial.folder(), written)?;
    file.write_all(commit.as_bytes())?;
    file.sync_all()?;
    directory::move_to(partial.folder(), written, &folder, name)?;
    sync(&folder);
    Ok(())
}
