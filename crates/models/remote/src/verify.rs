//! The checksums that the Hugging Face Hub has of files.

use std::io::ErrorKind;
use std::path::Path;

use longshore_load::{Error, HubCache, Manifest, Result, SourceFile};

use crate::hub::is_offline;
use crate::opener::Remote;

impl Remote {
    /// Makes a manifest of the SHA-256 checksums that the Hub has of these files, like [`Manifest::of_hub`]. The Hub
    /// is also asked for those of files in its local cache, because other users may be able to write there. If it does
    /// not answer, or `HF_HUB_OFFLINE` is set, the manifest has the checksums by which the cache names them, with a
    /// note.
    ///
    /// # Errors
    /// [`Error::Manifest`] for a file without such a checksum; [`Error::Open`] if the Hub does not have a file.
    pub fn hub_manifest<'f>(
        &self,
        files: impl IntoIterator<Item = &'f SourceFile>,
    ) -> Result<Manifest> {
        let files: Vec<&SourceFile> = files.into_iter().collect();
        let mut of_hub = Vec::new();
        for file in &files {
            of_hub.push(self.in_hub(file.path())?);
        }
        let of_hub = of_hub.iter().map(Option::as_ref).zip(files);
        Manifest::of_hub(of_hub.map(|(of_hub, file)| of_hub.unwrap_or(file)))
    }

    /// Opens the file of the Hub that the local cache has at `path`, under this path.
    fn in_hub(&self, path: &Path) -> Result<Option<SourceFile>> {
        let cached = HubCache::from_env().ok().and_then(|cache| cache.name_of(path));
        let Some(name) = cached else { return Ok(None) };
        let shown = path.display();
        let unknown = |why: &str| {
            self.note(format!(
                "the checksum of {shown} is the one in its name in the cache, because {why}"
            ));
        };
        if is_offline() {
            unknown("HF_HUB_OFFLINE is set");
            return Ok(None);
        }
        match self.open_on_server(Path::new(&name.to_string())) {
            Ok(file) => Ok(Some(file.named(path))),
            Err(error) if is_silence(&error) && !self.is_cancelled() => {
                unknown("the Hub did not answer");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns `true` if there was no answer.
fn is_silence(error: &Error) -> bool {
    let Error::Open { source, .. } = error else { return false };
    !matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
}
