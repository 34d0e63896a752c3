//! The files of a model in memory, each in a memfd, where no tmpfs can be used.

use std::path::{Path, PathBuf};
use std::time::Instant;

use longshore_heap::{Heap, PageReport, Sealing, SharedBuffer};

use super::origin::Origin;
use super::remote::RemoteModel;
use super::tree::{Links, Tree};
use super::{add, check_manifest, has_weights};
use crate::budget;
use crate::error::Result;
use crate::loader::Loader;
use crate::open::HeadersOfModel;
use crate::plan::Plan;
use crate::progress::{CancelToken, Progress};
use crate::verify::Manifest;

/// A model whose files are in memory of this process.
#[derive(Debug)]
#[non_exhaustive]
pub struct HeldModel {
    /// The name under which it would be published.
    pub name: String,
    /// The file that was named as the source; `None` if that is a directory.
    pub main: Option<PathBuf>,
    /// The directories of the model, each after the one that contains it.
    pub folders: Vec<PathBuf>,
    /// The files, sorted by path.
    pub files: Vec<HeldFile>,
    /// The page sizes of the memory.
    pub pages: PageReport,
}

/// A file of a [`HeldModel`].
#[derive(Debug)]
#[non_exhaustive]
pub struct HeldFile {
    /// The path in the model.
    pub path: PathBuf,
    /// The content, sealed. Its descriptor is a file with the length of the content.
    pub memory: SharedBuffer,
}

impl HeldModel {
    /// Loads the files of the model at `source`, which has the same forms as in
    /// [`Publisher::publish`](super::Publisher::publish). Each file needs a descriptor.
    ///
    /// # Errors
    /// Those of [`Publisher::publish`](super::Publisher::publish) for a source.
    pub fn load(
        source: &Path,
        manifest: Option<&Manifest>,
        cancel: &CancelToken,
        observe: impl FnMut(Progress),
    ) -> Result<Self> {
        let tree = Tree::of(source, Links::Followed)?;
        Self::load_from(&Origin::Local(tree), manifest, cancel, observe)
    }

    /// Loads the files of a model on servers, like [`HeldModel::load`].
    ///
    /// # Errors
    /// Those of [`HeldModel::load`].
    pub fn load_remote(
        model: &RemoteModel,
        manifest: Option<&Manifest>,
        cancel: &CancelToken,
        observe: impl FnMut(Progress),
    ) -> Result<Self> {
        Self::load_from(&Origin::Remote(model), manifest, cancel, observe)
    }

    fn load_from(
        tree: &Origin<'_>,
        manifest: Option<&Manifest>,
        cancel: &CancelToken,
        mut observe: impl FnMut(Progress),
    ) -> Result<Self> {
        let began = Instant::now();
        let manifest = manifest.map(Manifest::resolved);
        let (total_bytes, records) = (tree.content_bytes(), tree.records());
        // Each load checks its own file, but the whole model must fit, too.
        drop(budget::check(total_bytes, &Heap::Memfd, None)?);
        let headers = HeadersOfModel::default();
        let mut done_bytes = 0;
        let (mut files, mut pages) = (Vec::with_capacity(records.len()), PageReport::default());
        for (number, file) in records.iter().enumerate() {
            let opened = tree.open(number)?;
            if has_weights(opened.path()) {
                headers.check(&opened)?;
            }
            let full = opened.path().to_owned();
            let mut plan = Plan::new();
            plan.push(opened)?;
            let mut loader = Loader::new().heap(Heap::Memfd).cancel(cancel).observe(|progress| {
                let done_bytes = done_bytes + progress.done_bytes;
                observe(Progress::new(done_bytes, total_bytes, began.elapsed()));
            });
            for kind in manifest.iter().flat_map(Manifest::kinds) {
                loader = loader.digest(kind);
            }
            let loaded = loader.load(&plan)?;
            let digests = loaded.files.first().map_or(&[][..], |file| &file.digests);
            check_manifest(manifest.as_ref(), &full, digests)?;
            add(&mut pages, &loaded.report.pages);
            done_bytes += file.bytes;
            let memory = loaded.buffer.share(Sealing::Content)?;
            files.push(HeldFile { path: PathBuf::from(&file.path), memory });
        }
        tree.check_unchanged()?;
        let name = tree.default_name();
        let (main, folders) = (tree.main().map(Path::to_owned), tree.folders().to_vec());
        Ok(Self { name, main, folders, files, pages })
    }
}
