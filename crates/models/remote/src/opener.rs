//! An opener of files of this machine and of HTTP servers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_formats::directory::ModelFilter;
use longshore_load::{
    Error, FormatChoice, Object, ObjectError, Opened, Opener, Result, SourceFile, find_files,
    open_by,
};
use longshore_mem::VolatileSliceMut;
use url::Url;

use crate::http::{Client, HttpError, HttpFile, Patience};

/// The longest time for which a server may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The access to files of HTTP servers, with connections that are kept.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    client: Arc<Client>,
}

/// Returns `true` if the path is the URL of a file of an HTTP server. A file of such a name is written as
/// `./https:/…`.
pub fn is_remote(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.starts_with(b"https:/") || bytes.starts_with(b"http:/")
}

impl Remote {
    /// Makes the access, without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens files of this machine and of HTTP servers like [`longshore_load::open`].
    ///
    /// # Errors
    /// Those of [`longshore_load::open`]; [`Error::Open`] for a file that a server does not send.
    pub fn open(&self, sources: &[impl AsRef<Path>], format: FormatChoice) -> Result<Opened> {
        let mut files: Vec<PathBuf> = Vec::new();
        for source in sources {
            match is_remote(source.as_ref()) {
                true => files.push(source.as_ref().to_owned()),
                false => files.extend(find_files(source, format, &ModelFilter::new())?),
            }
        }
        open_by(&files, format, self)
    }

    /// Opens a file of this machine, or the URL of one of an HTTP server.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotRegular`].
    pub fn open_file(&self, path: &Path) -> Result<SourceFile> {
        if is_remote(path) { self.open_url(path) } else { SourceFile::open(path) }
    }

    fn open_url(&self, path: &Path) -> Result<SourceFile> {
        let text = path.to_string_lossy();
        let failed = |name: &Path, kind, error: Box<dyn std::error::Error + Send + Sync>| {
            Error::Open { path: name.to_owned(), source: io::Error::new(kind, error) }
        };
        let url = Url::parse(&text)
            .map_err(|error| failed(path, io::ErrorKind::InvalidInput, error.into()))?;
        let name = PathBuf::from(shown(&url));
        let patience = Patience { stop: &|| false, silence_max: SILENCE_MAX };
        let file = HttpFile::open(&self.client, &url, &[], &patience);
        let file = file.map_err(|error| failed(&name, kind(&error), error.into()))?;
        Ok(SourceFile::from_object(name, Arc::new(file)))
    }
}

impl Opener for Remote {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        self.open_file(path)
    }
}

impl Object for HttpFile {
    fn len(&self) -> u64 {
        self.len()
    }

    fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<(), ObjectError> {
        // Most headers need no other request.
        let end = (offset as usize).saturating_add(memory.len());
        if let Some(known) = self.first().get(offset as usize..end) {
            let written = memory.write(0, known);
            return written.map_err(|error| ObjectError::Failed(error.into()));
        }
        let patience = Patience { stop, silence_max: SILENCE_MAX };
        let read = HttpFile::read(self, memory, offset, &patience);
        read.map_err(|error| match error {
            HttpError::Changed => ObjectError::Changed,
            HttpError::Stopped => ObjectError::Stopped,
            error => ObjectError::Failed(error.into()),
        })
    }
}

/// Returns a URL without the parts that can be secret.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for URLs without a host, which have no user.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

/// Returns the kind of the nearest error of a file of this machine.
fn kind(error: &HttpError) -> io::ErrorKind {
    match error {
        HttpError::NotFound { .. } => io::ErrorKind::NotFound,
        HttpError::Refused { .. } => io::ErrorKind::PermissionDenied,
        HttpError::Connection(error) => error.kind(),
        _ => io::ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        let url = Url::parse("https://user:password@host/a/b.gguf?X-Amz-Signature=1#x").unwrap();
        assert_eq!(shown(&url), "https://host/a/b.gguf");
        assert!(is_remote(Path::new("http://a")) && !is_remote(Path::new("./http:/a")));
    }
}
