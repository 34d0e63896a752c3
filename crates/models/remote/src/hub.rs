//! Repositories of the Hugging Face Hub.
//!
//! ```text
//!   hf://ORG/NAME@REV ─► GET /api/models/ORG/NAME/revision/REV ─► commit, names of files
//!                                                                  │ formats::directory::find
//!                                                                  ▼
//!                        GET /ORG/NAME/resolve/COMMIT/FILE ─► redirect to the storage ─► ranges
//! ```

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use longshore_formats::directory::{Directory, FindError, ModelFilter, find};
use longshore_load::{HubName, RepositoryKind};
use serde::Deserialize;
use url::Url;

use crate::http::{Client, Field, Followed, HttpError, Limits, Tries};
use crate::shown::shown;

/// The Hub, unless `HF_ENDPOINT` names another server.
const ENDPOINT: &str = "https://huggingface.co";
/// The limit on the description of a repository, in bytes. That of one with 10,000 files has about 4 MB.
const DESCRIPTION_MAX_BYTES: usize = 16 << 20;
/// The limit on nested folders. Deeper files are no part of a model.
const DEPTH_MAX: usize = 16;
/// The limit on a token, in bytes.
const TOKEN_MAX_BYTES: u64 = 4096;

/// The access to the Hub.
#[derive(Debug)]
pub(crate) struct Hub<'a> {
    client: &'a Client,
    endpoint: Url,
    token: Option<Field>,
}

/// The files of a repository at a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    /// The commit.
    pub(crate) commit: String,
    /// The names of all files.
    pub(crate) files: Vec<String>,
}

/// The description of a repository, as far as it is used.
#[derive(Deserialize)]
struct Description {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// The reason why the Hub has no model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(
        "the Hub refuses access (status {status}): there is no such repository, or it is private or gated; ask for \
         access at {page}, and set HF_TOKEN to a token that has it"
    )]
    Refused { status: u16, page: String },
    #[error("the Hub has no such repository or revision (status 404)")]
    Missing,
    #[error("the response of the Hub is not valid: {0}")]
    Answer(String),
    #[error("{0}")]
    Settings(String),
}

impl HubError {
    /// Returns `true` if there was no answer, so that the local cache is better than nothing.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Http(HttpError::Connection(_) | HttpError::Status { status: 500.. }))
    }
}

impl<'a> Hub<'a> {
    /// Makes the access that the environment describes, as for `huggingface_hub`: `HF_ENDPOINT`, and the token
    /// of `HF_TOKEN`, of the file `HF_TOKEN_PATH`, or of `HF_HOME/token`.
    pub(crate) fn from_env(client: &'a Client, endpoint: Option<&Url>) -> Result<Self, HubError> {
        let of_env = || env::var("HF_ENDPOINT").ok().filter(|it| !it.is_empty());
        let endpoint = endpoint.map(Url::to_string).or_else(of_env);
        let endpoint = endpoint.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/');
        let endpoint = Url::parse(&format!("{endpoint}/"))
            .map_err(|error| HubError::Settings(format!("HF_ENDPOINT is not valid: {error}")))?;
        let field = |token| {
            let field = Field::new("Authorization", format!("Bearer {token}"));
            field.ok_or_else(|| {
                HubError::Settings("the token of the Hub has a line break".to_owned())
            })
        };
        let token = token().map(field).transpose()?;
        Ok(Self { client, endpoint, token })
    }

    /// Asks for the commit of a revision, and its files.
    pub(crate) fn revision(
        &self,
        name: &HubName,
        limits: &Limits<'_>,
    ) -> Result<Revision, HubError> {
        let revision = name.revision.as_deref().unwrap_or("main");
        let mut url = self.endpoint.clone();
        let kind = folder_of(name.kind).unwrap_or("models");
        add_segments(&mut url, ["api", kind].into_iter().chain(name.repository.split('/')));
        // A `/` in the revision is encoded.
        add_segments(&mut url, ["revision", revision]);
        let (status, body) = self.get(&url, DESCRIPTION_MAX_BYTES, limits)?;
        match status {
            200 => {}
            401 | 403 => return Err(self.refused(name, status)),
            404 => return Err(HubError::Missing),
            status => return Err(HttpError::of_status(status).into()),
        }
        let found: Description = serde_json::from_slice(&body)
            .map_err(|error| HubError::Answer(format!("{:?}", error.classify())))?;
        if !HubName::is_commit(&found.sha) {
            return Err(HubError::Answer("it has no commit".to_owned()));
        }
        if HubName::is_commit(revision) && !revision.eq_ignore_ascii_case(&found.sha) {
            return Err(HubError::Answer(
                "it has another commit than the requested one".to_owned(),
            ));
        }
        let is_plain = |name: &String| {
            !name.starts_with('/') && name.split('/').all(|it| !matches!(it, "" | "." | ".."))
        };
        let files = found.siblings.into_iter().map(|sibling| sibling.rfilename);
        Ok(Revision { commit: found.sha, files: files.filter(is_plain).collect() })
    }

    /// Makes the error for a repository that may not be read.
    pub(crate) fn refused(&self, name: &HubName, status: u16) -> HubError {
        let folder = folder_of(name.kind).map_or(String::new(), |kind| format!("{kind}/"));
        let page = format!("{}{folder}{}", shown(&self.endpoint), name.repository);
        HubError::Refused { status, page }
    }

    /// Returns the URL of a file.
    pub(crate) fn file_url(
        &self,
        kind: RepositoryKind,
        repository: &str,
        commit: &str,
        file: &str,
    ) -> Url {
        let mut url = self.endpoint.clone();
        add_segments(&mut url, folder_of(kind).into_iter().chain(repository.split('/')));
        add_segments(&mut url, ["resolve", commit].into_iter().chain(file.split('/')));
        url
    }

    /// Returns the URL of the token for the Xet storage of a repository.
    pub(crate) fn xet_token_url(
        &self,
        kind: RepositoryKind,
        repository: &str,
        commit: &str,
    ) -> Url {
        let mut url = self.endpoint.clone();
        let kind = folder_of(kind).unwrap_or("models");
        add_segments(&mut url, ["api", kind].into_iter().chain(repository.split('/')));
        add_segments(&mut url, ["xet-read-token", commit]);
        url
    }

    /// Returns the header fields that authorise a request to the Hub itself.
    pub(crate) fn secret(&self) -> &[Field] {
        self.token.as_slice()
    }

    /// Returns the paths of the files of the model in the folder `root`, as [`find`] does for a directory.
    pub(crate) fn find(
        &self,
        name: &HubName,
        revision: &Revision,
        root: &str,
        filter: &ModelFilter,
        limits: &Limits<'_>,
    ) -> Result<Vec<String>, FindError<HubError>> {
        find(&mut Listing::new(self, name, revision, root, limits), filter)
    }

    /// Requests `url`, and receives the whole body. Failures that may pass are tried again.
    fn get(
        &self,
        url: &Url,
        max_bytes: usize,
        limits: &Limits<'_>,
    ) -> Result<(u16, Vec<u8>), HttpError> {
        let (mut tries, mut broke) = (Tries::default(), false);
        loop {
            let answer = self.client.follow(url, &[], self.secret(), limits);
            let answer = answer.and_then(|Followed { mut response, .. }| {
                let body = match response.head.status {
                    200 => response.body(max_bytes, limits)?,
                    _ => Vec::new(),
                };
                Ok((response.head.status, response.head.retry_after_s, body))
            });
            let (retry_after_s, error) = match answer {
                Ok((status, retry_after_s, body)) => match HttpError::of_status(status) {
                    error if error.is_transient() => (retry_after_s, error),
                    _ => return Ok((status, body)),
                },
                // The local cache may have the model, so a connection is tried only twice.
                Err(error) if broke => return Err(error.into()),
                Err(error) => {
                    broke = true;
                    (None, error.into())
                }
            };
            tries.again(retry_after_s, error, limits)?;
        }
    }
}

/// A folder of a repository as a directory.
struct Listing<'a> {
    hub: &'a Hub<'a>,
    name: &'a HubName,
    commit: &'a str,
    root: &'a str,
    limits: &'a Limits<'a>,
    folders: HashMap<&'a str, Folder<'a>>,
}

/// The names in a folder.
#[derive(Default)]
struct Folder<'a> {
    files: Vec<&'a str>,
    folders: BTreeSet<&'a str>,
}

impl<'a> Listing<'a> {
    fn new(
        hub: &'a Hub<'a>,
        name: &'a HubName,
        revision: &'a Revision,
        root: &'a str,
        limits: &'a Limits<'a>,
    ) -> Self {
        let mut folders: HashMap<&str, Folder<'_>> = HashMap::new();
        let prefix = if root.is_empty() { String::new() } else { format!("{root}/") };
        let below = revision.files.iter().filter_map(|file| file.strip_prefix(&prefix));
        for path in below.filter(|path| path.matches('/').count() <= DEPTH_MAX) {
            let (mut folder, file) = path.rsplit_once('/').unwrap_or(("", path));
            folders.entry(folder).or_default().files.push(file);
            while !folder.is_empty() {
                let (above, inner) = folder.rsplit_once('/').unwrap_or(("", folder));
                folders.entry(above).or_default().folders.insert(inner);
                folder = above;
            }
        }
        Self { hub, name, commit: &revision.commit, root, limits, folders }
    }

    /// Returns the path of a file in the repository.
    fn path(&self, name: &str) -> String {
        match self.root {
            "" => name.to_owned(),
            root => format!("{root}/{name}"),
        }
    }
}

impl Directory for Listing<'_> {
    type Error = HubError;

    fn files(&mut self, folder: &str) -> Result<Vec<String>, HubError> {
        self.limits.check().map_err(HttpError::from)?;
        let files = self.folders.get(folder).map(|it| it.files.iter());
        Ok(files.into_iter().flatten().map(|&file| file.to_owned()).collect())
    }

    fn folders(&mut self, folder: &str) -> Result<Vec<String>, HubError> {
        let folders = self.folders.get(folder).map(|it| it.folders.iter());
        let shown = folders.into_iter().flatten().filter(|folder| !folder.starts_with('.'));
        Ok(shown.map(|&folder| folder.to_owned()).collect())
    }

    fn read(&mut self, file: &str, max_bytes: u64) -> Result<Vec<u8>, HubError> {
        let HubName { kind, repository, .. } = self.name;
        let url = self.hub.file_url(*kind, repository, self.commit, &self.path(file));
        match self.hub.get(&url, max_bytes as usize, self.limits)? {
            (200, body) => Ok(body),
            (status, _) => Err(HttpError::of_status(status).into()),
        }
    }
}

/// Returns the beginning of the path of repositories that are no models.
fn folder_of(kind: RepositoryKind) -> Option<&'static str> {
    match kind {
        RepositoryKind::Dataset => Some("datasets"),
        RepositoryKind::Space => Some("spaces"),
        _ => None,
    }
}

fn add_segments<'s>(url: &mut Url, segments: impl IntoIterator<Item = &'s str>) {
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
}

/// Returns `true` if the environment forbids requests to the Hub (`HF_HUB_OFFLINE`).
pub fn is_offline() -> bool {
    let value = env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// Returns the path of the file with the token.
fn token_path() -> Option<PathBuf> {
    let home = || Some(env::home_dir()?.join(".cache/huggingface"));
    set("HF_TOKEN_PATH")
        .map(PathBuf::from)
        .or_else(|| Some(set("HF_HOME").map(PathBuf::from).or_else(home)?.join("token")))
}

/// Returns the variable or the file that has the token.
pub(crate) fn token_place() -> Option<String> {
    token()?;
    let path = || token_path().map(|path| path.display().to_string());
    set("HF_TOKEN").map(|_| "HF_TOKEN".to_owned()).or_else(path)
}

/// Returns the token of the environment.
fn token() -> Option<String> {
    let read = |path: PathBuf| {
        let is_short =
            fs::metadata(&path).is_ok_and(|it| it.is_file() && it.len() <= TOKEN_MAX_BYTES);
        is_short.then(|| fs::read_to_string(Path::new(&path)).ok()).flatten()
    };
    let token = set("HF_TOKEN").or_else(|| token_path().and_then(read))?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_files_are_encoded() {
        let client = Client::new();
        let endpoint = Url::parse("https://hub/base/").unwrap();
        let hub = Hub { client: &client, endpoint, token: None };
        let url = hub.file_url(RepositoryKind::Model, "org/name", "c0", "a b/m?.gguf");
        assert_eq!(url.as_str(), "https://hub/base/org/name/resolve/c0/a%20b/m%3F.gguf");
        let url = hub.file_url(RepositoryKind::Dataset, "org/name", "c0", "x");
        assert_eq!(url.as_str(), "https://hub/base/datasets/org/name/resolve/c0/x");
    }
}
