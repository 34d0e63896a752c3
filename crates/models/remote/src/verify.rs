//! The checksums that the Hugging Face Hub has of files.

use std::path::Path;

use longshore_load::{HubCache, Manifest, Result, SourceFile};

use crate::hub::is_offline;
use crate::opener::Remote;

impl Remote {
    /// Makes a manifest of the SHA-256 checksums that the Hub has of these files, like [`Manifest::of_hub`]. The Hub
    /// is also asked for those of files in its local cache, because other users may be able to write there. If
    /// `HF_HUB_OFFLINE` is set, or a file is not in the cache that the environment names, the manifest has the
    /// checksum by which a cache names it, with a note.
    ///
    /// # Errors
    /// [`Error::Manifest`](longshore_load::Error::Manifest) for a file without such a checksum;
    /// [`Error::Open`](longshore_load::Error::Open) if the Hub does not answer, or does not have a file.
    pub fn hub_manifest<'f>(
        &self,
        files: impl IntoIterator<Item = &'f SourceFile>,
    ) -> Result<Manifest> {
        let files: Vec<&SourceFile> = files.into_iter().collect();
        let mut of_hub = Vec::new();
        for file in &files {
            of_hub.push(match file.is_remote() {
                true => None,
                false => self.in_hub(file.path())?,
            });
        }
        let of_hub = of_hub.iter().map(Option::as_ref).zip(files);
        Manifest::of_hub(of_hub.map(|(of_hub, file)| of_hub.unwrap_or(file)))
    }

    /// Opens the file of the Hub that the local cache has at `path`, under this path.
    fn in_hub(&self, path: &Path) -> Result<Option<SourceFile>> {
        let cached = HubCache::from_env().ok().and_then(|cache| cache.name_of(path));
        let reason = match cached {
            Some(name) if !is_offline() => {
                let opened = self.open_on_server(Path::new(&name.to_string()))?;
                return Ok(Some(opened.named(path)));
            }
            Some(_) => "HF_HUB_OFFLINE is set",
            None => "the path is not that of a file of the cache (HF_HUB_CACHE)",
        };
        let shown = path.display();
        self.note(format!(
            "{shown} is compared with the checksum in its name, and not with that of the Hub, because {reason}"
        ));
        Ok(None)
    }
}
