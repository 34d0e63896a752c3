//! The requests for ranges of one file.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use url::Url;

use super::client::{Client, Field, Response};
use super::connection::Limits;
use super::error::HttpError;
use super::head::Head;

/// Makes authorised requests for ranges of one file.
pub trait Requests: fmt::Debug + Send + Sync {
    /// Returns a text that differs for different files, with secrets of the URL. `None` before the first request.
    fn origin(&self) -> Option<String>;

    /// Requests a range of a version of the file, and receives the head of the response.
    ///
    /// # Errors
    /// [`HttpError::Credentials`], [`HttpError::Connection`]. A status is no error.
    fn get(
        &self,
        client: &Client,
        range: &Range<u64>,
        version: &Version,
        limits: &Limits<'_>,
    ) -> Result<Response, HttpError>;
}

/// The version of a file, from the header fields of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The entity tag, with quotes. A weak one, which begins with `W/`, need not change with every byte.
    pub etag: Option<String>,
    /// The time of the last change.
    pub modified: Option<String>,
}

impl Version {
    /// Returns the version in the head of a response.
    pub(super) fn of(head: &Head) -> Self {
        Self { etag: head.etag.clone(), modified: head.last_modified.clone() }
    }

    /// Returns the entity tag, unless it is a weak or an empty one (RFC 9110, section 8.8.3).
    pub fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.len() > 2 && etag.starts_with('"'))
    }

    /// Returns `true` if a response is of this version. A server that has sent a version must send it again.
    pub(super) fn is_same(&self, head: &Head) -> bool {
        let now = Self::of(head);
        match self.strong() {
            Some(_) => self.etag == now.etag,
            None => *self == now,
        }
    }

    /// Returns the field by which a server refuses to send another version (RFC 9110, sections 13.1.1 and
    /// 13.1.4).
    fn condition(&self) -> Option<Field> {
        let etag = self.strong().map(|etag| Field::new("If-Match", etag));
        let modified =
            || self.modified.as_ref().map(|time| Field::new("If-Unmodified-Since", time.as_str()));
        etag.or_else(modified).flatten()
    }
}

/// Requests to one URL, and to the URL that it redirects to.
pub struct UrlRequests {
    url: Url,
    secret: Vec<Field>,
    /// `true` if the URL names content that does not change, wherever it redirects.
    is_of_content: bool,
    /// The URL after redirects, and the fields that may be sent there.
    last: Mutex<Option<(Url, Vec<Field>)>>,
}

impl UrlRequests {
    /// Makes requests to `url`. The `secret` fields are not sent to other hosts.
    pub fn new(url: Url, secret: &[Field]) -> Self {
        Self { url, secret: secret.to_vec(), is_of_content: false, last: Mutex::default() }
    }

    /// Declares that the URL names content that does not change, wherever it redirects.
    #[must_use]
    pub fn of_content(mut self) -> Self {
        self.is_of_content = true;
        self
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<(Url, Vec<Field>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for UrlRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL can have a signature.
        f.debug_struct("UrlRequests").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

impl Requests for UrlRequests {
    fn origin(&self) -> Option<String> {
        let mut url = self.url.clone();
        // These fail for a URL without a host, which has no user.
        let _ = (url.set_username(""), url.set_password(None));
        let mut origin = url.to_string();
        if let (false, Some((last, _))) = (self.is_of_content, &*self.last())
            && *last != self.url
        {
            // The query of a redirect is often a signature.
            origin += &format!(" {}{}", last.host_str().unwrap_or_default(), last.path());
        }
        Some(origin)
    }

    fn get(
        &self,
        client: &Client,
        range: &Range<u64>,
        version: &Version,
        limits: &Limits<'_>,
    ) -> Result<Response, HttpError> {
        let mut fields = vec![Field::range(range)?];
        let known = self.last().clone();
        let was_unknown = known.is_none();
        if let Some((url, secret)) = known {
            let mut all = [fields.as_slice(), &secret].concat();
            all.extend(version.condition());
            let response = client.get(&url, &all, limits)?;
            // The URL after a redirect is often valid for some minutes only.
            let was_redirected = url != self.url;
            match response.head.status {
                300..400 => {}
                400 | 401 | 403 | 404 | 410 if was_redirected => {}
                _ => return Ok(response),
            }
            if !was_redirected {
                fields.extend(version.condition());
            }
        }
        let mut followed = client.follow(&self.url, &fields, &self.secret, limits)?;
        // The Hub signs the URL of its storage. Another signature may be accepted.
        let head = &followed.response.head;
        if was_unknown && matches!(head.status, 400 | 403) && head.xet_hash.is_some() {
            followed = client.follow(&self.url, &fields, &self.secret, limits)?;
        }
        if followed.response.head.status == 206 {
            let secret = if followed.left { Vec::new() } else { self.secret.clone() };
            *self.last() = Some((followed.url, secret));
        }
        Ok(followed.response)
    }
}

impl Field {
    /// Makes the field for a range.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is empty.
    pub(crate) fn range(range: &Range<u64>) -> io::Result<Self> {
        let last = range.end.checked_sub(1).filter(|last| *last >= range.start);
        let last = last.ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        let field = Self::new("Range", format!("bytes={}-{last}", range.start));
        field.ok_or_else(|| ErrorKind::InvalidInput.into())
    }
}
