//! A file of an HTTP server, read by ranges.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_mem::VolatileSliceMut;
use url::Url;

use super::client::{Client, Field, Response};
use super::connection::Patience;
use super::head::Head;

/// The length of the first request, which also returns the length of the file. Most headers are shorter.
const FIRST_BYTES: u64 = 64 << 10;
/// The number of times that a request is made for the same byte.
const TRIES_MAX: u32 = 5;
/// The longest time between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// A file of an HTTP server, of one version.
#[derive(Debug)]
pub struct HttpFile {
    client: Arc<Client>,
    url: Url,
    secret: Vec<Field>,
    len_bytes: u64,
    /// The version, if the server has strong ones.
    etag: Option<String>,
    /// The first bytes.
    first: Vec<u8>,
}

/// The error of a read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The file does not exist.
    #[error("the server has no such file (status {status})")]
    NotFound {
        /// The status code.
        status: u16,
    },
    /// The server refuses access.
    #[error("the server refuses access (status {status}); check the credentials")]
    Refused {
        /// The status code.
        status: u16,
    },
    /// The server failed, also after several tries.
    #[error("the server answers with status {status}")]
    Status {
        /// The status code.
        status: u16,
    },
    /// The server sends whole files only, or encodes them.
    #[error("the server does not send ranges of the file as it is ({reason})")]
    NoRanges {
        /// The deviation.
        reason: &'static str,
    },
    /// The file is not the version that was opened.
    #[error("the file changed on the server")]
    Changed,
    /// The caller stopped the call.
    #[error("the read was stopped")]
    Stopped,
    /// The connection failed, also after several tries.
    #[error(transparent)]
    Connection(#[from] io::Error),
}

impl HttpFile {
    /// Requests the first bytes of a file, and so its length and version. Redirects are followed, and later
    /// requests go to the last URL.
    ///
    /// # Errors
    /// [`HttpError`].
    pub fn open(
        client: &Arc<Client>,
        url: &Url,
        secret: &[Field],
        patience: &Patience<'_>,
    ) -> Result<Self, HttpError> {
        let fields = [range_field(&(0..FIRST_BYTES))];
        let mut tries = Tries::default();
        loop {
            let answer = client.follow(url, &fields, secret, patience);
            let (mut response, last) = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    tries.again(None, error.into(), patience)?;
                    continue;
                }
            };
            let host = |url: &Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
            let secret = if host(&last) == host(url) { secret.to_vec() } else { Vec::new() };
            let head = response.head.clone();
            if head.status == 416 {
                // No byte of an empty file can be requested.
                let (client, url) = (Arc::clone(client), last);
                let first = Vec::new();
                return Ok(Self { client, url, secret, len_bytes: 0, etag: None, first });
            }
            if let Some(error) = failure(&head) {
                tries.again(head.retry_after_s, error, patience)?;
                continue;
            }
            let (range, len_bytes) = partial(&head)?;
            if range.start != 0 || range.end != len_bytes.min(FIRST_BYTES) {
                return Err(HttpError::NoRanges { reason: "another range was sent" });
            }
            let mut first = vec![0; range.end as usize];
            let mut place = VolatileSliceMut::from(first.as_mut_slice());
            let mut done = 0;
            match receive(&mut response, &mut place, &mut done, patience) {
                Ok(()) => {}
                Err(error) => {
                    tries.again(None, error.into(), patience)?;
                    continue;
                }
            }
            client.keep(response);
            // A weak version does not change with every byte.
            let etag = head.etag.filter(|etag| !etag.starts_with("W/"));
            let client = Arc::clone(client);
            return Ok(Self { client, url: last, secret, len_bytes, etag, first });
        }
    }

    /// Returns the length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns `true` if the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the first bytes of the file, which were received when it was opened.
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// Fills `memory` from `offset`. A transfer that breaks off is resumed where it did.
    ///
    /// # Errors
    /// [`HttpError`]; [`ErrorKind::UnexpectedEof`] if the file ends before.
    pub fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        patience: &Patience<'_>,
    ) -> Result<(), HttpError> {
        let (mut done, mut tries) = (0, Tries::default());
        let end = offset.checked_add(memory.len() as u64).filter(|end| *end <= self.len_bytes);
        let end = end.ok_or_else(|| HttpError::from(io::Error::from(ErrorKind::UnexpectedEof)))?;
        while done < memory.len() {
            let before = done;
            let wanted = offset + done as u64..end;
            match self.part(memory, &mut done, &wanted, patience) {
                Ok(()) => {}
                Err((retry_after_s, error)) => {
                    if done > before {
                        tries = Tries::default();
                    }
                    tries.again(retry_after_s, error, patience)?;
                }
            }
        }
        Ok(())
    }

    /// Makes one request for the rest of a range.
    fn part(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        done: &mut usize,
        wanted: &Range<u64>,
        patience: &Patience<'_>,
    ) -> Result<(), (Option<u64>, HttpError)> {
        let final_error = |error| (None, error);
        let mut fields = vec![range_field(wanted)];
        let version = self.etag.as_ref().and_then(|etag| Field::new("If-Match", etag.as_str()));
        fields.extend(version);
        fields.extend(self.secret.iter().cloned());
        let response = self.client.get(&self.url, &fields, patience);
        let mut response = response.map_err(|error| final_error(error.into()))?;
        let head = &response.head;
        if let Some(error) = failure(head) {
            return Err((head.retry_after_s, error));
        }
        let (range, len_bytes) = partial(head).map_err(final_error)?;
        let is_same = head.etag.is_none() || self.etag.is_none() || head.etag == self.etag;
        if len_bytes != self.len_bytes || !is_same {
            return Err(final_error(HttpError::Changed));
        }
        if range.start != wanted.start || range.end > wanted.end {
            return Err(final_error(HttpError::NoRanges { reason: "another range was sent" }));
        }
        let len = *done + (range.end - range.start) as usize;
        let mut place = memory
            .subslice_mut(0, len)
            .map_err(|error| final_error(HttpError::from(io::Error::other(error))))?;
        receive(&mut response, &mut place, done, patience)
            .map_err(|error| final_error(error.into()))?;
        self.client.keep(response);
        Ok(())
    }
}

/// Receives the rest of `memory` behind the first `done` bytes.
fn receive(
    response: &mut Response,
    memory: &mut VolatileSliceMut<'_>,
    done: &mut usize,
    patience: &Patience<'_>,
) -> io::Result<()> {
    while *done < memory.len() {
        let rest = memory.len() - *done;
        let mut place = memory.subslice_mut(*done, rest).map_err(io::Error::other)?;
        match response.connection.receive(&mut place, patience)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            received => *done += received,
        }
    }
    Ok(())
}

fn range_field(range: &Range<u64>) -> Field {
    Field::range(range.start, range.end - 1)
}

/// Returns the error for a status that is not that of a range.
fn failure(head: &Head) -> Option<HttpError> {
    let status = head.status;
    Some(match status {
        206 => return None,
        200 => HttpError::NoRanges { reason: "it sent the whole file" },
        401 | 403 | 407 => HttpError::Refused { status },
        404 | 410 => HttpError::NotFound { status },
        412 => HttpError::Changed,
        _ => HttpError::Status { status },
    })
}

/// Returns the range of a partial response and the length of the file.
fn partial(head: &Head) -> Result<(Range<u64>, u64), HttpError> {
    let wrong = |reason| HttpError::NoRanges { reason };
    if head.content_encoding.is_some() {
        return Err(wrong("it encodes the file"));
    }
    let range = head.content_range.ok_or_else(|| wrong("its response has no Content-Range"))?;
    let len_bytes = range.len_bytes.ok_or_else(|| wrong("it does not send the length"))?;
    if head.is_chunked || head.content_length != Some(range.end - range.start) {
        return Err(wrong("the lengths in its response differ"));
    }
    Ok((range.start..range.end, len_bytes))
}

/// The tries of one request.
#[derive(Debug, Default)]
struct Tries(u32);

impl Tries {
    /// Waits before the next try.
    ///
    /// # Errors
    /// `error` if it is final, or if there were enough tries; [`HttpError::Stopped`].
    fn again(
        &mut self,
        retry_after_s: Option<u64>,
        error: HttpError,
        patience: &Patience<'_>,
    ) -> Result<(), HttpError> {
        let is_stopped = || (patience.stop)();
        if is_stopped() {
            return Err(HttpError::Stopped);
        }
        self.0 += 1;
        if self.0 >= TRIES_MAX || !is_transient(&error) {
            return Err(error);
        }
        let requested = retry_after_s.map_or(Duration::ZERO, Duration::from_secs);
        let usual = Duration::from_millis(100 << self.0);
        let until = Instant::now() + requested.max(usual).min(PAUSE_MAX);
        while Instant::now() < until {
            if is_stopped() {
                return Err(HttpError::Stopped);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Returns `true` if the next try may succeed.
fn is_transient(error: &HttpError) -> bool {
    match error {
        HttpError::Status { status } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
        HttpError::Connection(error) => {
            !matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData)
        }
        _ => false,
    }
}
