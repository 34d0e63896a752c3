//! An opener of files of this machine and of HTTP servers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longshore_formats::Format;
use longshore_formats::directory::{FindError, ModelFilter, PIPELINE_NAME};
use longshore_load::{
    Error, FormatChoice, HubCache, HubName, Object, ObjectError, Opened, Opener, Result,
    SourceFile, find_files, open_by,
};
use longshore_mem::VolatileSliceMut;
use url::Url;

use crate::http::{Client, HttpError, HttpFile, Patience};
use crate::hub::{self, Hub, HubError};

/// The longest time for which a server may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The access to files of HTTP servers, with connections that are kept.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    client: Arc<Client>,
    hub: Option<Url>,
    notes: Arc<Mutex<Vec<String>>>,
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

    /// Sets the server that is asked for repositories of the Hugging Face Hub, instead of that of the
    /// environment variable `HF_ENDPOINT`.
    pub fn hub_endpoint(mut self, endpoint: Url) -> Self {
        self.hub = Some(endpoint);
        self
    }

    /// Returns what the user should know about the files that were found, such as that the Hub did not answer.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens files of this machine, of HTTP servers and of the Hub like [`longshore_load::open`].
    ///
    /// # Errors
    /// Those of [`longshore_load::open`]; [`Error::Open`] for a file that a server does not send.
    pub fn open(&self, sources: &[impl AsRef<Path>], format: FormatChoice) -> Result<Opened> {
        let filter = ModelFilter::new();
        let mut files: Vec<PathBuf> = Vec::new();
        for source in sources {
            files.extend(self.find_files(source, format, &filter)?);
        }
        open_by(&files, format, self)
    }

    /// Returns the files to open for a source, like [`longshore_load::find_files`]. A branch or tag of a
    /// repository is looked up in the Hub; if that does not answer, the local cache is used, with a note. A
    /// commit that the cache has, and every name if `HF_HUB_OFFLINE` is set, needs no request.
    ///
    /// # Errors
    /// Those of [`longshore_load::find_files`]; [`Error::Open`] if the Hub refuses or has no such repository.
    pub fn find_files(
        &self,
        source: impl AsRef<Path>,
        format: FormatChoice,
        filter: &ModelFilter,
    ) -> Result<Vec<PathBuf>> {
        let source = source.as_ref();
        if is_remote(source) {
            return Ok(vec![source.to_owned()]);
        }
        let local = || find_files(source, format, filter);
        let Ok(Some(name)) = HubName::from_path(source) else { return local() };
        let is_commit = |it: &String| it.len() == 40 && it.bytes().all(|it| it.is_ascii_hexdigit());
        if hub::is_offline() {
            return local();
        }
        if name.revision.as_ref().is_some_and(is_commit)
            && let Ok(files) = local()
        {
            return Ok(files);
        }
        match self.find_in_hub(&name, format, filter) {
            Err(FindError::Directory(HubError::Http(HttpError::Connection(error)))) => {
                let files = local().map_err(|missing| {
                    let text = format!("the Hub did not answer ({error}), and {missing}");
                    let source_error = io::Error::new(error.kind(), text);
                    Error::Open { path: source.to_owned(), source: source_error }
                })?;
                let note = format!(
                    "{name} is that of the local cache, because the Hub did not answer: {error}"
                );
                self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
                Ok(files)
            }
            Err(FindError::Directory(error)) => {
                let kind = match &error {
                    HubError::Http(error) => kind(error),
                    HubError::Refused { .. } => io::ErrorKind::PermissionDenied,
                    HubError::Answer(_) => io::ErrorKind::InvalidData,
                };
                Err(Error::Open { path: source.to_owned(), source: io::Error::new(kind, error) })
            }
            Err(FindError::Problem { folder, reason }) => {
                let path = if folder.is_empty() { source.to_owned() } else { source.join(folder) };
                Err(Error::Directory { path, reason })
            }
            Err(FindError::Pipeline(error)) => {
                let error = io::Error::new(io::ErrorKind::InvalidData, error);
                Err(Error::Open { path: source.join(PIPELINE_NAME), source: error })
            }
            found => found.map_err(|_| Error::Open {
                path: source.to_owned(),
                source: io::ErrorKind::Other.into(),
            }),
        }
    }

    fn find_in_hub(
        &self,
        name: &HubName,
        format: FormatChoice,
        filter: &ModelFilter,
    ) -> std::result::Result<Vec<PathBuf>, FindError<HubError>> {
        let patience = Patience { stop: &|| false, silence_max: SILENCE_MAX };
        let hub = Hub::from_env(&self.client, self.hub.as_ref()).map_err(FindError::Directory)?;
        let revision = hub.revision(name, &patience).map_err(FindError::Directory)?;
        let mut filter = filter.clone();
        if let Some(variant) = &name.variant {
            filter = filter.variant(variant);
        }
        filter = match format {
            FormatChoice::Gguf => filter.format(Format::Gguf),
            FormatChoice::Safetensors => filter.format(Format::Safetensors),
            _ => filter,
        };
        let files = match &name.file {
            Some(file) => vec![file.clone()],
            None => hub.find(name, &revision, &filter, &patience)?,
        };
        let cache = HubCache::from_env().ok();
        let place = |file: String| {
            let mut at_commit = name.clone();
            (at_commit.revision, at_commit.variant) = (Some(revision.commit.clone()), None);
            at_commit.file = Some(file);
            let cached = cache.as_ref().and_then(|cache| cache.locate(&at_commit).ok());
            cached.unwrap_or_else(|| PathBuf::from(at_commit.to_string()))
        };
        Ok(files.into_iter().map(place).collect())
    }

    /// Opens a file of this machine, or the URL of one of an HTTP server.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotRegular`].
    pub fn open_file(&self, path: &Path) -> Result<SourceFile> {
        if is_remote(path) {
            return self.open_url(path);
        }
        match HubName::from_path(path) {
            Ok(Some(HubName { revision: Some(commit), file: Some(_), .. }))
                if commit.len() == 40 =>
            {
                self.open_in_hub(path)
            }
            _ => SourceFile::open(path),
        }
    }

    /// Opens a file of a repository at a commit.
    fn open_in_hub(&self, path: &Path) -> Result<SourceFile> {
        let failed = |kind, error: Box<dyn std::error::Error + Send + Sync>| Error::Open {
            path: path.to_owned(),
            source: io::Error::new(kind, error),
        };
        let hub = Hub::from_env(&self.client, self.hub.as_ref());
        let hub = hub.map_err(|error| failed(io::ErrorKind::InvalidInput, error.into()))?;
        let name = HubName::from_path(path).ok().flatten();
        let parts = name.as_ref().and_then(|it| Some((it.revision.as_ref()?, it.file.as_ref()?)));
        let Some((name, (commit, file))) = name.as_ref().zip(parts) else {
            return SourceFile::open(path);
        };
        let patience = Patience { stop: &|| false, silence_max: SILENCE_MAX };
        let url = hub.file_url(name, commit, file);
        let opened = HttpFile::open(&self.client, &url, hub.secret(), &patience);
        let opened = opened.map_err(|error| failed(kind(&error), error.into()))?;
        Ok(SourceFile::from_object(path, Arc::new(opened)))
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
