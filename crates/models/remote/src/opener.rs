//! An opener of files of this machine, of HTTP servers, of object stores and of the Hub.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use longshore_formats::directory::ModelFilter;
use longshore_load::{
    CancelToken, Change, Error, FormatChoice, HubName, Opened, Opener, ReadControl, Result,
    SourceFile, is_index, open_by,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::cache::in_cache;
use crate::http::{Client, HttpError, HttpFile, Limits, Requests, UrlRequests};
use crate::hub::Hub;
use crate::object::{RemoteObject, ServerFile};
use crate::shared::{IDLE_TIMEOUT, KeptBytes, Notes, TimeLimit};
use crate::shown::{shown_path, shown_text};
use crate::store::{ObjectName, Provider, Store, StoreOptions};
use crate::xet::XetAccess;

/// The characters that are encoded in the name of a file in a URL (RFC 3986, section 3.3).
const OF_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');
/// The limit on the files of one model.
const FILES_MAX: u64 = 4096;

/// The access to files of HTTP servers, object stores and the Hub, with connections that are kept.
#[derive(Clone, Default)]
pub struct Remote {
    pub(crate) client: Arc<Client>,
    pub(crate) hub: Option<Url>,
    options: StoreOptions,
    time: TimeLimit,
    stop: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// The number of bytes that the first bytes of files take.
    first_bytes: Arc<AtomicUsize>,
    stores: Arc<Mutex<Stores>>,
    notes: Notes,
    /// `true` if no file of this machine is used.
    pub(crate) only_servers: bool,
}

/// The buckets that were used, by provider and name.
type Stores = HashMap<(Provider, String), Arc<Store>>;

/// The requests for a file of a server, and the access to its Xet storage.
type Target = (Arc<dyn Requests>, Option<Arc<XetAccess>>);

/// The error for an option that no object store has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no option of an object store; the names are those of the object_store crate, such as \
     aws_endpoint_url, google_service_account or azure_storage_account_name"
)]
pub struct UnknownOptionError(String);

/// Returns `true` if the path is the URL of a file of an HTTP server, or the name of an object of an object store. A
/// file of such a name is written as `./https:/…`.
pub fn is_remote(path: &Path) -> bool {
    is_url(path) || !matches!(ObjectName::from_path(path), Ok(None))
}

pub(crate) fn is_url(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let begins =
        |scheme: &[u8]| bytes.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme));
    begins(b"https:/") || begins(b"http:/")
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

    /// Sets an option of object stores, which replaces that of the environment. The names are those of the
    /// configuration keys of [`object_store`], such as `aws_region`.
    ///
    /// # Errors
    /// [`UnknownOptionError`].
    pub fn storage_option(
        mut self,
        name: &str,
        value: &str,
    ) -> std::result::Result<Self, UnknownOptionError> {
        match self.options.set(name, value) {
            true => Ok(self),
            false => Err(UnknownOptionError(name.to_owned())),
        }
    }

    /// Makes an access with the same connections that uses no file of this machine: neither files nor the local
    /// cache of the Hub. It has notes, a time limit and a token of its own.
    pub fn only_servers(&self) -> Self {
        Self {
            only_servers: true,
            time: TimeLimit::default(),
            stop: None,
            notes: Notes::default(),
            ..self.clone()
        }
    }

    /// Limits the time that all requests together may take from now on.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time = TimeLimit::new(limit);
        self
    }

    /// Sets the token that ends requests before a load, too: those that find files and open them.
    pub fn cancel(self, token: &CancelToken) -> Self {
        let token = token.clone();
        self.stop_when(move || token.is_cancelled())
    }

    /// Ends these requests also when `stop` returns `true`. It is called ten times a second.
    pub fn stop_when(mut self, stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let before = self.stop.take();
        self.stop = Some(Arc::new(move || before.as_ref().is_some_and(|it| it()) || stop()));
        self
    }

    /// Starts the time limit again, also for the files that were opened. Call it before each load of a file that
    /// stays open for long.
    pub fn restart_time_limit(&self) {
        self.time.restart();
    }

    /// Returns notes for the user about the files that were found, for example that the local cache is used.
    pub fn notes(&self) -> Vec<String> {
        self.notes.all()
    }

    pub(crate) fn note(&self, note: String) {
        self.notes.push(note);
    }

    /// Opens files of this machine, of HTTP servers, of object stores and of the Hub like
    /// [`longshore_load::open`].
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

    /// Opens a file of this machine, the URL of one of an HTTP server, an object, or a file of a repository at a
    /// commit.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotRegular`].
    pub fn open_file(&self, path: &Path) -> Result<SourceFile> {
        if !self.only_servers
            && let Ok(Some(at_commit)) = HubName::from_path(path)
            && at_commit.revision.as_deref().is_some_and(HubName::is_commit)
            && at_commit.file.is_some()
            && let Some(cached) = in_cache(&at_commit)
        {
            let opened = SourceFile::open(&cached)?;
            // The shards of an index need not be there.
            let is_index = is_index(path, FormatChoice::Auto);
            return Ok(if is_index { opened.named(path) } else { opened });
        }
        self.open_on_server(path)
    }

    /// Opens a file like [`Remote::open_file`], but not one of the local cache, whose owner may have put links in
    /// it that lead elsewhere.
    pub(crate) fn open_on_server(&self, path: &Path) -> Result<SourceFile> {
        let name = match is_url(path) {
            true => shown_text(&path.to_string_lossy()).into(),
            false => path.to_owned(),
        };
        match self.requests(path) {
            Ok(None) if self.only_servers => Err(not_on_server(path)),
            Ok(None) => SourceFile::open(path),
            Ok(Some((requests, xet))) => {
                let stop = || self.is_cancelled();
                let limits = self.limits(&stop);
                let opened = HttpFile::open(&self.client, Arc::clone(&requests), &limits);
                let opened = ServerFile::of(opened, xet, &name, &self.notes, &limits);
                let mut file = opened.map_err(|error| match error {
                    HttpError::Refused { status } if HubName::is_one(path) => {
                        self.gated(&name, status)
                    }
                    HttpError::Refused { status } if name != path => {
                        let text = format!(
                            "the server refuses access (status {status}): the URL can have expired, or its user \
                             and password are needed, which are not sent"
                        );
                        failed(&name, HttpError::Credentials(text))
                    }
                    error => failed(&name, error),
                })?;
                let first_bytes = KeptBytes::new(&self.first_bytes, file.first().len());
                if first_bytes.is_none() {
                    file.forget_first();
                }
                if !file.has_version() {
                    self.note(no_versions(&name));
                }
                let linked = file.linked().filter(|_| HubName::is_one(path));
                let sha256 = linked.map(|etag| etag.trim_matches('"').to_owned());
                let time = self.time.clone();
                let origin = requests.origin();
                let origin = origin.map(|it| BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(it)));
                let object = RemoteObject { file, origin, sha256, time, _first_bytes: first_bytes };
                Ok(SourceFile::from_object(name, Arc::new(object)))
            }
            Err(error) => Err(failed(&name, error)),
        }
    }

    /// Makes the error for a file of the Hub that may not be read, with the page on which to ask for access.
    fn gated(&self, path: &Path, status: u16) -> Error {
        let hub = Hub::from_env(&self.client, self.hub.as_ref());
        let refused = match (hub, HubName::from_path(path)) {
            (Ok(hub), Ok(Some(name))) => hub.refused(&name, status).into(),
            _ => Box::from(HttpError::Refused { status }),
        };
        let source = io::Error::new(
            io::ErrorKind::PermissionDenied,
            refused as Box<dyn std::error::Error + Send + Sync>,
        );
        Error::Open { path: path.to_owned(), source }
    }

    /// Returns the requests for a file, with the access to Xet storage if it is one of the Hub; `None` for one of
    /// this machine.
    fn requests(&self, path: &Path) -> std::result::Result<Option<Target>, HttpError> {
        let invalid = |error: Box<dyn std::error::Error + Send + Sync>| {
            HttpError::from(io::Error::new(io::ErrorKind::InvalidInput, error))
        };
        if is_url(path) {
            let url = Url::parse(&path.to_string_lossy()).map_err(|error| invalid(error.into()))?;
            return Ok(Some((Arc::new(UrlRequests::new(url, &[])), None)));
        }
        if let Some(name) = ObjectName::from_path(path).map_err(|error| invalid(error.into()))? {
            return Ok(Some((Arc::new(self.store(&name)?.requests(&name.key)?), None)));
        }
        let Ok(Some(HubName {
            revision: Some(commit), file: Some(file), kind, repository, ..
        })) = HubName::from_path(path)
        else {
            return Ok(None);
        };
        if !HubName::is_commit(&commit) {
            return Ok(None);
        }
        let hub = Hub::from_env(&self.client, self.hub.as_ref())
            .map_err(|error| invalid(error.into()))?;
        let url = hub.file_url(kind, &repository, &commit, &file);
        let token_url = hub.xet_token_url(kind, &repository, &commit);
        let xet = XetAccess::new(&self.client, token_url, hub.secret());
        Ok(Some((Arc::new(UrlRequests::new(url, hub.secret()).of_content()), Some(Arc::new(xet)))))
    }

    /// Returns the bucket of an object.
    pub(crate) fn store(&self, name: &ObjectName) -> std::result::Result<Arc<Store>, HttpError> {
        let stores = || self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.provider, name.bucket.clone());
        if let Some(store) = stores().get(&key) {
            return Ok(Arc::clone(store));
        }
        // Other buckets must not wait for a program that is asked for credentials.
        let stop = || self.is_cancelled();
        let store = Store::new(&self.client, name, &self.options, &self.limits(&stop))?;
        Ok(Arc::clone(stores().entry(key).or_insert_with(|| Arc::new(store))))
    }

    /// Returns `true` if the caller has cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop())
    }

    /// Returns the limits of a request.
    pub(crate) fn limits<'s>(&self, control: &'s dyn ReadControl) -> Limits<'s> {
        Limits { control, idle_timeout: IDLE_TIMEOUT, deadline: self.time.deadline() }
    }
}

impl Opener for Remote {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        self.open_file(path)
    }

    fn shard_path(&self, path: &Path, name: &str) -> PathBuf {
        shard_path(path, name)
    }

    fn permit_files(&self, source: &SourceFile, count: u64) -> Result<()> {
        permit_files(source, count)
    }
}

/// Returns the path of a shard of the index at `path`. In a URL, its name is percent-encoded.
pub(crate) fn shard_path(path: &Path, name: &str) -> PathBuf {
    match is_url(path) {
        true => path.with_file_name(utf8_percent_encode(name, OF_SEGMENT).to_string()),
        false => path.with_file_name(name),
    }
}

/// Refuses an index that names so many files that requests for them would take hours.
pub(crate) fn permit_files(source: &SourceFile, count: u64) -> Result<()> {
    if source.is_remote() && count > FILES_MAX {
        let text =
            format!("it names {count} files, and a model of a server has at most {FILES_MAX}");
        let error = io::Error::new(io::ErrorKind::InvalidData, text);
        return Err(failed(source.path(), error.into()));
    }
    Ok(())
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Returns the error for a source on this machine if only those on servers may be used.
pub(crate) fn not_on_server(path: &Path) -> Error {
    let text = "it is not on a server, or HF_HUB_OFFLINE is set";
    let source = io::Error::new(io::ErrorKind::InvalidInput, text);
    Error::Open { path: shown_path(path), source }
}

/// Makes the note for a server that sends no versions. It is the same for all files of the server.
fn no_versions(name: &Path) -> String {
    let name = name.to_string_lossy();
    let (scheme, rest) = name.split_once("://").unwrap_or_default();
    let server = rest.split('/').next().unwrap_or_default();
    format!(
        "the server {scheme}://{server} sends no versions of its files (ETag or Last-Modified), so a change during \
         the load is not detected"
    )
}

pub(crate) fn failed(path: &Path, error: HttpError) -> Error {
    let path = shown_path(path);
    if matches!(error, HttpError::Changed) {
        return Error::Changed { path, change: Change::Replaced };
    }
    if matches!(error, HttpError::Stopped) {
        return Error::Cancelled { done_bytes: 0, total_bytes: 0 };
    }
    Error::Open { path, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_on_servers_are_known_by_their_beginning() {
        for (path, expected) in
            [("http://a", true), ("./http:/a", false), ("s3://b/k", true), ("gs:/b", true)]
        {
            assert_eq!(is_remote(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn names_of_shards_are_encoded_in_urls() {
        let index = Path::new("http://a/b/i.json");
        let path = shard_path(index, "x/ä #%2e.safetensors");
        assert_eq!(path, Path::new("http://a/b/x/%C3%A4%20%23%252e.safetensors"));
        assert_eq!(shard_path(Path::new("s3://b/i.json"), "#"), Path::new("s3://b/#"));
    }

    #[test]
    fn an_access_to_servers_opens_no_file_of_this_machine() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let remote = Remote::new();
        assert!(remote.open_file(file.path()).is_ok());
        let only = remote.only_servers();
        only.note("of one session".to_owned());
        assert!(remote.notes().is_empty());
        for path in [file.path(), Path::new("hf://org/name/x.bin"), Path::new("./http:/host/x")] {
            let error = only.open_file(path).unwrap_err();
            assert!(error.to_string().contains("cannot open"), "{error}");
            let filter = ModelFilter::new();
            if !HubName::is_one(path) {
                only.find_files(path, FormatChoice::Auto, &filter).unwrap_err();
            }
        }
    }

    #[test]
    fn options_of_object_stores_are_known_by_name_and_not_shown() {
        let remote = Remote::new().storage_option("AWS_Secret_Access_Key", "hidden").unwrap();
        let shown = format!("{remote:?}");
        assert!(shown.contains("aws_secret_access_key") && !shown.contains("hidden"), "{shown}");
        assert!(Remote::new().storage_option("azure_storage_sas_token", "a").is_ok());
        let error = Remote::new().storage_option("aws_acess_key", "a").unwrap_err();
        assert!(error.to_string().contains("\"aws_acess_key\""), "{error}");
    }
}
