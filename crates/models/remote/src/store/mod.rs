//! Object stores: Amazon S3, Google Cloud Storage and Azure Blob Storage.
//!
//! ```text
//!   s3://BUCKET/KEY ─► object_store: credentials, URL, signature ─► HttpFile: ranges, into the buffer
//!                          │ tokens, listings
//!                          ▼
//!                        drive: our client
//! ```

mod azure_cli;
mod config;
mod drive;
mod listing;
mod name;
mod profile;
mod program;
mod refusal;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use http::header::{CONTENT_LENGTH, HOST};
use object_store::client::{
    HttpError as StoreHttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
};
use object_store::path::Path as Key;
use object_store::{GetOptions, ListResult, ObjectStore};
use url::Url;

use crate::http::{Client, Field, HttpError, Limits, Request, Requests, Response, Tries, Version};
use drive::{Driven, drive};
use refusal::{s3_refusal, unclear};

pub(crate) use config::StoreOptions;
pub(crate) use listing::Listing;
pub(crate) use name::{ObjectName, Provider};
pub(crate) use profile::has_profile;

/// The limit on an answer to a request for a token or a page of a listing, in bytes. A page of S3 has 1,000 names of
/// at most 1 KiB, and one of Azure 5,000.
const ANSWER_MAX_BYTES: usize = 8 << 20;
/// The limit on all pages of the listings of one model together, in bytes.
const LISTED_MAX_BYTES: usize = 64 << 20;
/// The limit on all answers to requests for tokens for one request, in bytes.
const TOKENS_MAX_BYTES: usize = 16 << 20;
/// The limit on the number of requests for one listing. A page has at least 1,000 names.
const REQUESTS_MAX: u32 = 200;
const TOO_LONG: &str =
    "the listings have more than 64 MiB, or one has more than 200 pages; name a longer prefix";
/// The limit on the body of a refusal, in bytes.
const REFUSAL_MAX_BYTES: usize = 16 << 10;
/// The longest time for which the metadata server of a cloud instance is waited for. Elsewhere nothing answers.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// A bucket.
pub(crate) struct Store {
    client: Arc<Client>,
    provider: Provider,
    bucket: String,
    options: StoreOptions,
    /// It is replaced if the bucket is in another region.
    signer: RwLock<Arc<dyn ObjectStore>>,
}

impl Store {
    /// Makes the access to a bucket with the credentials that the environment names. No request is made, but `aws` may
    /// be asked for a profile.
    ///
    /// # Errors
    /// [`HttpError::Credentials`] if they are not valid.
    pub(crate) fn new(
        client: &Arc<Client>,
        name: &ObjectName,
        options: &StoreOptions,
        limits: &Limits<'_>,
    ) -> Result<Self, HttpError> {
        let (provider, bucket) = (name.provider, name.bucket.clone());
        let signer = RwLock::new(options.signer(provider, &bucket, None, limits)?);
        let (client, options) = (Arc::clone(client), options.clone());
        Ok(Self { client, provider, bucket, options, signer })
    }

    fn signer(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.signer.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the requests for an object.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a key that `object_store` cannot ask for.
    pub(crate) fn requests(self: &Arc<Self>, key: &str) -> Result<ObjectRequests, HttpError> {
        Ok(ObjectRequests { store: Arc::clone(self), key: parse_key(key)?, url: OnceLock::new() })
    }

    /// Lists the objects and folders directly below a prefix. `left_bytes` is the limit on the answers, less those
    /// of the caller's other listings.
    fn list(
        &self,
        prefix: &str,
        left_bytes: &mut usize,
        limits: &Limits<'_>,
    ) -> Result<ListResult, HttpError> {
        let prefix = parse_key(prefix)?;
        let mut list = || {
            let signer = self.signer();
            match self.drive(signer.list_with_delimiter(Some(&prefix)), left_bytes, limits)? {
                Driven::Done(listed) => Ok(listed),
                Driven::Range(_) => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            }
        };
        match list() {
            Err(HttpError::OtherRegion { region }) => {
                self.move_to(&region, limits)?;
                list()
            }
            listed => listed,
        }
    }

    /// Returns the signed request for a range of a version.
    fn sign(
        &self,
        key: &Key,
        range: &Range<u64>,
        version: &Version,
        limits: &Limits<'_>,
    ) -> Result<(Url, Vec<Field>), HttpError> {
        let signer = self.signer();
        // Azure also signs the condition.
        let options = GetOptions::new()
            .with_range(Some(range.clone()))
            .with_if_match(version.strong().map(str::to_owned));
        let mut left_bytes = TOKENS_MAX_BYTES;
        match self.drive(signer.get_opts(key, options), &mut left_bytes, limits)? {
            Driven::Range(request) => Ok((to_url(request.uri())?, to_fields(&request)?)),
            Driven::Done(_) => {
                Err(HttpError::Credentials("the request could not be signed".to_owned()))
            }
        }
    }

    /// Drives a future of the store. Its requests for tokens and listings are made by the client.
    fn drive<T>(
        &self,
        future: impl Future<Output = object_store::Result<T>>,
        left_bytes: &mut usize,
        limits: &Limits<'_>,
    ) -> Result<Driven<T>, HttpError> {
        let (mut failed, mut count, mut asked_metadata) = (None, 0, false);
        let mut status = None;
        let driven = drive(future, limits, |request| {
            count += 1;
            asked_metadata |= to_url(request.uri()).is_ok_and(|url| is_metadata(&url));
            let answer = match count {
                ..=REQUESTS_MAX if *left_bytes > 0 => self.answer(&request, limits),
                _ => Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG).into()),
            };
            status = answer.as_ref().ok().map(|(answer, _)| answer.status().as_u16());
            let len_bytes = answer.as_ref().map_or(0, |(_, len_bytes)| *len_bytes);
            *left_bytes = left_bytes.saturating_sub(len_bytes);
            let answer = answer.map(|(answer, _)| answer);
            answer.map_err(|error| {
                failed = Some(error);
                StoreHttpError::new(HttpErrorKind::Unknown, io::Error::other("no answer"))
            })
        })?;
        match driven {
            Driven::Range(request) => Ok(Driven::Range(request)),
            Driven::Done(Ok(done)) => Ok(Driven::Done(done)),
            Driven::Done(Err(_)) if asked_metadata => Err(self.no_credentials()),
            Driven::Done(Err(error)) => {
                let of_status = || status.filter(|status| *status >= 300).map(HttpError::of_status);
                let unclear = || unclear(&error);
                Err(failed.or_else(of_status).unwrap_or_else(unclear))
            }
        }
    }

    /// Makes a request for a token or a page of a listing. Returns the answer with its length in bytes.
    fn answer(
        &self,
        request: &HttpRequest,
        limits: &Limits<'_>,
    ) -> Result<(HttpResponse, usize), HttpError> {
        let url = to_url(request.uri())?;
        let fields = to_fields(request)?;
        let body = request.body().as_bytes().map(|body| body.to_vec()).unwrap_or_default();
        let sent =
            Request { method: request.method().as_str(), url: &url, fields: &fields, body: &body };
        let is_metadata = is_metadata(&url);
        let limited = match is_metadata {
            true => limits.with_deadline(Instant::now() + METADATA_TIMEOUT),
            false => *limits,
        };
        let mut tries = Tries::default();
        loop {
            let received = self.client.send(sent, &limited).and_then(|mut response| {
                let body = response.body(ANSWER_MAX_BYTES, &limited)?;
                Ok((response, body))
            });
            let (retry_after_s, error) = match received {
                Ok((response, body)) => {
                    let status = response.head.status;
                    if let (300..=400, Some(region)) = (status, &response.head.bucket_region) {
                        return Err(HttpError::OtherRegion { region: region.clone() });
                    }
                    let error = HttpError::Status { status };
                    if is_metadata || !error.is_transient() {
                        let len_bytes = body.len();
                        let answer = to_answer(&response, body)?;
                        self.client.keep(response);
                        return Ok((answer, len_bytes));
                    }
                    (response.head.retry_after_s, error)
                }
                Err(error) if is_metadata => return Err(error.into()),
                Err(error) => (None, error.into()),
            };
            tries.again(retry_after_s, error, limits)?;
        }
    }

    /// Makes the error for a provider whose environment has no credentials.
    fn no_credentials(&self) -> HttpError {
        let hint = self.provider.hint();
        HttpError::Credentials(format!(
            "no credentials were found, and no metadata server of a cloud instance gives any; {hint}"
        ))
    }

    /// Uses another region from now on.
    fn move_to(&self, region: &str, limits: &Limits<'_>) -> Result<(), HttpError> {
        let is_name = region.len() <= 32
            && region
                .bytes()
                .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-');
        if !is_name {
            return Err(HttpError::Credentials("the server names no valid region".to_owned()));
        }
        let signer = self.options.signer(self.provider, &self.bucket, Some(region), limits)?;
        *self.signer.write().unwrap_or_else(PoisonError::into_inner) = signer;
        Ok(())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, bucket, .. } = self;
        f.debug_struct("Store")
            .field("provider", provider)
            .field("bucket", bucket)
            .finish_non_exhaustive()
    }
}

/// The requests for one object. Each is signed anew, so that none expires.
#[derive(Debug)]
pub(crate) struct ObjectRequests {
    store: Arc<Store>,
    key: Key,
    url: OnceLock<Url>,
}

impl Requests for ObjectRequests {
    fn origin(&self) -> Option<String> {
        self.url.get().map(Url::to_string)
    }

    fn get(
        &self,
        client: &Client,
        range: &Range<u64>,
        version: &Version,
        limits: &Limits<'_>,
    ) -> Result<Response, HttpError> {
        let get = || -> Result<Response, HttpError> {
            let (url, fields) = self.store.sign(&self.key, range, version, limits)?;
            self.url.get_or_init(|| {
                let mut url = url.clone();
                // Azure can have a signature there.
                url.set_query(None);
                // These fail for a URL without a host, which has no user.
                let _ = (url.set_username(""), url.set_password(None));
                url
            });
            Ok(client.get(&url, &fields, limits)?)
        };
        let mut response = get()?;
        let region = response.head.bucket_region.as_deref();
        if let (300..=400, Some(region)) = (response.head.status, region) {
            self.store.move_to(region, limits)?;
            response = get()?;
        }
        let status = response.head.status;
        if self.store.provider == Provider::S3
            && matches!(status, 400 | 403)
            && let Ok(body) = response.body(REFUSAL_MAX_BYTES, limits)
            && let Some(reason) = s3_refusal(&body)
        {
            let text = format!("the server refuses access (status {status}, {reason}");
            return Err(HttpError::Credentials(text));
        }
        Ok(response)
    }
}

fn parse_key(key: &str) -> Result<Key, HttpError> {
    Key::parse(key).map_err(|_| {
        let message = "a key with empty parts, `.` or `..` cannot be requested";
        io::Error::new(io::ErrorKind::InvalidInput, message).into()
    })
}

/// Returns `true` for a server that gives tokens to the instances of a cloud.
fn is_metadata(url: &Url) -> bool {
    matches!(url.host_str(), Some("169.254.169.254" | "metadata.google.internal" | "metadata"))
}

fn to_url(uri: &Uri) -> Result<Url, HttpError> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "the endpoint is no valid URL");
    Ok(Url::parse(&uri.to_string()).map_err(invalid)?)
}

/// Returns the header fields of a request, without those that the client sends in any case.
fn to_fields(request: &HttpRequest) -> Result<Vec<Field>, HttpError> {
    let sent =
        request.headers().iter().filter(|(name, _)| **name != HOST && **name != CONTENT_LENGTH);
    sent.map(|(name, value)| {
        let value = value.to_str().ok();
        let field = value.and_then(|value| Field::new(name.as_str().to_owned(), value));
        field.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput).into())
    })
    .collect()
}

fn to_answer(response: &Response, body: Vec<u8>) -> Result<HttpResponse, HttpError> {
    let head = &response.head;
    let mut answer = http::Response::builder().status(head.status);
    for (name, value) in [("location", &head.location), ("etag", &head.etag)] {
        if let Some(value) = value {
            answer = answer.header(name, value);
        }
    }
    let answer = answer.body(HttpResponseBody::from(Bytes::from(body)));
    answer.map_err(|_| io::Error::from(io::ErrorKind::InvalidData).into())
}
